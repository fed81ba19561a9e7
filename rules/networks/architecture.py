"""What of an ONNX file decides the kernels it compiles to: everything but the values of plain weights.

Two models of one architecture differ in nothing else, so a process that has compiled one has most of the
other's work behind it (see rules/builders/warm.py). Values that shape a graph belong to the architecture:
integers, and inputs of operators outside `WEIGHT_OPERATORS`. A weight of a single number does not, though
tinygrad bakes it into a kernel: that kernel is lowered anew. Of files outside of it, all bytes belong to it:
which of them are plain weights is not looked into.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rules.keeping import files
from rules.keeping.digests import sha256_of
from rules.networks import outside
from rules.networks.onnxfile import Field, GraphReader, Wire

FLOATS: Final = (1, 10, 11, 16)  # onnx.TensorProto: FLOAT, FLOAT16, DOUBLE, BFLOAT16
WEIGHT_OPERATORS: Final = frozenset(
    """Conv ConvTranspose Gemm MatMul Add Sub Mul Div PRelu
    LayerNormalization BatchNormalization GroupNormalization InstanceNormalization""".split()  # noqa: SIM905
)
GRAPH, OPSET = 7, 8
NODE, INITIALIZER = 1, 5
CHUNK = 1 << 20


def structure(path: Path) -> str:
    """sha256 over the architecture of the ONNX file at `path`. Raises SourceError when it is damaged."""
    beside = {name: sha256_of(path.parent / name) for name in outside.names(path)}
    with files.opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        reading = _Reading(Wire(file, size, path.name))
        reading.note("outside", beside)
        for part in reading.wire.fields(0, size):
            if part.number == GRAPH:
                reading.graph(part)
            elif part.number == OPSET:
                reading.add("opset", part)
    return reading.total.hexdigest()


class _Reading:
    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.reader = GraphReader(wire)
        self.total = hashlib.sha256()

    def graph(self, found: Field) -> None:
        parts = list(self.wire.message(found))
        baked = self._baked(part for part in parts if part.number == NODE)
        for part in parts:
            if part.number != INITIALIZER:
                self.add(str(part.number), part)
                continue
            tensor = self.reader.tensor(part)
            self.note("tensor", tensor.name, tensor.dtype, tensor.dims)
            if tensor.is_external or tensor.name in baked or tensor.dtype not in FLOATS:
                self.add("values", part)

    def _baked(self, nodes: Iterator[Field]) -> set[str]:
        """Names that some node reads otherwise than as plain weights."""
        names: set[str] = set()
        for node in nodes:
            parts = list(self.wire.message(node))
            operator = next((self.wire.text(part) for part in parts if part.number == 4), "")
            if operator not in WEIGHT_OPERATORS:
                names.update(self.wire.text(part) for part in parts if part.number == 1)
        return names

    def note(self, *values: Any) -> None:
        self.total.update(repr(values).encode())

    def add(self, label: str, part: Field) -> None:
        """A field's own bytes; a varint's payload is its value."""
        self.note(label, part.number, part.value, part.stop - part.start)
        self.wire.file.seek(part.start)
        left = part.stop - part.start
        while left and (chunk := self.wire.file.read(min(left, CHUNK))):
            self.total.update(chunk)
            left -= len(chunk)
