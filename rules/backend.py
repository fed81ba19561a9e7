"""doit's database, as a view: records say what is fresh, so there is nothing here to lose.

The one thing doit may keep is which tasks the user told it to ignore.
"""

import json
from pathlib import Path
from typing import Any

from rules.keeping import files
from rules.keeping.files import canonical, write_bytes

IGNORE = "ignore:"
UNCHANGED = "recorded"
Tasks = frozenset[str]


class RecordsBackend:
    """What doit's Dependency calls a backend (see `doit.dependency.JsonDB` for the interface)."""

    desc = "no database: the records in results/ decide"

    def __init__(self, name: str, codec: object, module_name: str | None = None) -> None:
        self.name = name
        self._path = Path(name + ".ignored.json")
        self._ignored: Tasks | None = None

    @property
    def ignored(self) -> Tasks:
        """The tasks that `doit ignore` named."""
        if self._ignored is None:
            try:
                self._ignored = Tasks(map(str, json.loads(files.read(self._path))))
            except (OSError, ValueError, TypeError, RecursionError):
                self._ignored = Tasks()
        return self._ignored

    def get(self, task_id: str, dependency: str) -> Any:
        """What doit wants to know about a task; file states are always as they were."""
        if dependency == IGNORE:
            return "1" if task_id in self.ignored else None
        return None if dependency.endswith(":") else UNCHANGED

    def set(self, task_id: str, dependency: str, value: object) -> None:
        """Keep an ignore mark, at once; let everything else go."""
        if dependency == IGNORE:
            self._keep(self.ignored | {task_id})

    def in_(self, task_id: str) -> bool:
        """Whether anything is kept for the task."""
        return task_id in self.ignored

    def remove(self, task_id: str) -> None:
        """Drop what is kept for the task."""
        if task_id in self.ignored:
            self._keep(self.ignored - {task_id})

    def remove_all(self) -> None:
        """Drop everything."""
        if self.ignored:
            self._keep(Tasks())

    def dump(self) -> None:
        """Everything is on disk already."""

    def _keep(self, ignored: Tasks) -> None:
        self._ignored = ignored
        write_bytes(canonical(self._path), json.dumps(sorted(ignored)).encode())
