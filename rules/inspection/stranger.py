"""What a file is that is no artifact, by its first bytes and its name, and which command is meant for it."""

import re
from pathlib import Path
from typing import NamedTuple

from rules.flags import nearest

HEAD = 512  # bytes that are looked at
POINTER = b"version https://git-lfs.github.com/spec/"
SIGNS = {
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip file",
    b"(\xb5/\xfd": "a zstd file",
    b"\x7fELF": "a program",
    b"\x93NUMPY": "a numpy array",
    b"\x89HDF\r\n": "an HDF5 file",
}
ANOTHER = "name an artifact, such as artifacts/compiled/ID_driving_tinygrad.pkl"

# The field ir_version, then another one of ModelProto.
_ONNX = re.compile(rb"\x08[\x01-\x20][\x12\x1a\x22\x2a\x32\x3a\x42]")
_RECORD = re.compile(r"(.+)_(source|artifact|validation|parts|failure)\.json")


class Stranger(NamedTuple):
    """What a file is, in words that follow "it is", and what to type instead."""

    what: str
    fix: str


def certain(head: bytes) -> str | None:
    """What a file that begins with `head` is beyond doubt: no pickle begins so and is sound."""
    return next((what for sign, what in SIGNS.items() if head.startswith(sign)), None)


def known(path: Path, head: bytes) -> Stranger:
    """What the file at `path`, which is no pickle and begins with `head`, seems to be."""
    if not head:
        return Stranger("an empty file", "fetch or build it again; doit fsck names what is damaged here")
    if head.startswith(POINTER):
        lines = ", ".join(head.decode("utf-8", "replace").splitlines()[1:3])
        return Stranger(f"a Git LFS pointer ({lines})", "git lfs pull, or doit onnx:ID for a model of yours")
    if found := certain(head):
        fix = "unpack it, then inspect what is in it" if "archive" in found or "zip" in found else ANOTHER
        return Stranger(found, fix)
    if _ONNX.match(head):
        return Stranger("an ONNX model", f"doit add --onnx {path} adds it to models.toml, to be compiled")
    if _is_text(head):
        return _text(path, head)
    return Stranger(f"of no kind known here: it begins with {head[:16]!r}", ANOTHER)


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # later, it is a character that the head cuts
            return False
        text = head[: error.start].decode()
    return all(one.isprintable() or one in "\t\r\n" for one in text)


def _text(path: Path, head: bytes) -> Stranger:
    if path.suffix == ".toml":
        return Stranger("a TOML file", "doit list --all lists the tasks that follow from a catalog")
    if path.suffix == ".json" or head.lstrip().startswith(b"{"):
        return _json(path)
    if path.suffix == ".py":
        return Stranger("a Python file", ANOTHER)
    return Stranger("a text file", f"doit diagnose {path}, if it is a runtime's log")


def _json(path: Path) -> Stranger:
    record = _RECORD.fullmatch(path.name)
    if record and path.absolute().parent.name == "results":
        return Stranger(f"a record of {record[1]}", f"doit why {record[1]}")
    if "model_names_" in path.name:
        return Stranger("a manifest", f"doit import --base-manifest {path}")
    if "source_map" in path.name:
        return Stranger("a source map", f"doit import --source-map {path}")
    return Stranger("a JSON file", ANOTHER)


def instead_of(path: Path) -> str:
    """What to type where `path` is a folder, or nothing at all."""
    if path.is_dir():
        return next((f"doit inspect {one}" for one in _artifacts(path)), "name a file in it")
    built = [one for one in _artifacts(Path("artifacts/compiled")) if one.name.startswith(f"{path.name}_")]
    if built:
        return f"doit inspect {built[0]}"
    near = nearest(path.name, [one.name for one in _artifacts(path.parent)])
    return f"did you mean {path.with_name(near)}?" if near else "check the path"


def _artifacts(folder: Path) -> list[Path]:
    """The pickles in a folder, sorted; none where there is no folder, or it cannot be read."""
    return sorted(one for one in folder.glob("*.pkl") if not one.name.startswith("._"))
