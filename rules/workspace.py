"""Where everything of one workspace lies, and the keepers that look after it."""

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rules.errors import unwritable
from rules.keeping import files
from rules.keeping.digests import Digests
from rules.keeping.records import Records
from rules.keeping.seal import Seal
from rules.keeping.store import Store

if TYPE_CHECKING:
    from rules.keeping.remote import Remote

FOLDERS = (
    *("onnx", "compiled", "driver-monitoring", "manifests", "source-maps", "ready-for-resources"),
    *("logs", "results", ".store"),
)


class Workspace:
    """The folder `artifacts/`, or wherever it was moved to: links may lead to it, and none of ours is one."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.remote: Remote | None = None

    def check(self) -> None:
        """Raise WorkspaceError where no folder can be, or one of ours is a link; a read-only one is well."""
        place = self.root
        while not os.path.lexists(place):
            place = place.parent
        if not place.is_dir():
            raise unwritable(self.root, f"{place} is no folder")
        for folder in self._folders():
            if folder.is_symlink():
                raise files.linked(folder)

    def _folders(self) -> Iterator[Path]:
        """Those that every run writes in or removes from; a step's own is looked at by the step."""
        yield from (self.root / name for name in FOLDERS)
        if files.is_folder(self.hidden):
            yield from sorted(self.hidden.iterdir())

    def link_to(self, relative: str) -> Path | None:
        """The first folder on the way to a workspace path that is a link, so that it lies elsewhere."""
        folders = [self.root / folder for folder in Path(relative).parents][-2::-1]
        return next((folder for folder in folders if folder.is_symlink()), None)

    def path(self, relative: str) -> Path:
        """A workspace path as a path on this machine."""
        return self.root / relative

    @property
    def hidden(self) -> Path:
        """What users need not look at: the store, digests, caches, the lock."""
        return self.root / ".store"

    @property
    def lock(self) -> Path:
        """The lock file of the one writer."""
        return self.hidden / "lock"

    def log(self, name: str) -> Path:
        """The log of one model's steps."""
        return self.root / "logs" / f"{name}.log"

    @cached_property
    def digests(self) -> Digests:
        """Remembered digests."""
        return Digests(self.hidden / "digests.log")

    @cached_property
    def store(self) -> Store:
        """The content store."""
        return Store(self.hidden, self.digests)

    @cached_property
    def seal(self) -> Seal:
        """What the last run found fresh, for the next one to find at a glance."""
        return Seal(self.hidden / "seal.json")

    @cached_property
    def records(self) -> Records:
        """The records in `results/`."""
        return Records(self.root / "results", self.digests)
