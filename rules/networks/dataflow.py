"""Where an ONNX graph hands values of its inputs to operators that tinygrad runs in Python.

Such an operator reads a value while it is captured: a bound, a shape, a repeat count. What it reads is part
of the capture from then on, whatever is fed later, so it must follow from the file and from shapes alone.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rules.errors import SourceError
from rules.keeping import files
from rules.networks.onnxfile import DAMAGED, Field, GraphReader, TensorSpec, Undeclared, Wire
from rules.networks.operators import ALL_INPUTS

GRAPH: Final = 7
NODE, INITIALIZER, INPUT, OUTPUT = 1, 5, 11, 12
# What these give follows from the shape of what they take, and a capture has one shape.
OF_SHAPES: Final = frozenset(("Shape", "Size", "EyeLike", "OptionalHasElement"))
# Chooses on the host only where its branches differ in shape.
CHOICE: Final = "If"


@dataclass(frozen=True)
class HostRead:
    """A value that a node reads on the host, and the graph input that it was computed from."""

    node: str
    operator: str
    position: int
    value: str
    origin: str


@dataclass
class _Node:
    operator: str
    name: str
    inputs: list[str]
    outputs: list[str]
    graphs: list[Field]


def host_reads(path: Path, positions: Mapping[str, frozenset[int]]) -> list[HostRead]:
    """Every value that the ONNX file at `path` computes from its inputs and then reads on the host.

    `positions` are the inputs that operators read so (see `operators.read_on_host`). Raises SourceError when
    the file is damaged.
    """
    try:
        with files.opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            flow = _Flow(Wire(file, size, path.name), positions)
            graphs = [part for part in flow.wire.fields(0, size) if part.number == GRAPH]
            return [read for graph in graphs for read in flow.graph(graph, None)]
    except OSError as error:
        raise SourceError(f"{path.name}: cannot be read: {error.strerror}", fix=DAMAGED) from error


class _Flow:
    """`origins` maps each value that depends on the data to one graph input that it was computed from."""

    def __init__(self, wire: Wire, positions: Mapping[str, frozenset[int]]) -> None:
        self.wire = wire
        self.reader = GraphReader(wire)
        self.positions = positions
        self.origins: dict[str, str] = {}

    def graph(self, found: Field, given: str | None) -> Iterator[HostRead]:
        """Follow one graph in the order it is run; `given` is where the inputs of a subgraph come from."""
        parts = list(self.wire.message(found))
        fixed = {self.reader.tensor(part).name for part in parts if part.number == INITIALIZER}
        for part in parts:
            if part.number == INPUT and (name := self._name(part)) not in fixed:
                self.origins.setdefault(name, given or name)
        for part in parts:
            if part.number == NODE:
                yield from self._follow(self._node(part))

    def _follow(self, node: _Node) -> Iterator[HostRead]:
        origin = next((self.origins[name] for name in node.inputs if name in self.origins), None)
        yield from self._reads(node)
        for graph in node.graphs:
            yield from self.graph(graph, origin)
            inner = (self._name(part) for part in self.wire.message(graph) if part.number == OUTPUT)
            origin = origin or next((self.origins[name] for name in inner if name in self.origins), None)
        if origin is not None and node.operator not in OF_SHAPES:
            for name in node.outputs:
                self.origins.setdefault(name, origin)

    def _reads(self, node: _Node) -> Iterator[HostRead]:
        if node.operator == CHOICE and self._is_computed(node):
            return
        positions = self.positions.get(node.operator, frozenset())
        for position, name in enumerate(node.inputs):
            if name in self.origins and (position in positions or positions is ALL_INPUTS):
                yield HostRead(node.name, node.operator, position, name, self.origins[name])

    def _is_computed(self, node: _Node) -> bool:
        """Whether all branches declare the same fixed shapes, between which a kernel can choose."""
        try:
            first, *others = [self._outputs(graph) for graph in node.graphs] or [[]]
        except Undeclared:
            return False
        fixed = all(isinstance(size, int) for spec in first for size in spec.shape)
        return bool(others) and fixed and all(other == first for other in others)

    def _outputs(self, graph: Field) -> list[TensorSpec]:
        specs: dict[str, TensorSpec] = {}
        for part in self.wire.message(graph):
            if part.number == OUTPUT:
                self.reader.add(specs, part, "output")
        return list(specs.values())

    def _name(self, value: Field) -> str:
        """That of a ValueInfoProto."""
        return next((self.wire.text(part) for part in self.wire.message(value) if part.number == 1), "")

    def _node(self, found: Field) -> _Node:
        node = _Node("", "", [], [], [])
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
                    inner = self.wire.message(part)
                    node.graphs += [one for one in inner if one.number in (6, 11)]
        return node
