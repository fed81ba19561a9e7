"""What the records of the workspace that a file lies in say of it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rules.keeping.digests import sha256_of
from rules.keeping.records import Output
from rules.workspace import Workspace


@dataclass(frozen=True)
class Recorded:
    """A record, by its path in the workspace; the sha256 that it has of a file, and the one the file has."""

    record: str
    expected: str
    found: str

    @property
    def met(self) -> bool:
        """Whether the file is what was recorded."""
        return self.expected == self.found

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {**asdict(self), "met": self.met}

    def __str__(self) -> str:
        if self.met:
            return f"it is what {self.record} says"
        return f"✗ it is not what {self.record} says: expected sha256 {self.expected}, got {self.found}"


def of(path: Path) -> Recorded | None:
    """What a record says of the file at `path`; None outside a workspace, or for what no record has."""
    place = path.parent.resolve() / path.name
    root = next((folder for folder in place.parents if (folder / "results").is_dir()), None)
    if root is None or not place.is_file():
        return None
    relative = place.relative_to(root).as_posix()
    for record, output in _outputs(Workspace(root)):
        if output.path == relative:
            return Recorded(record, output.sha256, sha256_of(place))
    return None


def _outputs(workspace: Workspace) -> list[tuple[str, Output]]:
    records = workspace.records
    found = []
    for path in sorted(records.folder.glob("*.json")):
        if not path.stem.endswith("_failure") and (record := records.read(path.stem)):
            found += [(f"results/{path.name}", output) for output in record.outputs]
    return found
