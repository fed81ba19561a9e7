"""How large a network's tensors become, by its shapes alone: a bomb is named before anything runs it.

A shape is exact or unknown. Where an operator's output depends on more than shapes and constants, what the
file declares of it is taken, and else nothing is said: the limit of memory that every child has is for that.
"""

import contextlib
import itertools
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rules.errors import SourceError
from rules.keeping import files
from rules.networks.onnxfile import BYTES, MAX_GRAPH_DEPTH, Field, GraphReader, TensorSpec, Wire, clean, shown

MOST: Final = 1 << 30  # numbers in a tensor; the largest of a driving model has some ten million
NUMBER: Final = 4  # bytes of a float32, which is what a reference computes in
MOST_VALUES: Final = 64  # of a constant that is looked into: shapes, axes, repeats
FORMATS: Final = {1: "f", 6: "i", 7: "q", 11: "d"}  # TensorProto.DataType → struct
GRAPH: Final = 7
TOO_LARGE: Final = "find out who made this file; if it is right, export the network with smaller tensors"

Shape = tuple[int, ...]
Values = tuple[float, ...]

SAME: Final = frozenset(
    """Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization BitwiseNot Cast CastLike Ceil Celu Clip Cos
    Cosh CumSum Dropout Elu Erf Exp EyeLike Floor Gelu GroupNormalization HardSigmoid HardSwish Hardmax
    Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Log LogSoftmax
    LpNormalization MeanVarianceNormalization Mish Neg Not Reciprocal Relu Round ScatterElements ScatterND
    Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu
    Trilu""".split()  # noqa: SIM905
)
BROADCAST: Final = frozenset(
    """Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max
    Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor""".split()  # noqa: SIM905
)


class _Unknown(Exception):
    """The shapes and constants that are known do not tell."""


@dataclass
class Node:
    """A NodeProto: attributes that are numbers."""

    operator: str = ""
    name: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    numbers: dict[str, Values] = field(default_factory=dict)

    def ints(self, name: str) -> list[int]:
        """An attribute's whole numbers; none when it is not there."""
        return [int(one) for one in self.numbers.get(name, ())]

    def int(self, name: str, default: int) -> int:
        """An attribute's whole number."""
        return next(iter(self.ints(name)), default)


def check(path: Path, inputs: Mapping[str, TensorSpec] | None = None) -> int:
    """Bytes of all that the nodes of the ONNX file at `path` compute, as far as shapes tell, as float32.

    `inputs` says of which shapes its inputs are, where the file leaves that open.
    Raises SourceError, naming the node, when one of them makes a tensor of more than MOST numbers.
    """
    with files.opened(path) as file:
        wire = Wire(file, os.fstat(file.fileno()).st_size, path.name)
        sizes = _Sizes(wire)
        sizes.shapes |= {
            name: fixed for name, spec in (inputs or {}).items() if (fixed := spec.fixed) is not None
        }
        for part in wire.fields(0, wire.size):
            if part.number == GRAPH:
                sizes.graph(part)
    return NUMBER * sizes.total


class _Sizes:
    """Graphs read for their shapes; a subgraph's names are among those of the graph around it."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.reader = GraphReader(wire)
        self.shapes: dict[str, Shape] = {}
        self.values: dict[str, Values] = {}
        self.declared: dict[str, Shape] = {}
        self.total = 0

    def graph(self, found: Field, depth: int = 0) -> None:
        """Its nodes come last, whatever their place in the file."""
        if depth > MAX_GRAPH_DEPTH:
            raise self.wire.damage(f"its graphs are nested more than {MAX_GRAPH_DEPTH} deep")
        parts = list(self.wire.message(found))
        for part in parts:
            if part.number == 5:
                self._constant(part)
            elif part.number in (11, 12, 13):
                self._declare(part, self.shapes if part.number == 11 else self.declared)
        for part in parts:
            if part.number == 1:
                self._compute(self._node(part, depth))

    def _declare(self, found: Field, known: dict[str, Shape]) -> None:
        values: dict[str, TensorSpec] = {}
        with contextlib.suppress(SourceError):  # sequences and the like; what must be a tensor is seen to be
            self.reader.add(values, found, "value")
        for name, spec in values.items():
            if (shape := spec.fixed) is not None:
                known.setdefault(name, shape)

    def _constant(self, found: Field, name: str = "") -> None:
        tensor = self.reader.tensor(found)
        name = name or tensor.name
        self.shapes[name] = tuple(tensor.dims)
        if math.prod(tensor.dims) <= MOST_VALUES and not tensor.is_external:
            self.values[name] = tuple(self._numbers(found, tensor.dtype))

    def _numbers(self, found: Field, dtype: int) -> Iterator[float]:
        """The numbers in a small tensor, in whichever of its fields they are."""
        for part in self.wire.message(found):
            if part.number == 7 or (part.number == 5 and dtype == 6):
                yield from self.wire.integers(part)
            elif part.wire == BYTES and (part.number, dtype) in ((9, 1), (9, 6), (9, 7), (9, 11), (4, 1)):
                self.wire.file.seek(part.start)
                content = self.wire.file.read(min(part.stop - part.start, 8 * MOST_VALUES))
                size = struct.calcsize(FORMATS[dtype])
                whole = len(content) // size
                yield from struct.unpack(f"<{whole}{FORMATS[dtype]}", content[: whole * size])

    def _node(self, found: Field, depth: int) -> Node:
        node = Node()
        for part in self.wire.message(found):
            match part.number:
                case 1:
                    node.inputs.append(self.wire.text(part))
                case 2:
                    node.outputs.append(self.wire.text(part))
                case 3:
                    node.name = self.wire.text(part)
                case 4:
                    node.operator = self.wire.text(part)
                case 5:
                    self._attribute(node, part, depth)
        return node

    def _attribute(self, node: Node, found: Field, depth: int) -> None:
        name, numbers = "", list[float]()
        for part in self.wire.message(found):
            match part.number:
                case 1:
                    name = self.wire.text(part)
                case 3:
                    numbers.append(self.wire.integer(part))
                case 8:
                    numbers.extend(itertools.islice(self.wire.integers(part), MOST_VALUES))
                case 5 if node.operator == "Constant" and node.outputs:
                    self._constant(part, node.outputs[0])
                case 6:
                    self.graph(part, depth + 1)
        node.numbers[name] = tuple(numbers)

    def _compute(self, node: Node) -> None:
        try:
            made = OUTPUTS[node.operator](_Inputs(node, self.shapes, self.values))
        except (KeyError, IndexError, ValueError, ZeroDivisionError, OverflowError, _Unknown):
            made = []
        for name, shape in itertools.zip_longest(node.outputs, made):
            if name and name not in self.shapes and (shape := shape or self.declared.get(name)) is not None:
                self.shapes[name] = shape
                self._weigh(node, shape)

    def _weigh(self, node: Node, shape: Shape) -> None:
        numbers = math.prod(shape)
        self.total += numbers
        if numbers > MOST:
            name = shown(node.name or (node.outputs or [""])[0])
            raise SourceError(
                f"{self.wire.name}: node {name} ({clean(node.operator)}) makes a tensor of"
                f" {'x'.join(map(str, shape))} numbers, expected at most {MOST:,}",
                fix=TOO_LARGE,
            )


class _Inputs:
    """What is known of one node's inputs. Each question raises _Unknown where nothing is."""

    def __init__(self, node: Node, shapes: dict[str, Shape], values: dict[str, Values]) -> None:
        self.node = node
        self._shapes, self._values = shapes, values

    def shape(self, number: int) -> Shape:
        """The shape of an input."""
        if (found := self._shapes.get(self.node.inputs[number])) is None:
            raise _Unknown
        return found

    def all(self) -> list[Shape]:
        """The shapes of every input that is there."""
        return [self.shape(number) for number, name in enumerate(self.node.inputs) if name]

    def has(self, number: int) -> bool:
        """Whether an input that may be left out is there."""
        return len(self.node.inputs) > number and bool(self.node.inputs[number])

    def values(self, number: int) -> Values:
        """The numbers of an input that is a small constant."""
        if (found := self._values.get(self.node.inputs[number])) is None:
            raise _Unknown
        return found

    def ints(self, number: int, attribute: str = "") -> list[int]:
        """Whole numbers that older opsets have as an attribute, and newer ones as an input."""
        if attribute in self.node.numbers:
            return self.node.ints(attribute)
        return [int(one) for one in self.values(number)]


# ---- operators: what they make of their inputs' shapes


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    ranks = max(map(len, shapes), default=0)
    padded = [(1,) * (ranks - len(shape)) + shape for shape in shapes]
    return tuple(0 if 0 in sizes else max(sizes) for sizes in zip(*padded, strict=True))


def _concat(of: _Inputs) -> list[Shape]:
    shapes = of.all()
    axis = of.node.int("axis", 1) % len(shapes[0])
    return [tuple(sum(s[i] for s in shapes) if i == axis else n for i, n in enumerate(shapes[0]))]


def _tile(of: _Inputs) -> list[Shape]:
    return [tuple(n * times for n, times in zip(of.shape(0), of.ints(1), strict=True))]


def _expand(of: _Inputs) -> list[Shape]:
    return [_broadcast([of.shape(0), tuple(of.ints(1))])]


def _reshape(of: _Inputs) -> list[Shape]:
    old, wanted = of.shape(0), of.ints(1, "shape")
    sizes = [old[i] if n == 0 and not of.node.int("allowzero", 0) else n for i, n in enumerate(wanted)]
    rest = math.prod(n for n in sizes if n != -1)
    return [tuple(math.prod(old) // rest if n == -1 else n for n in sizes)]


def _transpose(of: _Inputs) -> list[Shape]:
    shape = of.shape(0)
    return [tuple(shape[i] for i in of.node.ints("perm") or reversed(range(len(shape))))]


def _unsqueeze(of: _Inputs) -> list[Shape]:
    shape, axes = list(of.shape(0)), of.ints(1, "axes")
    for axis in sorted(one % (len(shape) + len(axes)) for one in axes):
        shape.insert(axis, 1)
    return [tuple(shape)]


def _squeeze(of: _Inputs) -> list[Shape]:
    shape = of.shape(0)
    if not of.has(1) and "axes" not in of.node.numbers:
        return [tuple(n for n in shape if n != 1)]
    gone = {axis % len(shape) for axis in of.ints(1, "axes")}
    return [tuple(n for i, n in enumerate(shape) if i not in gone)]


def _flatten(of: _Inputs) -> list[Shape]:
    shape, axis = of.shape(0), of.node.int("axis", 1)
    return [(math.prod(shape[:axis]), math.prod(shape[axis:]))]


def _matmul(of: _Inputs) -> list[Shape]:
    left, right = of.shape(0), of.shape(1)
    if len(left) < 2 or len(right) < 2:
        raise _Unknown
    return [(*_broadcast([left[:-2], right[:-2]]), left[-2], right[-1])]


def _gemm(of: _Inputs) -> list[Shape]:
    left, right = of.shape(0), of.shape(1)
    return [(left[of.node.int("transA", 0)], right[1 - of.node.int("transB", 0)])]


def _conv(of: _Inputs) -> list[Shape]:
    shape, weight = of.shape(0), of.shape(1)
    return [(shape[0], weight[0], *_windows(of.node, shape[2:], list(weight[2:])))]


def _pool(of: _Inputs) -> list[Shape]:
    shape = of.shape(0)
    if of.node.int("ceil_mode", 0):
        raise _Unknown
    return [shape[:2] + tuple(_windows(of.node, shape[2:], of.node.ints("kernel_shape")))]


def _windows(node: Node, sizes: Shape, kernel: Sequence[int]) -> Iterator[int]:
    """How often a kernel fits."""
    if "auto_pad" in node.numbers:
        raise _Unknown
    count = len(sizes)
    pads, steps = node.ints("pads") or [0] * 2 * count, node.ints("strides") or [1] * count
    gaps = node.ints("dilations") or [1] * count
    for i, (size, width) in enumerate(zip(sizes, kernel, strict=True)):
        yield (size + pads[i] + pads[i + count] - gaps[i] * (width - 1) - 1) // steps[i] + 1


def _conv_transpose(of: _Inputs) -> list[Shape]:
    shape, weight, node = of.shape(0), of.shape(1), of.node
    if "auto_pad" in node.numbers:
        raise _Unknown
    count = len(shape) - 2
    pads, steps = node.ints("pads") or [0] * 2 * count, node.ints("strides") or [1] * count
    gaps, more = node.ints("dilations") or [1] * count, node.ints("output_padding") or [0] * count
    sizes = [
        steps[i] * (n - 1) + more[i] + (weight[2 + i] - 1) * gaps[i] + 1 - pads[i] - pads[i + count]
        for i, n in enumerate(shape[2:])
    ]
    return [(shape[0], weight[1] * node.int("group", 1), *(node.ints("output_shape") or sizes))]


def _pad(of: _Inputs) -> list[Shape]:
    shape, pads = of.shape(0), of.ints(1, "pads")
    if of.has(3):
        raise _Unknown  # for some axes only
    return [tuple(n + pads[i] + pads[i + len(shape)] for i, n in enumerate(shape))]


def _resize(of: _Inputs) -> list[Shape]:
    shape = of.shape(0)
    if of.has(3):
        sizes = of.ints(3)
        return [tuple(sizes) if len(sizes) == len(shape) else shape[: -len(sizes)] + tuple(sizes)]
    scales = of.values(2 if of.has(2) else 1)
    return [tuple(math.ceil(n * scale) for n, scale in zip(shape, scales, strict=True))]


def _gather(of: _Inputs) -> list[Shape]:
    shape, axis = of.shape(0), of.node.int("axis", 0) % len(of.shape(0))
    return [shape[:axis] + of.shape(1) + shape[axis + 1 :]]


def _gather_nd(of: _Inputs) -> list[Shape]:
    shape, indices, batch = of.shape(0), of.shape(1), of.node.int("batch_dims", 0)
    return [indices[:-1] + shape[batch + indices[-1] :]]


def _one_hot(of: _Inputs) -> list[Shape]:
    shape, axis = list(of.shape(0)), of.node.int("axis", -1)
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, of.ints(1)[0])
    return [tuple(shape)]


def _range(of: _Inputs) -> list[Shape]:
    start, stop, step = (of.values(number)[0] for number in range(3))
    return [(max(0, math.ceil((stop - start) / step)),)]


def _split(of: _Inputs) -> list[Shape]:
    shape, count = of.shape(0), len(of.node.outputs)
    axis = of.node.int("axis", 0) % len(shape)
    given = of.has(1) or "split" in of.node.numbers
    step = -(-shape[axis] // count)
    parts = of.ints(1, "split") if given else [min(step, shape[axis] - step * i) for i in range(count)]
    return [(*shape[:axis], part, *shape[axis + 1 :]) for part in parts]


def _shape(of: _Inputs) -> list[Shape]:
    sizes, node = of.shape(0), of.node
    return [(len(sizes[node.int("start", 0) : node.int("end", len(sizes))]),)]


def _slice(of: _Inputs) -> list[Shape]:
    shape = list(of.shape(0))
    starts, stops = of.ints(1, "starts"), of.ints(2, "ends")
    given = of.has(3) or "axes" in of.node.numbers
    axes = of.ints(3, "axes") if given else range(len(starts))
    steps = of.ints(4) if of.has(4) else [1] * len(starts)
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        shape[axis] = len(range(*slice(start, stop, step).indices(shape[axis])))
    return [tuple(shape)]


def _reduce(of: _Inputs) -> list[Shape]:
    shape = of.shape(0)
    given = of.has(1) or "axes" in of.node.numbers
    axes = {axis % len(shape) for axis in of.ints(1, "axes")} if given else {*range(len(shape))}
    keep = of.node.int("keepdims", 1)
    return [tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)]


def _depth_to_space(of: _Inputs) -> list[Shape]:
    batch, depth, height, width = of.shape(0)
    size = of.node.int("blocksize", 1)
    return [(batch, depth // size**2, height * size, width * size)]


def _space_to_depth(of: _Inputs) -> list[Shape]:
    batch, depth, height, width = of.shape(0)
    size = of.node.int("blocksize", 1)
    return [(batch, depth * size**2, height // size, width // size)]


OUTPUTS: Final[Mapping[str, Callable[[_Inputs], list[Shape]]]] = {
    **dict.fromkeys(SAME, lambda of: [of.shape(0)]),
    **dict.fromkeys(BROADCAST, lambda of: [_broadcast(of.all())]),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pool),
    **dict.fromkeys(
        [f"Reduce{one}" for one in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()],  # noqa: SIM905
        _reduce,
    ),
    "Concat": _concat,
    "ConstantOfShape": lambda of: [tuple(of.ints(0))],
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": lambda of: [of.shape(1)],
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda of: [of.shape(0)[:2] + (1,) * (len(of.shape(0)) - 2)],
    "MatMul": _matmul,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Shape": _shape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Upsample": _resize,
}
