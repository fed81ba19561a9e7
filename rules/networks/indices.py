"""Which inputs of a network are indices, and into tables of which size.

An index outside its table means something else to every runtime, so that no two could be compared on it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rules.errors import SourceError
from rules.networks.onnxfile import Field, GraphReader, Wire

GRAPH: Final = 7
NODE, INITIALIZER, INPUT, VALUE_INFO = 1, 5, 11, 13
# Operator → (operand that is the table, operand that holds indices) for each index that it takes.
ALONG_AN_AXIS: Final = {
    "Gather": ((0, 1),),
    "GatherElements": ((0, 1),),
    "Scatter": ((0, 1),),
    "ScatterElements": ((0, 1),),
    "EmbedLayerNormalization": ((2, 0), (4, 1), (3, 8)),
}
ALONG_MANY: Final = {"GatherND": ((0, 1),), "ScatterND": ((0, 1),)}
COUNTED: Final = {"OneHot": ((1, 0),)}  # its table is a number
PASSED_ON: Final = frozenset(
    ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand", "Tile")
)
CUT: Final = frozenset(("Slice", "Split", "Concat"))
Dims = tuple[int | str, ...]


@dataclass
class Node:
    """What is read of a node; `numbers` are its integer attributes."""

    operator: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)


def sizes(path: Path) -> dict[str, int | None]:
    """Inputs of the ONNX file at `path` that reach the indices of an operator unchanged: input → entries of
    the smallest table there, None where the file does not say its size. Raises SourceError if it is damaged.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        wire = Wire(file, size, path.name)
        return _Reading(wire).sizes(one for one in wire.fields(0, size) if one.number == GRAPH)


class _Reading:
    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.reader = GraphReader(wire)
        self.dims: dict[str, Dims] = {}
        self.values: dict[str, int] = {}  # of integers that are alone in their tensor
        self.nodes: list[Node] = []
        self.inputs: list[str] = []

    def sizes(self, graphs: Iterator[Field]) -> dict[str, int | None]:
        for graph in graphs:
            for part in self.wire.message(graph):
                self.take(part)
        bounds: dict[str, int | None] = {}
        for node in reversed(self.nodes):  # whoever reads a value comes after whoever makes it
            self.bound(node, bounds)
            self.pass_on(node, bounds)
        return {name: bounds[name] for name in self.inputs if name in bounds}

    def take(self, part: Field) -> None:
        if part.number == NODE:
            self.nodes.append(self.node(part))
        elif part.number == INITIALIZER:
            self.tensor(part)
        elif part.number in (INPUT, VALUE_INFO):
            self.described(part)

    def described(self, part: Field) -> None:
        """A value's shape; that of a sequence, or none at all, tells nothing here."""
        name = next((self.wire.text(one) for one in self.wire.message(part) if one.number == 1), "")
        kind = next((one for one in self.wire.message(part) if one.number == 2), None)
        if part.number == INPUT:
            self.inputs.append(name)
        try:
            self.dims.setdefault(name, self.reader.spec(kind, name).shape)
        except SourceError:
            return

    def tensor(self, part: Field, name: str = "") -> None:
        tensor = self.reader.tensor(part)
        self.dims[name or tensor.name] = tuple(tensor.dims)
        if tensor.dtype in (6, 7) and all(size == 1 for size in tensor.dims):  # int32, int64
            for one in self.wire.message(part):
                if one.number == 9:
                    self.wire.file.seek(one.start)
                    raw = self.wire.file.read(min(one.stop - one.start, 8))
                    self.values[name or tensor.name] = int.from_bytes(raw, "little", signed=True)
                elif one.number in (5, 7):
                    self.values[name or tensor.name] = next(self.wire.integers(one), 0)

    def node(self, part: Field) -> Node:
        node = Node()
        attributes = []
        for one in self.wire.message(part):
            match one.number:
                case 1:
                    node.inputs.append(self.wire.text(one))
                case 2:
                    node.outputs.append(self.wire.text(one))
                case 4:
                    node.operator = self.wire.text(one)
                case 5:
                    attributes.append(one)
        for one in attributes:
            self.attribute(node, one)
        return node

    def attribute(self, node: Node, part: Field) -> None:
        name = ""
        for one in self.wire.message(part):
            if one.number == 1:
                name = self.wire.text(one)
            elif one.number == 3:
                node.numbers[name] = self.wire.integer(one)
            elif one.number == 5 and node.operator in ("", "Constant") and node.outputs:
                self.tensor(one, node.outputs[0])

    def bound(self, node: Node, bounds: dict[str, int | None]) -> None:
        """Note how large the tables are that the node's indices index."""
        for operators, count in ((ALONG_AN_AXIS, self.axis), (ALONG_MANY, self.many), (COUNTED, self.number)):
            for table, index in operators.get(node.operator, ()):
                if max(table, index) < len(node.inputs) and node.inputs[index]:
                    _lower(bounds, node.inputs[index], count(node, node.inputs[table], node.inputs[index]))

    def axis(self, node: Node, table: str, index: str) -> int | None:
        dims = self.dims.get(table)
        axis = node.numbers.get("axis", 0)
        return _number(dims[axis]) if dims and -len(dims) <= axis < len(dims) else None

    def many(self, node: Node, table: str, index: str) -> int | None:
        first = node.numbers.get("batch_dims", 0)
        deep = _number((self.dims.get(index) or ("?",))[-1])
        found = [_number(one) for one in self.dims.get(table, ())[first:]]
        found = found[:deep] if deep else found
        known = [one for one in found if one is not None]
        return min(known) if known and len(known) == len(found) else None

    def number(self, node: Node, table: str, index: str) -> int | None:
        return self.values.get(table)

    def pass_on(self, node: Node, bounds: dict[str, int | None]) -> None:
        reached = [name for name in node.outputs if name in bounds]
        for name in reached if node.operator in PASSED_ON | CUT else ():
            for source in node.inputs if node.operator == "Concat" else node.inputs[:1]:
                _lower(bounds, source, bounds[name])


def _number(size: int | str) -> int | None:
    return size if isinstance(size, int) else None


def _lower(bounds: dict[str, int | None], name: str, size: int | None) -> None:
    known = [one for one in (bounds.get(name), size) if one is not None]
    bounds[name] = min(known, default=None)
