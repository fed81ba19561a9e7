"""ONNX files read without their weights, by the field numbers of the public onnx.proto.

Weights are skipped by seeking, so half a gigabyte is read in the time its node list takes. The bytes are
somebody else's: depth, count and text are bounded, and whatever does not fit is a SourceError.
"""

import base64
import binascii
import contextlib
import io
import math
import os
import pickle
import pickletools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, TypeVar

from rules.errors import SourceError
from rules.keeping import files

T = TypeVar("T")

WINDOW: Final = 1 << 16
MAX_FIELDS: Final = 4_000_000
MAX_STRING: Final = 1 << 20
MAX_TEXT: Final = 64 << 20
MAX_GRAPH_DEPTH: Final = 16
MAX_RANK: Final = 64
MAX_SLICES_BYTES: Final = 1 << 16
MAX_OPCODES: Final = 8192
MAX_SHARED: Final = 32

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_SIZES: Final = {FIXED64: 8, FIXED32: 4}

# TensorProto.DataType: name and bits per element (0: no fixed size, or a packing that differs by version).
DTYPES: Final[Mapping[int, tuple[str, int]]] = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8e4m3fn", 8),
    18: ("float8e4m3fnuz", 8),
    19: ("float8e5m2", 8),
    20: ("float8e5m2fnuz", 8),
    21: ("uint4", 0),
    22: ("int4", 0),
    23: ("float4e2m1", 0),
    24: ("float8e8m0", 8),
    25: ("uint2", 0),
    26: ("int2", 0),
    27: ("float6e2m3", 0),
    28: ("float6e3m2", 0),
}
# ModelProto: the wire type of each field that may open a file.
MODEL_FIELDS: Final = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
DAMAGED: Final = "fetch the file again from its source, or pin the right one in models.toml"

ATOMS: Final = frozenset(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "GLOBAL", "STACK_GLOBAL"))
PUTS: Final = frozenset(("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT"))
GETS: Final = frozenset(("GET", "BINGET", "LONG_BINGET"))
BUILDS: Final = frozenset(("MARK", "EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "NEWOBJ", "REDUCE"))
TUPLES: Final = frozenset(("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"))
PLAIN: Final = frozenset(
    ("PROTO", "FRAME", "STOP", "NONE", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1")
)
# All that Python writes for a dict of slices, in protocols 0 to 5.
SLICE_OPCODES: Final = ATOMS | PUTS | GETS | BUILDS | TUPLES | PLAIN
SLICE_GLOBALS: Final = frozenset((("builtins", "slice"), ("__builtin__", "slice")))


def shown(text: str) -> str:
    """`text` quoted for an error message, cut to a line's worth."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def clean(text: str) -> str:
    """`text` bare where a list of names reads better so, quoted when it could upset a terminal or a line."""
    return text if text.isprintable() and len(text) <= 80 else shown(text)


@dataclass(frozen=True)
class TensorSpec:
    """A graph's input or output; a dimension is its size, its symbol, or "?" when the file leaves it open."""

    dtype: str
    shape: tuple[int | str, ...]

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The shape, unless some of it is open."""
        sizes = tuple(size for size in self.shape if isinstance(size, int))
        return sizes if len(sizes) == len(self.shape) else None

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join(clean(str(size)) for size in self.shape)})"


@dataclass(frozen=True)
class OnnxSummary:
    """What an ONNX file says about itself; the default domain is "" throughout.

    `weights_bytes` counts tensors in the file and outside of it. `external` maps each outside file, as the
    model names it, to the bytes that it must at least hold. Dicts keep the order of the file.
    """

    ir_version: int
    opsets: dict[str, int]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    operators: tuple[tuple[str, str], ...]
    initializers: int
    weights_bytes: int
    external: dict[str, int]
    metadata: dict[str, str]
    sparse: tuple[str, ...] = ()  # names of sparse tensors, sorted


class Field(NamedTuple):
    """One protobuf field: `value` is set for a varint, `start` and `stop` bound its payload in the file."""

    number: int
    wire: int
    value: int
    start: int
    stop: int


class Wire:
    """Protobuf's wire format (protobuf.dev/programming-guides/encoding) over a file, one window at a time."""

    def __init__(self, file: BinaryIO, size: int, name: str) -> None:
        self.file, self.size, self.name = file, size, name
        self.window, self.base = b"", 0
        self.fields_left, self.text_left = MAX_FIELDS, MAX_TEXT

    def damage(self, cause: str) -> SourceError:
        return SourceError(f"{self.name}: {cause}", fix=DAMAGED)

    def truncated(self, stop: int) -> SourceError:
        return self.damage(
            f"the file is truncated: it goes on to byte {stop} at least, and ends at {self.size}"
        )

    def byte(self, at: int) -> int:
        offset = at - self.base
        if not 0 <= offset < len(self.window):
            self.file.seek(at)
            self.window, self.base, offset = self.file.read(WINDOW), at, 0
            if not self.window:
                raise self.truncated(at + 1)
        return self.window[offset]

    def varint(self, at: int, limit: int) -> tuple[int, int]:
        """The unsigned 64-bit number at `at`, and the place after it."""
        value = 0
        for shift in range(10):
            if at + shift >= limit:
                raise self.overrun(at + shift + 1, at)
            byte = self.byte(at + shift)
            value |= (byte & 0x7F) << 7 * shift
            if byte < 0x80:
                return value & 0xFFFF_FFFF_FFFF_FFFF, at + shift + 1
        raise self.damage(f"not valid ONNX, a number at byte {at} runs on past 10 bytes")

    def overrun(self, stop: int, at: int) -> SourceError:
        if stop > self.size:
            return self.truncated(stop)
        return self.damage(f"not valid ONNX, the field at byte {at} runs past the end of its message")

    def fields(self, start: int, stop: int) -> Iterator[Field]:
        at = start
        while at < stop:
            if self.fields_left == 0:
                raise self.damage(f"it holds more than {MAX_FIELDS} fields, which no driving model needs")
            self.fields_left -= 1
            tag, after = self.varint(at, stop)
            found = self.payload(tag, after, stop)
            yield found
            at = found.stop

    def payload(self, tag: int, at: int, limit: int) -> Field:
        number, wire, value, start = tag >> 3, tag & 7, 0, at
        if number == 0 or wire not in (VARINT, FIXED64, BYTES, FIXED32):
            raise self.damage(f"not valid ONNX, byte {at} ends a field tag {tag} that protobuf does not have")
        if wire == VARINT:
            value, stop = self.varint(at, limit)
        elif wire == BYTES:
            length, start = self.varint(at, limit)
            stop = start + length
        else:
            stop = start + FIXED_SIZES[wire]
        if stop > limit:
            raise self.overrun(stop, at)
        return Field(number, wire, value, start, stop)

    def expect(self, found: Field, wire: int) -> None:
        if found.wire != wire:
            raise self.damage(
                f"not valid ONNX, field {found.number} before byte {found.stop} has wire type {found.wire}, "
                f"expected {wire}"
            )

    def message(self, found: Field) -> Iterator[Field]:
        self.expect(found, BYTES)
        return self.fields(found.start, found.stop)

    def integer(self, found: Field) -> int:
        self.expect(found, VARINT)
        return signed(found.value)

    def integers(self, found: Field) -> Iterator[int]:
        """A repeated integer, packed or not: writers do both."""
        if found.wire == VARINT:
            yield signed(found.value)
            return
        self.expect(found, BYTES)
        at = found.start
        while at < found.stop:
            value, at = self.varint(at, found.stop)
            yield signed(value)

    def text(self, found: Field) -> str:
        self.expect(found, BYTES)
        length = found.stop - found.start
        if length > min(MAX_STRING, self.text_left):
            raise self.damage(f"a name or metadata text of {length} bytes is over the limit of {MAX_STRING}")
        self.text_left -= length
        self.file.seek(found.start)
        content = self.file.read(length)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise self.damage(f"not valid ONNX, the text at byte {found.start} is not UTF-8") from None


def signed(value: int) -> int:
    """`value`, an unsigned 64-bit number, as protobuf's int64."""
    return value - (1 << 64) if value >> 63 else value


@dataclass
class Tensor:
    """A TensorProto without its data; `stored` and `raw` are bytes in the file."""

    name: str = ""
    dtype: int = 0
    dims: list[int] = field(default_factory=list)
    stored: int = 0
    raw: int | None = None
    is_external: bool = False
    place: dict[str, str] = field(default_factory=dict)


@dataclass
class Graph:
    """A GraphProto's own names: what its subgraphs hold is in the tally."""

    inputs: dict[str, TensorSpec] = field(default_factory=dict)
    outputs: dict[str, TensorSpec] = field(default_factory=dict)
    initialized: set[str] = field(default_factory=set)


class Undeclared(SourceError):
    """A value of a sound file whose type or shape the file does not tell."""

    def __init__(self, file: str, cause: str) -> None:
        super().__init__(
            f"{file}: {cause}, expected a tensor with a type and a shape",
            fix="export the model again so that it declares both",
        )


class GraphReader:
    """Reads graphs and what they are made of, and tallies operators and weights of all of them."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.operators: set[tuple[str, str]] = set()
        self.initializers = 0
        self.weights_bytes = 0
        self.external: dict[str, int] = {}
        self.sparse: set[str] = set()

    def graph(self, found: Field, depth: int = 0) -> Graph:
        if depth > MAX_GRAPH_DEPTH:
            raise self.wire.damage(f"its graphs are nested more than {MAX_GRAPH_DEPTH} deep")
        graph = Graph()
        for part in self.wire.message(found):
            match part.number:
                case 1:
                    self.node(part, depth)
                case 5:
                    graph.initialized.add(self.weigh(self.tensor(part)))
                    self.initializers += 1
                case 11 | 12:
                    values, what = (graph.inputs, "input") if part.number == 11 else (graph.outputs, "output")
                    # A branch need not say what it takes and gives: that follows from its nodes.
                    with contextlib.suppress(*((Undeclared,) if depth else ())):
                        self.add(values, part, what)
                case 15:
                    graph.initialized.add(self.scattered(part))
        return graph

    def scattered(self, found: Field) -> str:
        """Read a SparseTensorProto: values that bear its name, and where they stand."""
        names = [self.weigh(self.tensor(part)) for part in self.wire.message(found) if part.number in (1, 2)]
        self.sparse.update(names[:1])
        return next(iter(names), "")

    def training(self, found: Field) -> None:
        """Read a TrainingInfoProto for the weights in it: nothing here runs it, but whoever loads it follows
        their places."""
        for part in self.wire.message(found):
            if part.number in (1, 2):
                self.graph(part, 1)

    def function(self, found: Field) -> None:
        """Read a FunctionProto for the same; its operators count where it is called."""
        for part in self.wire.message(found):
            if part.number == 7:
                self.node(part, 1)

    def node(self, found: Field, depth: int) -> None:
        domain = operator = ""
        for part in self.wire.message(found):
            match part.number:
                case 4:
                    operator = self.wire.text(part)
                case 5:
                    self.attribute(part, depth)
                case 7:
                    domain = self.wire.text(part)
        if not operator:
            raise self.wire.damage(f"not valid ONNX, the node before byte {found.stop} names no operator")
        self.operators.add((plain_domain(domain), operator))

    def attribute(self, found: Field, depth: int) -> None:
        for part in self.wire.message(found):
            match part.number:
                case 5 | 10:
                    self.weigh(self.tensor(part))
                case 6 | 11:
                    self.graph(part, depth + 1)
                case 22 | 23:
                    self.scattered(part)

    def tensor(self, found: Field) -> Tensor:
        tensor = Tensor()
        for part in self.wire.message(found):
            match part.number:
                case 1:
                    self.extend(tensor.dims, part)
                case 2:
                    tensor.dtype = self.wire.integer(part)
                case 8:
                    tensor.name = self.wire.text(part)
                case 9:
                    self.wire.expect(part, BYTES)
                    tensor.raw = part.stop - part.start
                case 4 | 5 | 6 | 7 | 10 | 11:
                    tensor.stored += part.stop - part.start
                case 13:
                    key, value = self.entry(part)
                    tensor.place[key] = value
                case 14:
                    tensor.is_external = self.wire.integer(part) == 1
        return tensor

    def extend(self, dims: list[int], found: Field) -> None:
        for size in self.wire.integers(found):
            if size < 0 or len(dims) == MAX_RANK:
                raise self.wire.damage(
                    f"a tensor before byte {found.stop} has {size} as dimension {len(dims) + 1}, "
                    f"expected at most {MAX_RANK} dimensions of 0 or more"
                )
            dims.append(size)

    def weigh(self, tensor: Tensor) -> str:
        """Add a tensor's bytes to the tally, and give its name back."""
        _, bits = self.dtype(tensor.dtype, f"tensor {shown(tensor.name)}")
        needed = math.prod(tensor.dims) * bits // 8
        if tensor.is_external:
            self.weigh_external(tensor, needed)
        elif tensor.raw is not None and bits and tensor.raw != needed:
            raise self.wire.damage(
                f"tensor {shown(tensor.name)} holds {tensor.raw} bytes, expected {needed} by its shape"
            )
        else:
            self.weights_bytes += tensor.stored + (tensor.raw or 0)
        return tensor.name

    def weigh_external(self, tensor: Tensor, needed: int) -> None:
        location = tensor.place.get("location", "")
        if not location:
            raise self.wire.damage(
                f"tensor {shown(tensor.name)} lies in another file, and does not say which"
            )
        length = self.count(tensor, "length", needed)
        stop = self.count(tensor, "offset", 0) + length
        self.external[location] = max(self.external.get(location, 0), stop)
        self.weights_bytes += length

    def count(self, tensor: Tensor, key: str, default: int) -> int:
        text = tensor.place.get(key)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise self.wire.damage(
                f"tensor {shown(tensor.name)}: {key} is {shown(text)}, expected a byte count"
            )
        return int(text)

    def dtype(self, number: int, what: str) -> tuple[str, int]:
        if number not in DTYPES:
            raise self.wire.damage(f"{what} has the element type {number}, expected 1 to {max(DTYPES)}")
        return DTYPES[number]

    def add(self, values: dict[str, TensorSpec], found: Field, what: str) -> None:
        """Read a ValueInfoProto into `values`."""
        name, kind = "", None
        for part in self.wire.message(found):
            if part.number == 1:
                name = self.wire.text(part)
            elif part.number == 2:
                kind = part
        if not name or name in values:
            raise self.wire.damage(f"not valid ONNX, {what} {shown(name)} is there twice or has no name")
        values[name] = self.spec(kind, f"{what} {shown(name)}")

    def spec(self, kind: Field | None, what: str) -> TensorSpec:
        """Read a TypeProto; only tensors can enter a compile."""
        tensors = [part for part in self.wire.message(kind) if part.number == 1] if kind else []
        if len(tensors) != 1:
            raise Undeclared(self.wire.name, f"{what} is not a tensor")
        dtype, shape = 0, None
        for part in self.wire.message(tensors[0]):
            if part.number == 1:
                dtype = self.wire.integer(part)
            elif part.number == 2:
                shape = self.shape(part, what)
        if shape is None:
            raise Undeclared(self.wire.name, f"{what} has no shape")
        return TensorSpec(self.dtype(dtype, what)[0], shape)

    def shape(self, found: Field, what: str) -> tuple[int | str, ...]:
        dims = []
        for part in self.wire.message(found):
            if part.number == 1:
                dims.append(self.dimension(part, what))
            if len(dims) > MAX_RANK:
                raise self.wire.damage(f"{what} has more than {MAX_RANK} dimensions")
        return tuple(dims)

    def dimension(self, found: Field, what: str) -> int | str:
        size: int | str = "?"
        for part in self.wire.message(found):
            if part.number == 1:
                size = self.wire.integer(part)
            elif part.number == 2:
                size = self.wire.text(part) or "?"
        if isinstance(size, int) and size < 0:
            raise self.wire.damage(f"{what} has a dimension of {size}, expected 0 or more")
        return size

    def entry(self, found: Field) -> tuple[str, str]:
        """Read a StringStringEntryProto."""
        key = value = ""
        for part in self.wire.message(found):
            if part.number == 1:
                key = self.wire.text(part)
            elif part.number == 2:
                value = self.wire.text(part)
        return key, value

    def opset(self, found: Field) -> tuple[str, int]:
        """Read an OperatorSetIdProto."""
        domain, version = "", 0
        for part in self.wire.message(found):
            if part.number == 1:
                domain = self.wire.text(part)
            elif part.number == 2:
                version = self.wire.integer(part)
        return plain_domain(domain), version


def plain_domain(domain: str) -> str:
    """The default operator domain has two names."""
    return "" if domain == "ai.onnx" else domain


def read(path: Path) -> OnnxSummary:
    """The summary of the ONNX file at `path`.

    Of local functions and of training, only the outside files that hold their weights are in it.

    Raises SourceError when the file cannot be read, is no ONNX model, or is damaged or truncated.
    """
    try:
        with files.opened(path) as file:
            return _model(Wire(file, os.fstat(file.fileno()).st_size, path.name))
    except OSError as error:
        raise SourceError(f"{path.name}: cannot be read: {error.strerror}", fix=DAMAGED) from error


def _model(wire: Wire) -> OnnxSummary:
    reader, aside = GraphReader(wire), GraphReader(wire)
    aside.external = reader.external
    ir_version, graph, opsets, metadata = 0, None, dict[str, int](), dict[str, str]()
    for part in _model_fields(wire):
        match part.number:
            case 1:
                ir_version = wire.integer(part)
            case 7 if graph is None:
                graph = reader.graph(part)
            case 7:
                raise wire.damage("it holds two graphs, expected one")
            case 8:
                _once(wire, opsets, reader.opset(part), "opset import")
            case 20:
                aside.training(part)
            case 25:
                aside.function(part)
            case 14:
                _once(wire, metadata, reader.entry(part), "metadata key")
    if graph is None:
        raise wire.damage("it holds no graph, expected a model with one")
    return _summary(reader, graph, ir_version, opsets, metadata)


def _model_fields(wire: Wire) -> Iterator[Field]:
    for position, part in enumerate(wire.fields(0, wire.size)):
        if position == 0 and MODEL_FIELDS.get(part.number) != part.wire:
            raise wire.damage(
                f"not an ONNX model, it opens with protobuf field {part.number}, which those lack"
            )
        yield part


def _once(wire: Wire, known: dict[str, T], entry: tuple[str, T], what: str) -> None:
    if entry[0] in known:
        raise wire.damage(f"the {what} {shown(entry[0])} is there twice, expected once")
    known[entry[0]] = entry[1]


def _summary(
    reader: GraphReader, graph: Graph, ir_version: int, opsets: dict[str, int], metadata: dict[str, str]
) -> OnnxSummary:
    return OnnxSummary(
        ir_version=ir_version,
        opsets=opsets,
        inputs={name: spec for name, spec in graph.inputs.items() if name not in graph.initialized},
        outputs=graph.outputs,
        operators=tuple(sorted(reader.operators)),
        initializers=reader.initializers,
        weights_bytes=reader.weights_bytes,
        external=dict(sorted(reader.external.items())),
        metadata=metadata,
        sparse=tuple(sorted(reader.sparse)),
    )


class SliceUnpickler(pickle.Unpickler):
    """Knows one global, builtins.slice, and no persistent ids."""

    def find_class(self, module: str, name: str) -> type[slice]:
        if (module, name) not in SLICE_GLOBALS:
            raise refused(f"asks for {shown(f'{module}.{name}')}, expected builtins.slice only")
        return slice

    def persistent_load(self, pid: object) -> object:
        raise refused("asks for a persistent id, expected builtins.slice only")


def refused(cause: str) -> SourceError:
    """The error for `output_slices` metadata that holds anything but a dict of slices."""
    return SourceError(
        f"metadata output_slices: the pickle {cause}",
        fix="do not trust this file: get the model again from its publisher, and report it",
    )


def output_slices(metadata: Mapping[str, str]) -> dict[str, slice] | None:
    """The named slices of a model's flat output; None when its metadata has none.

    `metadata["output_slices"]` is base64 (line breaks allowed) of a pickled dict, str to slice. It is data
    from outside: the only global admitted is builtins.slice. Raises SourceError for all else.
    """
    text = metadata.get("output_slices")
    if text is None:
        return None
    try:
        content = base64.b64decode("".join(text.split()).encode(), validate=True)
    except (binascii.Error, ValueError):
        raise refused("is not valid base64") from None
    if len(content) > MAX_SLICES_BYTES:
        raise refused(f"is {len(content)} bytes, expected at most {MAX_SLICES_BYTES}")
    return _named_slices(_loaded(content))


def _loaded(content: bytes) -> object:
    try:
        _scan(content)
        return SliceUnpickler(io.BytesIO(content)).load()
    except SourceError:
        raise
    except Exception as error:  # damaged opcodes make pickle raise nearly any exception there is
        raise refused(f"is damaged: {shown(str(error))}") from None


def _scan(content: bytes) -> None:
    """Refuse what would cost time or memory out of proportion before any of it runs.

    Objects fetched again from the memo are what bombs are made of: a tuple of two of the tuple before, forty
    times, takes a trillion steps to hash. Names and the slice class repeat freely, all else a few times.
    """
    memo: dict[int, bool] = {}
    last, shared = "", 0
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        _admit(opcode.name, argument, count)
        if opcode.name in PUTS:
            memo[_index(argument, len(memo))] = last in ATOMS
            continue
        if opcode.name in GETS:
            shared += not memo.get(_index(argument, 0), False)
        if shared > MAX_SHARED:
            raise refused(f"repeats built objects more than {MAX_SHARED} times, as a memo bomb does")
        last = opcode.name


def _admit(name: str, argument: object, count: int) -> None:
    if count >= MAX_OPCODES:
        raise refused(f"has more than {MAX_OPCODES} steps, expected a dict of slices")
    if name in ("GLOBAL", "INST") and tuple(str(argument).split(" ", 1)) not in SLICE_GLOBALS:
        raise refused(f"asks for {shown(str(argument).replace(' ', '.'))}, expected builtins.slice only")
    if name not in SLICE_OPCODES:
        raise refused(f"uses the opcode {name}, which a dict of slices never does")
    if isinstance(argument, int) and name not in ("FRAME", *GETS, *PUTS) and abs(argument) >> 62:
        raise refused("holds an integer beyond 62 bits")


def _index(argument: object, default: int) -> int:
    """The memo index of a PUT or GET; a huge one would make pickle allocate a memo that large."""
    index = argument if isinstance(argument, int) else default
    if not 0 <= index < MAX_OPCODES:
        raise refused(f"uses the memo index {index}, expected less than {MAX_OPCODES}")
    return index


def _named_slices(loaded: object) -> dict[str, slice]:
    if not isinstance(loaded, dict):
        raise refused(f"holds a {type(loaded).__name__}, expected a dict")
    for name, value in loaded.items():
        if not isinstance(name, str):
            raise refused(f"has a key of type {type(name).__name__}, expected names")
        if not isinstance(value, slice):
            raise refused(f"holds a {type(value).__name__} under {shown(name)}, expected a slice")
        if not _is_plain(value):
            raise refused(f"holds, under {shown(name)}, a slice of other than integers in steps of 1")
    return loaded


def _is_plain(value: slice) -> bool:
    bounds = (value.start, value.stop)
    return all(bound is None or type(bound) is int for bound in bounds) and (
        value.step is None or (type(value.step) is int and value.step == 1)
    )
