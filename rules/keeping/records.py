"""What each step left behind: one JSON file a step, written the moment the step ends.

Records are the memory of the build; deleting doit's own database loses nothing.
"""

import json
import re
import time
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from rules.errors import WorkspaceError
from rules.imports import alone
from rules.keeping import files
from rules.keeping.digests import Digest, Digests, Stamp
from rules.keeping.files import is_plain, remove, write_bytes
from rules.keys import key_of

FORMAT = 1
SHA256 = re.compile(r"[0-9a-f]{64}")
KINDS = ("source", "artifact", "validation")  # whose facts are read again
LARGEST = 1 << 63
MOST = 64 << 20  # bytes of a record; one takes a few thousand
SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "record.schema.json"


@dataclass(frozen=True)
class Output:
    """One file a step made: its name in keys, its path within the workspace, size in bytes, hex sha256.

    Names do not hold the model's id, so that two ids with one source share one result.
    """

    name: str
    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Record:
    """A finished step: the key it was built under, all that went into the key, and what came out.

    `facts` is what the step wants to tell later readers; none of it decides staleness.
    """

    step: str
    key: str
    content: dict[str, Any]
    outputs: tuple[Output, ...]
    made: str  # "built" or "restored"
    built_at: str  # ISO 8601, UTC
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def digests(self) -> dict[str, Digest]:
        """What came out, by name."""
        return {output.name: Digest(output.sha256, output.size) for output in self.outputs}

    @property
    def sha256s(self) -> dict[str, str]:
        """What came out, by name, as a key holds it."""
        return {output.name: output.sha256 for output in self.outputs}


class Records:
    """All records of one workspace: `<name>.json` in one folder."""

    def __init__(self, folder: Path, digests: Digests) -> None:
        self.folder = folder
        self._digests = digests
        self._known: dict[str, tuple[Stamp, Record]] = {}  # a run asks for each record several times

    def path_of(self, name: str) -> Path:
        """Where the record of this name is kept."""
        return self.folder / f"{name}.json"

    def names(self) -> list[str]:
        """The names of all records and failures that are kept, sorted."""
        files = self.folder.glob("*.json") if self.folder.is_dir() else ()
        return sorted(path.stem for path in files if not path.name.startswith("."))

    def read(self, name: str) -> Record | None:
        """The record, or None when there is none or it cannot be understood (then the step is stale)."""
        path = self.path_of(name)
        try:
            stamp = self._digests.look(path)
            if (known := self._known.get(name)) and known[0] == stamp:
                return known[1]
            began = time.time_ns()
            record = _record(_parsed(path))
        except UNREADABLE:
            return None
        if not stamp.young(began):  # else it could still change without a new stamp
            self._known[name] = stamp, record
        return record

    def flaw(self, name: str, record: Record) -> str:
        """What schemas/record.schema.json has against a record of this name; nothing when it is well."""
        try:
            return _flaw(_kind(name), json.loads(_text({"format": FORMAT, **asdict(record)})))
        except (ValueError, RecursionError) as error:
            return f"expected what JSON can hold, got something else ({type(error).__name__})"

    def read_failure(self, name: str) -> dict[str, Any] | None:
        """What went wrong with a model, or None when nothing did, or it cannot be understood."""
        try:
            raw = _parsed(self.path_of(name))
            told = {one: raw[one] for one in ("step", "cause", "log", "next")}
            if not all(isinstance(one, str) and one.encode() for one in told.values()):
                return None
            raw["log_tail"] = [str(line) for line in raw["log_tail"]]
            return raw
        except UNREADABLE:
            return None

    def write(self, name: str, record: Record) -> None:
        """Keep the record, atomically; raises WorkspaceError unless schemas/record.schema.json allows it."""
        self._write(name, _kind(name), {"format": FORMAT, **asdict(record)})

    def remove(self, name: str) -> None:
        """Forget a record; the step is stale from then on."""
        remove(self.path_of(name))

    def write_failure(self, name: str, failure: dict[str, Any]) -> None:
        """Keep what went wrong with a model, for whoever looks later."""
        self._write(name, "failure", {"format": FORMAT, **failure})

    def _write(self, name: str, kind: str, value: dict[str, Any]) -> None:
        text = _text(value)
        # Checked as the file will hold it: a tuple is an array there.
        if flaw := _flaw(kind, json.loads(text)):
            raise WorkspaceError(
                f"{self.path_of(name).name}: {flaw}",
                fix="this is a fault of modelyard's: report it with the log",
            )
        write_bytes(self.path_of(name), text)


def _kind(name: str) -> str:
    kind = name.rpartition("_")[2]
    return kind if kind in KINDS else "record"


def _flaw(kind: str, value: Any) -> str:
    error = next(_validator(kind).iter_errors(value), None)
    if error is None:
        return ""
    return f"{error.json_path}: expected a {kind} by {SCHEMA.name}, got {error.message[:200]}"


@cache
def _validator(kind: str) -> Any:
    """Checks one kind of record; an idle run writes none, and never loads jsonschema."""
    with alone:
        from jsonschema import Draft202012Validator

    definitions = json.loads(SCHEMA.read_text("utf-8"))["$defs"]
    return Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": definitions})


# ---- what anybody may have written: names are followed, so they are checked first

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _parsed(path: Path) -> dict[str, Any]:
    """The JSON object in a file of ours; raises one of UNREADABLE for anything else."""
    raw: dict[str, Any] = json.loads(files.read(path, MOST), parse_constant=_refuse)
    if raw.pop("format") != FORMAT:
        raise ValueError("another format")
    return raw


def _refuse(constant: str) -> None:
    raise ValueError(f"not JSON: {constant}")


def _record(raw: dict[str, Any]) -> Record:
    """A record as a file holds it; raises one of UNREADABLE for what we would not have written.

    Its key is the key of its content, or it is another content's record.
    """
    outputs = tuple(_output(output) for output in raw.pop("outputs"))
    record = Record(outputs=outputs, **raw)
    if not (isinstance(record.content, dict) and record.key == key_of(record.content)):
        raise ValueError("its key is not that of its content")
    if len({output.path for output in outputs}) + len({output.name for output in outputs}) < 2 * len(outputs):
        raise ValueError("an output is there twice")
    sound = (
        isinstance(record.step, str),
        record.made in ("built", "restored"),
        isinstance(record.built_at, str) and record.built_at.isascii(),
        isinstance(record.seconds, int | float) and 0 <= record.seconds < LARGEST,
        isinstance(record.facts, dict) and type(record.facts.get("peak_bytes", 0)) is int,
        all(isinstance(one, dict) for one in record.facts.get("captures", {}).values()),
        all(isinstance(one, str) for one in record.facts.get("verified_on", {}).values()),
    )
    if not all(sound):
        raise ValueError("not a record")
    return record


def _output(raw: dict[str, Any]) -> Output:
    """An output as a record holds it; raises ValueError for what could lead out of the workspace."""
    output = Output(**raw)
    parts = PurePosixPath(output.path)
    if not (SHA256.fullmatch(output.sha256) and type(output.size) is int and 0 <= output.size < LARGEST):
        raise ValueError(f"not an output: {raw}")
    if not is_plain(output.name):  # a step's place is a folder and this
        raise ValueError(f"not a name: {raw}")
    if parts.is_absolute() or ".." in parts.parts or not output.path.isprintable():
        raise ValueError(f"outside of the workspace: {output.path}")
    return output


def _text(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode(
        errors="surrogatepass"
    )
