"""What each step left behind: one JSON file a step, written the moment the step ends.

Records are the memory of the build; deleting doit's own database loses nothing.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from rules.errors import WorkspaceError
from rules.keeping.digests import Digests
from rules.keeping.files import write_bytes

FORMAT = 1
SHA256 = re.compile(r"[0-9a-f]{64}")
VALIDATION = "validation"
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


class Records:
    """All records of one workspace: `<name>.json` in one folder."""

    def __init__(self, folder: Path, digests: Digests) -> None:
        self.folder = folder
        self._digests = digests

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
            self._digests.look(path)
            raw = json.loads(path.read_bytes())
            if raw.pop("format") != FORMAT:
                return None
            outputs = tuple(_output(output) for output in raw.pop("outputs"))
            record = Record(outputs=outputs, **raw)
            if not (isinstance(record.content, dict) and isinstance(record.facts, dict)):
                return None
            return record
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, name: str, record: Record) -> None:
        """Keep the record, atomically; raises WorkspaceError unless schemas/record.schema.json allows it."""
        kind = VALIDATION if name.endswith(f"_{VALIDATION}") else "record"
        self._write(name, kind, {"format": FORMAT, **asdict(record)})

    def remove(self, name: str) -> None:
        """Forget a record; the step is stale from then on."""
        self.path_of(name).unlink(missing_ok=True)

    def write_failure(self, name: str, failure: dict[str, Any]) -> None:
        """Keep what went wrong with a model, for whoever looks later."""
        self._write(name, "failure", {"format": FORMAT, **failure})

    def _write(self, name: str, kind: str, value: dict[str, Any]) -> None:
        text = _text(value)
        # Checked as the file will hold it: a tuple is an array there.
        error = next(_validator(kind).iter_errors(json.loads(text)), None)
        if error is not None:
            raise WorkspaceError(
                f"{self.path_of(name).name}: {error.json_path}: expected a {kind} by {SCHEMA.name}, got"
                f" {error.message[:200]}",
                fix="this is a fault of modelyard's: report it with the log",
            )
        write_bytes(self.path_of(name), text)


@cache
def _validator(kind: str) -> Any:
    """Checks one kind of record; an idle run writes none, and never loads jsonschema."""
    from jsonschema import Draft202012Validator

    definitions = json.loads(SCHEMA.read_text("utf-8"))["$defs"]
    return Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": definitions})


def _output(raw: dict[str, Any]) -> Output:
    """An output as a record holds it; raises ValueError for what could lead out of the workspace."""
    output = Output(**raw)
    parts = PurePosixPath(output.path)
    if (
        not SHA256.fullmatch(output.sha256)
        or type(output.size) is not int
        or not isinstance(output.name, str)
    ):
        raise ValueError(f"not an output: {raw}")
    if parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"outside of the workspace: {output.path}")
    return output


def _text(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()
