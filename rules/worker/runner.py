"""tinygrad's ONNX runner with what its own lacks: every private of it that we touch is behind this seam.

A file is read as the format allows and tinygrad 0.14.0 does not: numbers of a list one by one or packed,
tensors of no numbers, float16 in whole numbers, operator domains that no node uses. A failure names its node.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from tinygrad import Device, Tensor, dtypes
from tinygrad.nn import onnx

# tinygrad computes these by assigning to what it is given, be it a network's input or read again later.
IN_PLACE = ("ScatterND", "TensorScatter", "Adagrad", "Adam", "Momentum")
PACKED = 2  # the wire type of many numbers at once
HALVES = (dtypes.float16, dtypes.bfloat16)


class Runner(onnx.OnnxRunner):  # type: ignore[misc]
    """An ONNX file. `shapes` are those of inputs by name, whatever the file leaves open."""

    graph_inputs: dict[str, Any]
    graph_nodes: "Nodes"

    def __init__(self, path: str, shapes: dict[str, tuple[int, ...]] | None = None) -> None:
        parser = Parser(path)
        graph = parser.parse()["graph"]
        self._init_from_graph(graph)
        self.graph_inputs = {
            name: _shaped(spec, (shapes or {}).get(name)) for name, spec in self.graph_inputs.items()
        }
        self.graph_nodes = Nodes(self.graph_nodes, [node.get("name", "") for node in graph["node"]])
        protect(self)

    @property
    def stored(self) -> list[Tensor]:
        """The numbers that the file holds."""
        return [value for value in self.graph_values.values() if isinstance(value, Tensor)]

    def __call__(self, inputs: dict[str, Any], debug: int = onnx.debug) -> dict[str, Any]:
        """Outputs by name. Raises RuntimeError that names the node at which the walk ended."""
        try:
            found: dict[str, Any] = super().__call__(inputs, debug)
            return found
        except Exception as error:
            if (at := self.graph_nodes.at) is None:
                raise
            raise RuntimeError(f"{at}: {type(error).__name__}: {error}") from error


def _shaped(spec: Any, shape: tuple[int, ...] | None) -> Any:
    return spec if shape is None else onnx.OnnxValue(shape, spec.dtype, spec.is_optional, spec.is_sequence)


class Nodes(tuple[Any, ...]):
    """A graph's nodes, which know the one that was asked for last."""

    names: list[str]
    at: str | None = None

    def __new__(cls, nodes: tuple[Any, ...], names: list[str]) -> "Nodes":
        """`names` are as the file has them, empty or not."""
        made = super().__new__(cls, nodes)
        made.names = names
        return made

    def __iter__(self) -> Iterator[Any]:
        self.at = None
        for number, (node, name) in enumerate(zip(super().__iter__(), self.names, strict=True)):
            self.at = f"node {name or number}: {node.op} of opset {node.opset_id.version}"
            yield node
        self.at = None


class Parser(onnx.OnnxPBParser):  # type: ignore[misc]
    """Reads an ONNX file as the format allows it to be written."""

    def parse(self) -> dict[str, Any]:
        """The model as a nested dict."""
        known = onnx.Domain.from_onnx
        onnx.Domain.from_onnx = staticmethod(lambda name: _domain(known, name))
        try:
            found: dict[str, Any] = super().parse()
            return found
        finally:
            onnx.Domain.from_onnx = known

    def _parse_TensorProto(self) -> dict[str, Any]:
        tensor = Stored()
        for number, wire in self._parse_message(self._decode_end_pos()):
            match number:
                case 1:
                    tensor.dims += self._integers(wire)
                case 2:
                    tensor.dtype = onnx.OnnxDataType(self.reader.read_int64()).to_dtype()
                case 4 | 10 if wire == PACKED:
                    tensor.raw = self.reader.read_bytes()
                case 4 | 10:
                    tensor.floats += self.reader.read(4 if number == 4 else 8)
                case 5 | 7 | 11:
                    tensor.numbers += self._integers(wire)
                case 8:
                    tensor.name = self.reader.read_string()
                case 9:
                    tensor.raw = self.reader.read_bytes()
                case 13:
                    entry = self._parse_StringStringEntryProto()
                    tensor.place[entry["key"]] = entry.get("value", "")
                case 14:
                    tensor.is_outside = self.reader.read_int64() == 1
                case _:
                    self.reader.skip_field(wire)
        return {"name": tensor.name, "parsed_tensor": tensor.read(self.file_path)}

    def _integers(self, wire: int) -> list[int]:
        found: list[int] = self.reader.read_packed_int64s() if wire == PACKED else [self.reader.read_int64()]
        return found


@dataclass
class Stored:
    """A tensor as a file has it: in one of four ways."""

    name: str = ""
    dtype: Any = None
    dims: list[int] = field(default_factory=list)
    raw: Tensor | None = None
    numbers: list[int] = field(default_factory=list)
    floats: bytes = b""
    place: dict[str, str] = field(default_factory=dict)
    is_outside: bool = False

    def read(self, file: Path | None) -> Tensor:
        """The tensor on the default device; `file` is the one that names it. Raises ValueError."""
        if 0 in self.dims:
            return Tensor([], dtype=self.dtype).reshape(self.dims)
        if self.is_outside and file is not None:
            start, length = int(self.place.get("offset", 0)), self.place.get("length")
            whole = Tensor(file.parent / self.place["location"])
            self.raw = whole[start : start + int(length)] if length is not None else whole[start:]
        if self.raw is not None:
            return self._scalar(self.raw.bitcast(self.dtype).reshape(self.dims).to(Device.DEFAULT))
        if self.floats:
            return Tensor(self.floats).bitcast(self.dtype).reshape(self.dims)
        if not self.numbers:
            raise ValueError(f"tensor {self.name!r} holds no numbers")
        if self.dtype in HALVES:  # by their bits
            return Tensor(self.numbers, dtype=dtypes.uint16).bitcast(self.dtype).reshape(self.dims)
        return Tensor(self.numbers, dtype=self.dtype).reshape(self.dims)

    def _scalar(self, tensor: Tensor) -> Tensor:
        """A single number as a constant that kernels hold; Python before 3.12 reads no float16."""
        if self.dims:
            return tensor
        wide = tensor.cast(dtypes.float32) if self.dtype == dtypes.float16 else tensor
        return Tensor(wide.item(), dtype=self.dtype).reshape(())


def _domain(known: Any, name: str | None) -> Any:
    """A domain of tinygrad's, or a name that only imports have: a node of another is refused beforehand."""
    try:
        return known(name)
    except ValueError:
        return name


# ---- operators


def protect(runner: onnx.OnnxRunner) -> None:
    """Let no operator of a graph, or of its branches, write to its operands, and mend what others do."""
    runner.onnx_ops = {
        **runner.onnx_ops,
        **{name: on_copies(runner.onnx_ops[name]) for name in IN_PLACE},
        "GroupNormalization": _by_opset(runner.onnx_ops["GroupNormalization"]),
    }
    runner.const_names = {name for name in runner.const_names if not _is_table(runner, name)}
    for node in runner.graph_nodes:
        for branch in node.opts.values():
            if isinstance(branch, onnx.OnnxRunner):
                protect(branch)


def _is_table(runner: onnx.OnnxRunner, name: str) -> bool:
    """Whether a constant has more dimensions than the runner's Gather knows in a constant."""
    made = (node.opts.get("value") for node in runner.graph_nodes if name in node.outputs)
    value = runner.graph_values.get(name, next(made, None))
    return isinstance(value, Tensor) and value.ndim > 1


def _by_opset(operator: Any) -> Any:
    """GroupNormalization as of opset 18 too, when scale and bias had a number for each group."""

    def of_groups(x: Tensor, scale: Tensor, bias: Tensor, num_groups: int, **rest: Any) -> Any:
        times = int(x.shape[1]) // num_groups
        each = [one.repeat_interleave(times) for one in (scale, bias)]
        return operator(x, *each, num_groups=num_groups, **rest)

    domain = onnx.Domain.ONNX
    return {onnx.OpSetId(domain, 1): of_groups, onnx.OpSetId(domain, 21): operator}


def on_copies(operator: Any) -> Any:
    """An operator of tinygrad's, or one for each opset, that computes on copies of its operands."""
    if isinstance(operator, dict):
        return {opset: on_copies(one) for opset, one in operator.items()}

    @wraps(operator)
    def computed(*operands: Any, **attributes: Any) -> Any:
        copies = (one.clone() if isinstance(one, Tensor) else one for one in operands)
        return operator(*copies, **attributes)

    return computed
