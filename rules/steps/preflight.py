"""What an ONNX file must be before a compile is worth starting: of the right kind, complete, in contract."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rules.counting import counted
from rules.errors import SourceError
from rules.keeping import files
from rules.networks import dataflow, onnxfile, openshapes, operators, sizes
from rules.networks import outside as outside_files
from rules.networks.onnxfile import OnnxSummary, TensorSpec, clean, shown

HEAD: Final = 1024
# The newest that the field's exporters write; one beyond may mean what we do not expect.
NEWEST_IR: Final = 14
NEWEST_OPSET: Final = 28
FEATURES: Final = 512
LFS_SPEC: Final = b"version https://git-lfs.github.com/spec/"

MAGIC: Final = (
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x7fELF", "a program"),
    (b"\x89PNG", "a picture"),
    (b"%PDF", "a PDF document"),
)
MODEL_TYPES: Final = ("vision_policy", "vision_multi_policy", "supercombo", "dmonitoring", "generic")
VISION, SUPERCOMBO, MONITORING = "driving_vision", "driving_supercombo", "dmonitoring_model"
POLICY, ON_POLICY, OFF_POLICY = "driving_policy", "driving_on_policy", "driving_off_policy"
POLICIES: Final = (ON_POLICY, OFF_POLICY, POLICY)
ROLES: Final = frozenset((VISION, SUPERCOMBO, MONITORING, *POLICIES))

RESERVED: Final = "self"  # of tinygrad's TinyJit.__call__, whose other arguments are the inputs by name

AGAIN: Final = "put the right file where models.toml says it is, or fetch it again from its source"
EXPORT: Final = "export the model again with the expected interface, or correct its source in models.toml"


@dataclass(frozen=True)
class Preflight:
    """An ONNX file that passed; slices are as the model wrote them, open or negative ends included."""

    summary: OnnxSummary
    output_slices: dict[str, slice] | None
    activations: int = 0  # bytes of all that its nodes compute, as far as shapes tell
    outside: tuple[str, ...] = ()  # files that hold its weights besides, as paths from its folder

    @property
    def model_checkpoint(self) -> str | None:
        return self.summary.metadata.get("model_checkpoint")

    def request(self) -> dict[str, object]:
        """The interface as a compile request holds it, in the file's order."""
        slices = self.output_slices
        return {
            "inputs": _specs(self.summary.inputs),
            "outputs": _specs(self.summary.outputs),
            "output_slices": None if slices is None else {name: _pair(cut) for name, cut in slices.items()},
            "model_checkpoint": self.model_checkpoint,
        }

    def as_json(self) -> dict[str, object]:
        """All that is known about the file, of JSON types only."""
        summary = self.summary
        return {
            "ir_version": summary.ir_version,
            "opsets": summary.opsets,
            "operators": [f"{domain}.{name}" if domain else name for domain, name in summary.operators],
            "initializers": summary.initializers,
            "weights_bytes": summary.weights_bytes,
            "external": list(self.outside),
            "metadata": {key: text for key, text in summary.metadata.items() if key != "output_slices"},
            **self.request(),
        }


def _specs(values: dict[str, TensorSpec]) -> dict[str, dict[str, object]]:
    return {name: {"dtype": spec.dtype, "shape": list(spec.shape)} for name, spec in values.items()}


def _pair(cut: slice) -> list[int | None]:
    return [cut.start, cut.stop]


def preflight(
    model_id: str,
    path: Path,
    *,
    tinygrad_root: Path,
    outside: Mapping[str, Path] | None = None,
    shapes: openshapes.Shapes | None = None,
) -> Preflight:
    """Check that the ONNX file at `path` can be compiled by the tinygrad package in `tinygrad_root`.

    `outside` says where the files lie that it keeps weights in, by path from its folder; None: right there.
    `shapes` gives inputs the sizes that the file leaves open.
    Raises SourceError, naming the model and the file, at the first thing that is wrong.
    """
    try:
        classify(model_id, path)
        summary = onnxfile.read(path)
        slices = _output_slices(path, summary)
        needed = check_external(path, summary, outside)
        summary = openshapes.closed(path.name, summary, shapes or {})
        check_interface(path, summary)
        activations = sizes.check(path, summary.inputs)
        check_operators(path, summary, tinygrad_root)
        check_frozen(path, tinygrad_root)
        check_slices(path, summary, slices)
    except SourceError as error:
        raise SourceError(f"{model_id}: {error.what}", fix=error.fix) from error
    return Preflight(summary, slices, activations, tuple(sorted(needed)))


def _output_slices(path: Path, summary: OnnxSummary) -> dict[str, slice] | None:
    try:
        return onnxfile.output_slices(summary.metadata)
    except SourceError as error:
        raise SourceError(f"{path.name}: {error.what}", fix=error.fix) from error


def classify(model_id: str, path: Path) -> None:
    """Raise a SourceError that says what the file at `path` is, when its first bytes show it is no model."""
    name = path.name
    if name.startswith("._"):
        raise SourceError(
            f"{name}: a macOS side file, expected a model", fix="delete it; the model is beside it"
        )
    if not path.is_file():
        raise SourceError(f"{name}: no file is there, expected an ONNX model", fix=f"doit onnx:{model_id}")
    with files.opened(path) as file:
        head = file.read(HEAD)
    if not head:
        raise SourceError(f"{name}: an empty file, expected an ONNX model", fix=AGAIN)
    if head.startswith(LFS_SPEC):
        raise _pointer(name, head, model_id)
    if kind := lookalike(head):
        raise SourceError(f"{name}: looks like {kind}, expected an ONNX model", fix=AGAIN)


def _pointer(name: str, head: bytes, model_id: str) -> SourceError:
    """The error for a Git LFS pointer, whose lines are `key value`."""
    lines = head.decode("utf-8", "replace").splitlines()
    pairs = dict(line.split(" ", 1) for line in lines if " " in line)
    oid, size = pairs.get("oid", "unknown"), pairs.get("size", "unknown")
    return SourceError(
        f"{name}: a Git LFS pointer to {oid[:80]}, size {size[:20]}, expected the model itself",
        fix=f"run `git lfs pull` in the repository it came from, then doit onnx:{model_id}",
    )


def lookalike(head: bytes) -> str:
    """What a file that begins with `head` is, if anything known; "" for what may be an ONNX model."""
    for magic, kind in MAGIC:
        if head.startswith(magic):
            return kind
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a pickle"
    if head[257:262] == b"ustar":
        return "a tar archive"
    if not head.strip(b"\0"):
        return "a file of zero bytes, as a download that never finished leaves"
    return _text_kind(head)


def _text_kind(head: bytes) -> str:
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page"
    if text.startswith(b"<?xml"):
        return "an XML document"
    if any(byte < 32 and byte not in b"\t\n\r\f" for byte in head):
        return ""
    line = head.decode("utf-8", "replace").strip().partition("\n")[0]
    return f"a text file that begins {shown(line)}"


def check_interface(path: Path, summary: OnnxSummary) -> None:
    """Inputs of fixed shape, outputs, operators, and versions that are known."""
    if not 1 <= summary.ir_version <= NEWEST_IR:
        raise SourceError(
            f"{path.name}: IR version {summary.ir_version}, expected 1 to {NEWEST_IR}", fix=AGAIN
        )
    for what, present in (
        ("operators", summary.operators),
        ("inputs", summary.inputs),
        ("outputs", summary.outputs),
    ):
        if not present:
            raise SourceError(f"{path.name}: the graph has no {what}, expected some", fix=EXPORT)
    for name, spec in summary.inputs.items():
        if not all(isinstance(size, int) for size in spec.shape):
            raise SourceError(
                f"{path.name}: input {shown(name)} is {spec}, expected a fixed shape",
                fix=openshapes.advice(summary),
            )
        if name == RESERVED:
            raise SourceError(
                f"{path.name}: an input is called {shown(name)}, which Python takes for the capture itself:"
                " no runtime could feed it",
                fix="export the model with another name for that input",
            )
    for name in summary.sparse:
        raise SourceError(
            f"{path.name}: tensor {shown(name)} is sparse, which tinygrad does not read", fix=EXPORT
        )
    _check_opsets(path, summary)


def _check_opsets(path: Path, summary: OnnxSummary) -> None:
    for domain in sorted({domain for domain, _ in summary.operators}):
        version = summary.opsets.get(domain, 0)
        newest = NEWEST_OPSET if domain == "" else version
        if not 1 <= version <= newest:
            found = f"opset {version}" if domain in summary.opsets else "no opset"
            expected = f"1 to {NEWEST_OPSET}" if domain == "" else "1 or more"
            raise SourceError(
                f"{path.name}: imports {found} of {shown(domain or 'ai.onnx')}, expected {expected}",
                fix=EXPORT,
            )


def check_external(
    path: Path, summary: OnnxSummary, outside: Mapping[str, Path] | None = None
) -> dict[str, int]:
    """Weights outside the file lie beside it or below, where `outside` says, and are long enough.

    Returns their names, each with the bytes that it must at least hold.
    """
    needed = outside_files.checked(path.name, summary.external)
    for location, least in needed.items():
        there = outside.get(location) if outside is not None else path.parent / location
        size = there.stat().st_size if there is not None and there.is_file() else -1
        if size < least:
            found = "no file is there" if size < 0 else f"found {counted(size, 'byte')}"
            wanted = f"expected {counted(least, 'byte')} or more"
            raise SourceError(
                f"{path.name}: weights in {shown(location)}, {found}, {wanted}",
                fix=outside_files.TOGETHER,
            )
        if least and there is not None and (kind := _pointed_to(there)):
            raise SourceError(
                f"{path.name}: weights in {shown(location)}: {kind}, expected the weights themselves",
                fix="run `git lfs pull` in the repository it came from, then the same again",
            )
    return needed


def _pointed_to(path: Path) -> str:
    """A Git LFS pointer in so many words; nothing for any other file."""
    with files.opened(path) as file:
        return "a Git LFS pointer" if file.read(len(LFS_SPEC)) == LFS_SPEC else ""


def check_operators(path: Path, summary: OnnxSummary, tinygrad_root: Path) -> None:
    """Every operator is one that the tinygrad in `tinygrad_root` implements; all that are not get listed."""
    missing = operators.implemented(tinygrad_root).missing(summary.operators, summary.opsets)
    if missing:
        raise SourceError(
            f"{path.name}: the pinned tinygrad does not implement {_listed(missing)}",
            fix="export the model without these operators, or pin a toolchain whose tinygrad has them",
        )


def check_frozen(path: Path, tinygrad_root: Path) -> None:
    """No operator takes a bound, a shape or a count from the data: a capture keeps the first for ever."""
    reads = dataflow.host_reads(path, operators.read_on_host(tinygrad_root))
    if not reads:
        return
    first = reads[0]
    node = f"{first.operator} {shown(first.node)}" if first.node else f"a {first.operator} without a name"
    more = f", and so do {counted(len(reads) - 1, 'other input')}" if len(reads) > 1 else ""
    raise SourceError(
        f"{path.name}: {node} takes its input {first.position}, {shown(first.value)}, from the values of the"
        f" model's input {shown(first.origin)}{more}: a capture reads it once and keeps it for ever",
        fix="export the model with bounds and shapes that are fixed, or follow from shapes alone; for an If,"
        " with branches that declare equal shapes",
    )


def check_slices(path: Path, summary: OnnxSummary, slices: dict[str, slice] | None) -> None:
    """Slices lie within the width of the only output, open and negative ends resolved; they may overlap."""
    if slices is None:
        return
    width = output_width(summary)
    if width is None:
        found = _specified(summary.outputs)
        raise SourceError(
            f"{path.name}: output_slices need one output of known width, found {found}", fix=EXPORT
        )
    for name, cut in slices.items():
        start, stop = bounds(cut, width)
        if not 0 <= start <= stop <= width:
            raise SourceError(
                f"{path.name}: output slice {shown(name)} is [{_end(cut.start)}:{_end(cut.stop)}], "
                f"expected bounds within the output's width {width}",
                fix=EXPORT,
            )


def _end(bound: int | None) -> str:
    return "" if bound is None else str(bound)


def output_width(summary: OnnxSummary) -> int | None:
    """The size of the last dimension, when there is one output and that dimension is fixed."""
    shapes = [spec.shape for spec in summary.outputs.values()]
    last = shapes[0][-1:] if len(shapes) == 1 else ()
    return last[0] if last and isinstance(last[0], int) else None


def bounds(cut: slice, width: int) -> tuple[int, int]:
    """`cut` against `width` elements, nothing clipped: what lies outside stays outside."""
    start = 0 if cut.start is None else cut.start
    stop = width if cut.stop is None else cut.stop
    return start + width * (start < 0), stop + width * (stop < 0)


def missing_roles(model_type: str, roles: Collection[str]) -> list[str]:
    """What `model_type` needs and `roles` lacks, in words."""
    needed = {
        "vision_policy": [VISION, POLICY],
        "vision_multi_policy": [VISION],
        "supercombo": [SUPERCOMBO],
        "dmonitoring": [MONITORING],
        "generic": [],
    }[model_type]
    missing = [role for role in needed if role not in roles]
    if model_type == "vision_multi_policy" and ON_POLICY not in roles and POLICY not in roles:
        missing.append(f"{ON_POLICY} or {POLICY}")
    return missing


def _foreign_roles(model_type: str, roles: Collection[str]) -> list[str]:
    allowed = {
        "vision_policy": {VISION, POLICY},
        "vision_multi_policy": {VISION, *POLICIES},
        "supercombo": {SUPERCOMBO},
        "dmonitoring": {MONITORING},
        "generic": set(roles),
    }[model_type]
    return sorted(set(roles) - allowed)


def _check_complete(prefix: str, model_type: str, roles: Collection[str]) -> None:
    found = ", ".join(sorted(roles)) or "none"
    if missing := missing_roles(model_type, roles):
        raise SourceError(
            f"{prefix}a {model_type} model lacks {', '.join(missing)}: found {found}",
            fix="add the missing ONNX files to the model's source",
        )
    if foreign := _foreign_roles(model_type, roles):
        raise SourceError(
            f"{prefix}a {model_type} model has no part {', '.join(foreign)}: found {found}",
            fix="take these ONNX files out of the model's source, or give them a model of their own",
        )


def infer_model_type(roles: Collection[str]) -> str:
    """The model type that a set of roles (file stems such as `driving_vision`) makes.

    Raises SourceError for a set that is incomplete, listing what is missing, or that mixes models.
    """
    names = set(roles)
    if not names:
        raise SourceError("no ONNX files were found, expected those of one model", fix=AGAIN)
    if not names & ROLES:
        return "generic"
    model_type = "vision_policy"
    if SUPERCOMBO in names:
        model_type = "supercombo"
    elif MONITORING in names:
        model_type = "dmonitoring"
    elif names & {ON_POLICY, OFF_POLICY}:
        model_type = "vision_multi_policy"
    _check_complete("", model_type, names)
    return model_type


def check_roles(model_id: str, model_type: str, files: dict[str, Preflight]) -> None:
    """Check `files`, role to preflight, against the contract of `model_type`; `generic` has none.

    Images are uint8 (1, 12, H, W), a desire (1, N, 8), features_buffer (1, N, 512), the output (1, N).
    Raises SourceError naming the role, the input, what was found and what was expected.
    """
    if model_type not in MODEL_TYPES:
        raise SourceError(
            f"{model_id}: model type {shown(model_type)}, expected one of {', '.join(MODEL_TYPES)}",
            fix="correct it in models.toml",
        )
    _check_complete(f"{model_id}: ", model_type, files)
    if model_type == "generic":
        return
    contracts = [Contract(model_id, role, files[role]) for role in sorted(files)]
    for contract in contracts:
        contract.check()
    _check_equal_inputs([contract for contract in contracts if contract.role in POLICIES])


@dataclass(frozen=True)
class Contract:
    """One model of a driving set, held against what the runtime feeds and reads."""

    model_id: str
    role: str
    file: Preflight

    def check(self) -> None:
        self.check_output()
        if self.role in (VISION, SUPERCOMBO):
            self.check_images()
            self.check_hidden_state()
        if self.role in (SUPERCOMBO, *POLICIES):
            self.check_desire()
            self.check_input("features_buffer", (1, None, FEATURES))
        if self.role == MONITORING:
            self.check_input("input_img", (1, None))
            self.check_input("calib", (1, None))

    def refuse(self, what: str, found: object, expected: str) -> SourceError:
        return SourceError(
            f"{self.model_id}: {self.role}: {what}: found {found}, expected {expected}", fix=EXPORT
        )

    @property
    def inputs(self) -> dict[str, TensorSpec]:
        return self.file.summary.inputs

    def check_input(self, name: str, pattern: tuple[int | None, ...], dtype: str = "") -> None:
        """`pattern` is a shape with None for any size; an empty `dtype` is any."""
        expected = f"{dtype} ({', '.join('N' if size is None else str(size) for size in pattern)})".lstrip()
        spec = self.inputs.get(name)
        if spec is None:
            raise self.refuse(f"input {name}", f"only {_listed(self.inputs)}", expected)
        if not _fits(spec.shape, pattern) or (dtype and spec.dtype != dtype):
            raise self.refuse(f"input {shown(name)}", spec, expected)

    def check_output(self) -> None:
        outputs = self.file.summary.outputs
        if len(outputs) != 1 or not all(_fits(spec.shape, (1, None)) for spec in outputs.values()):
            raise self.refuse("outputs", _specified(outputs), "exactly one, of shape (1, N)")

    def check_images(self) -> None:
        images = [name for name in self.inputs if "img" in name]
        wide = [name for name in images if "big" in name]
        if len(images) != 2 or len(wide) != 1:
            found = _listed(images) or f"none among {_listed(self.inputs)}"
            raise self.refuse("inputs named like img", found, "two, one of them with big in its name")
        for name in images:
            self.check_input(name, (1, 12, None, None), "uint8")
        first, second = (self.inputs[name] for name in images)
        if first.shape != second.shape:
            raise self.refuse(
                f"input {shown(images[1])}", second, f"the shape of {shown(images[0])}, {first}"
            )

    def check_desire(self) -> None:
        names = [name for name in self.inputs if name.startswith("desire")]
        if len(names) != 1:
            found = _listed(names) or f"none among {_listed(self.inputs)}"
            raise self.refuse("inputs named like desire", found, "exactly one, of shape (1, N, 8)")
        self.check_input(names[0], (1, None, 8))

    def check_hidden_state(self) -> None:
        slices = self.file.output_slices
        if slices is None or "hidden_state" not in slices:
            found = "no output_slices" if slices is None else _listed(slices)
            raise self.refuse("metadata output_slices", found, f"hidden_state of width {FEATURES}")
        start, stop = bounds(slices["hidden_state"], output_width(self.file.summary) or 0)
        if stop - start != FEATURES:
            raise self.refuse(
                "output slice hidden_state", f"width {stop - start}", f"{FEATURES}, as features_buffer has"
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(clean, names))


def _specified(values: dict[str, TensorSpec]) -> str:
    return ", ".join(f"{clean(name)} {spec}" for name, spec in values.items())


def _fits(shape: tuple[int | str, ...], pattern: tuple[int | None, ...]) -> bool:
    return len(shape) == len(pattern) and all(
        isinstance(size, int) and size > 0 and wanted in (None, size)
        for size, wanted in zip(shape, pattern, strict=True)
    )


def _check_equal_inputs(policies: list[Contract]) -> None:
    """The policies of one model are fed from the same queues, so their inputs have the same shapes."""
    for other in policies[1:]:
        first = policies[0]
        for name in sorted(first.inputs.keys() | other.inputs.keys()):
            found, expected = other.inputs.get(name), first.inputs.get(name)
            if (found and found.shape) != (expected and expected.shape):
                raise other.refuse(
                    f"input {shown(name)}", found or "none", f"{expected or 'none'}, as in {first.role}"
                )
