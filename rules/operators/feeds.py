"""Inputs that fit an operator: within its domain, indices within what they index, of several magnitudes."""

import math
from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

from rules.operators.nodes import DATA, FOLDED, VALUE, WEIGHT, Known, Node, Operand, numpy_name

# What a float is drawn from, by pass: within ±1, ±100 and ±0.001, and over five orders of magnitude at once.
MAGNITUDES: Final = (1.0, 100.0, 1e-3, "mixed")
FEWER: Final = (1.0, 100.0)  # of large nodes
MOST_INTEGER: Final = 100
SUMS: Final = ("Conv", "ConvTranspose", "MatMul", "Gemm")
# Operators that read one of their inputs as places in another: input → (input that is indexed, whole places).
GATHERS: Final = ("Gather", "GatherElements", "ScatterElements", "Scatter", "ArrayFeatureExtractor")
NEGATIVES: Final = ("Gather", "GatherElements", "ScatterElements", "Scatter", "GatherND", "ScatterND")
BY_VECTOR: Final = ("GatherND", "ScatterND")
TIES: Final = ("TopK", "ArgMax", "ArgMin", "Hardmax", "MaxPool")

# (operator, input) → the interval its floats come from at magnitude 1; None as input: every one.
DOMAINS: Final = {
    ("Log", 0): (1e-3, 100.0),
    ("ReduceLogSum", 0): (1e-3, 2.0),
    ("Sqrt", 0): (0.0, 100.0),
    ("Acos", 0): (-1.0, 1.0),
    ("Asin", 0): (-1.0, 1.0),
    ("Atanh", 0): (-0.95, 0.95),
    ("Acosh", 0): (1.0, 100.0),
    ("Tan", 0): (-1.4, 1.4),
    ("Pow", 0): (0.1, 3.0),
    ("Pow", 1): (-3.0, 3.0),
    ("ReduceProd", 0): (0.5, 1.5),
    ("BatchNormalization", 4): (0.5, 2.0),
    ("NegativeLogLikelihoodLoss", 0): (-5.0, -0.1),
    ("NegativeLogLikelihoodLoss", 2): (0.1, 1.0),
    ("SoftmaxCrossEntropyLoss", 2): (0.1, 1.0),
}
DIVISORS: Final = (("Div", 1), ("Mod", 1), ("Reciprocal", 0))


class Feeds:
    """What one node is fed; the same node is fed the same in every process."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.operator: str = node.proto.op_type
        self.random = np.random.default_rng(int(node.digest[:8], 16))
        self.given = {one.name: one.known.value for one in node.operands if one.kind in (VALUE, FOLDED)}
        self.weights = {one.name: self._drawn(one, 1.0) for one in node.operands if one.kind == WEIGHT}

    def passes(self, *, large: bool) -> list[dict[str, Any]]:
        """By pass, every data operand by name."""
        data = [one for one in self.node.operands if one.kind == DATA]
        if not data:
            return [{}]
        magnitudes = FEWER if large else MAGNITUDES
        return [{one.name: self._drawn(one, magnitude) for one in data} for magnitude in magnitudes]

    def _drawn(self, operand: Operand, magnitude: float | str) -> Any:
        position = self._position(operand)
        known = operand.known
        if numpy_name(known.dtype) == "bool":
            return self.random.integers(0, 2, known.shape).astype(bool)
        if np.dtype(numpy_name(known.dtype)).kind in "iu":
            return self._whole(position, known)
        return self._float(operand, position, known, magnitude)

    def _position(self, operand: Operand) -> int:
        names = list(self.node.proto.input)
        return names.index(operand.name) if operand.name in names else -1

    # ---- floats

    def _float(self, operand: Operand, position: int, known: Known, magnitude: float | str) -> Any:
        kind = np.dtype(numpy_name(known.dtype))
        if self.operator in TIES:
            return self._distinct(known, magnitude).astype(kind)
        if position > 0 and ("QLinear" in self.operator or "uantizeLinear" in self.operator):
            return self.random.uniform(0.01, 0.1, known.shape).astype(kind)
        if (interval := DOMAINS.get((self.operator, position))) is not None:
            return self.random.uniform(*interval, known.shape).astype(kind)
        drawn = self._spread(known.shape, magnitude)
        if (self.operator, position) in DIVISORS:
            sizes = self.random.uniform(0.5, 2.0, known.shape)
            return (np.copysign(sizes, drawn) * (magnitude if isinstance(magnitude, float) else 1)).astype(
                kind
            )
        if self.operator == "Cast" and self._unsigned_target():
            drawn = np.abs(drawn)
        if operand.kind == WEIGHT or (position == 1 and self.operator in SUMS):
            drawn = self.random.standard_normal(known.shape) / math.sqrt(terms(self.node))
        return np.asarray(drawn).astype(kind)

    def _spread(self, shape: tuple[int, ...], magnitude: float | str) -> Any:
        drawn = self.random.uniform(-1, 1, shape)
        if isinstance(magnitude, float):
            if drawn.size:  # both ends are always there
                drawn.flat[[drawn.size // 3, drawn.size // 2]] = -1, 1
            return drawn * magnitude
        return drawn * 100 * 10 ** self.random.uniform(-5, 0, shape)

    def _distinct(self, known: Known, magnitude: float | str) -> Any:
        """No two alike, as far as float16 has so many numbers: which of equals comes first is no error."""
        order = self.random.permutation(known.size).reshape(known.shape)
        scale = magnitude if isinstance(magnitude, float) else 10.0
        return (order - known.size / 2) * scale / max(1, known.size / 2)

    def _unsigned_target(self) -> bool:
        target = next(one.i for one in self.node.proto.attribute if one.name == "to")
        unsigned = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
        return target in unsigned

    # ---- whole numbers

    def _whole(self, position: int, known: Known) -> Any:
        kind = np.dtype(numpy_name(known.dtype))
        if (limit := self._indexed(position)) is not None:
            return self._indices(known, *limit).astype(kind)
        low, high = (0, 256) if kind == np.uint8 else (0 if kind.kind == "u" else -MOST_INTEGER, MOST_INTEGER)
        if self.operator == "Cast" and self._unsigned_target():
            low = 0
        if (self.operator, position) in DIVISORS or (self.operator, position) == ("Pow", 1):
            low, high = 1, 4
        if kind == np.int8:
            low, high = -100, 100
        return self.random.integers(low, high, known.shape).astype(kind)

    def _indexed(self, position: int) -> tuple[Any, bool] | None:
        """How many places an index input chooses from (for vectors of indices one number each), and whether
        it may count from the end."""
        shapes = [self._shape(at) for at in range(len(self.node.proto.input))]
        negative = self.operator in NEGATIVES
        if position == 1 and self.operator in GATHERS:
            axis = self._attribute("axis", 0) if self.operator != "ArrayFeatureExtractor" else -1
            return shapes[0][axis], negative
        if position == 1 and self.operator in BY_VECTOR:
            start = self._attribute("batch_dims", 0)
            return np.array(shapes[0][start : start + shapes[1][-1]]), negative
        if position == 0 and self.operator == "OneHot":
            return int(np.ravel(self.given.get(self.node.proto.input[1], 4))[0]), False
        if position == 1 and self.operator in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
            return shapes[0][1], False
        if self.operator == "EmbedLayerNormalization":
            tables = {0: 2, 1: 4, 8: 3}
            return (shapes[tables[position]][0], False) if position in tables else None
        if position == 3 and self.operator == "RotaryEmbedding":
            return shapes[1][0], False
        if position == 1 and self.operator == "MaxUnpool":
            return int(np.prod(shapes[0])), False
        return None

    def _indices(self, known: Known, limit: Any, negative: bool) -> Any:
        """Places, some counted from the end; no place twice where the last writer would win."""
        if self._must_differ():
            places = self._apart(known, limit)
        else:
            places = self.random.integers(0, np.broadcast_to(limit, known.shape))
        from_end = self.random.integers(0, 4, known.shape) == 0
        return np.where(from_end & negative, places - limit, places)

    def _must_differ(self) -> bool:
        scatters = ("ScatterElements", "Scatter", "ScatterND", "MaxUnpool")
        return self.operator in scatters and self._attribute("reduction", b"none") == b"none"

    def _apart(self, known: Known, limit: Any) -> Any:
        if self.operator == "ScatterND":
            count = known.size // known.shape[-1]
            chosen = self.random.permutation(int(np.prod(limit)))[:count]
            chosen = np.resize(chosen, count)
            return np.stack(np.unravel_index(chosen, limit), -1).reshape(known.shape)
        if self.operator == "MaxUnpool":
            return self.random.permutation(max(limit, known.size))[: known.size].reshape(known.shape)
        axis = self._attribute("axis", 0) % len(known.shape)
        shape = tuple(limit if at == axis else size for at, size in enumerate(known.shape))
        return np.take(self.random.random(shape).argsort(axis), range(known.shape[axis]), axis)

    def _shape(self, position: int) -> tuple[int, ...]:
        name = self.node.proto.input[position]
        return next((one.known.shape for one in self.node.operands if one.name == name), ())

    def _attribute(self, name: str, default: Any) -> Any:
        for one in self.node.proto.attribute:
            if one.name == name:
                return helper.get_attribute_value(one)
        return default


def terms(node: Node) -> int:
    """How many products or numbers one number of the output is at most the sum of."""
    shapes = [one.known.shape for one in node.operands]
    sizes = [one.known.size for one in node.operands]
    operator = node.proto.op_type
    if operator == "Conv" and len(shapes) > 1:
        return max(1, sizes[1] // max(1, shapes[1][0]))
    if operator == "ConvTranspose" and len(shapes) > 1:
        return max(1, sizes[1] // max(1, shapes[1][1]))
    if operator in ("MatMul", "Gemm") and shapes[0]:
        return max(1, *shapes[0][-2:])
    if operator.startswith("Reduce"):
        return max(1, *sizes)
    return max((size for shape in shapes for size in shape), default=1)
