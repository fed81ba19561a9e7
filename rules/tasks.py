"""The graph as doit sees it: a task for each step, and a database that is only a view of our records."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from doit.dependency import FileChangedChecker
from doit.exceptions import InvalidDodoFile, TaskFailed

from rules.build import build
from rules.catalog import load
from rules.errors import YardError
from rules.graph import Graph
from rules.step import Step
from rules.workspace import Workspace

WORKSPACE_VARIABLE = "MODELS_WORKSPACE"
DEFAULT_WORKSPACE = "artifacts"


class Recorded(FileChangedChecker):  # type: ignore[misc]
    """doit's file checker, told that no file ever changed: our records decide, through `uptodate`."""

    def check_modified(self, file_path: str, file_stat: os.stat_result, state: object) -> bool:
        """Never; see the class."""
        return False

    def get_state(self, dep: str, current_state: object) -> None:
        """Nothing to remember."""
        return


class Yard:
    """One catalog and its workspace, as a dodo.py uses it."""

    def __init__(self, catalog: Path | str = "models.toml", workspace: Path | str | None = None) -> None:
        path = Path(catalog).resolve()
        chosen = workspace or os.environ.get(WORKSPACE_VARIABLE) or path.parent / DEFAULT_WORKSPACE
        self.workspace = Workspace(Path(chosen).resolve())
        self.force = False
        try:
            self.catalog = load(path, cache=self.workspace.hidden / "catalog.json")
            self.graph = Graph(self.catalog, self.workspace)
            self.graph.steps  # noqa: B018  (faults in the catalog show before any work)
        except YardError as error:
            raise InvalidDodoFile(str(error)) from None

    @property
    def config(self) -> dict[str, Any]:
        """DOIT_CONFIG: how doit is to run these tasks."""
        return {
            "default_tasks": self.graph.default,
            "backend": "records",
            "check_file_uptodate": Recorded,
            "par_type": "thread",
            "reporter": "yard",
            "verbosity": 2,
            "yard": self,
        }

    def tasks(self) -> Iterator[dict[str, Any]]:
        """One doit task for each step."""
        for step in self.graph.steps.values():
            yield self._task(step)

    def _task(self, step: Step) -> dict[str, Any]:
        basename, _, name = step.task.partition(":")
        task = {
            "basename": basename,
            "doc": step.doc,
            "actions": [(self.carry_out, [step])],
            "uptodate": [(self.is_fresh, [step])],
            "task_dep": [one.task for one in step.after],
            "targets": [str(self.workspace.path(target)) for target in step.targets],
            "clean": [(self.clean, [step])],
            "io": {"capture": False},
            "meta": {"step": step},
        }
        return task | ({"name": name} if name else {})

    def is_fresh(self, step: Step) -> bool:
        """doit's question, our answer."""
        return self.graph.judge.decide(step).fresh

    def carry_out(self, step: Step) -> TaskFailed | None:
        """A task's action: build the step; a failure is a sentence, not a traceback."""
        try:
            build(step, self.graph.judge, self.workspace, force=self.force)
        except YardError as error:
            return TaskFailed(str(error))
        return None

    def clean(self, step: Step) -> None:
        """`doit clean`: remove the step's outputs; the store still knows them."""
        record = self.workspace.records.read(step.record)
        for output in reversed(record.outputs) if record else ():
            self.workspace.path(output.path).unlink(missing_ok=True)
