"""The graph as doit sees it: a task for each step, and a database that is only a view of our records."""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from doit.dependency import FileChangedChecker
from doit.exceptions import InvalidDodoFile, TaskFailed

from rules import host
from rules.catalog import PINS, Catalog, load
from rules.errors import YardError
from rules.imports import alone
from rules.keeping import files
from rules.keeping.digests import Stamp, sha256_of
from rules.keys import key_of
from rules.workspace import Workspace

if TYPE_CHECKING:
    from rules.decide import Judge
    from rules.graph import Graph
    from rules.step import Step

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

    chosen: ClassVar[Path | None] = None  # by --workspace, which no dodo.py needs to know of
    only_looks: ClassVar[bool] = False  # so that nothing is written, not even what is remembered

    def __init__(
        self, catalog: Path | str | Catalog = "models.toml", workspace: Path | str | None = None
    ) -> None:
        path = catalog.path if isinstance(catalog, Catalog) else Path(catalog).resolve()
        given = self.chosen or workspace or os.environ.get(WORKSPACE_VARIABLE)
        self.workspace = Workspace(Path(given or path.parent / DEFAULT_WORKSPACE).resolve())
        self.workspace.digests.keeps = not self.only_looks
        self.force = False
        self.made = 0  # steps that this process has carried out
        self._code: dict[str, Stamp] = {}
        self._catalog_digest = ""
        try:
            self.workspace.check()
            with contextlib.suppress(OSError):  # `load` tells what is wrong with it
                self._catalog_digest = sha256_of(path)
            known = catalog if isinstance(catalog, Catalog) else None
            cache = self.workspace.hidden / "catalog.json"
            self.catalog = known or load(path, cache=cache, keep=not self.only_looks)
            self._connect()
        except YardError as error:
            raise InvalidDodoFile(str(error)) from None

    @cached_property
    def graph(self) -> "Graph":
        """All steps; an idle run never asks for them, nor imports what makes them."""
        from rules.graph import Graph

        return Graph(self.catalog, self.workspace)

    def _connect(self) -> None:
        """Use the remote store, if there is one. Raises CatalogError."""
        if not self.catalog.store and "MODELS_REMOTE" not in os.environ:
            return  # an idle run need not even load what would find that out
        from rules.keeping.remote import Remote, settings

        found = settings(self.catalog.store, self.catalog.path.parent)
        self.workspace.remote = Remote(found, self.workspace.store) if found else None

    @property
    def config(self) -> dict[str, Any]:
        """DOIT_CONFIG: how doit is to run these tasks."""
        return {
            "default_tasks": self.catalog.default_tasks,
            "backend": "records",
            "check_file_uptodate": Recorded,
            "par_type": "thread",
            "reporter": "yard",
            "verbosity": 2,
            "yard": self,
        }

    def tasks(self) -> Iterator[dict[str, Any]]:
        """One doit task for each step."""
        try:
            steps = self.graph.steps
        except YardError as error:
            raise InvalidDodoFile(str(error)) from None
        for step in steps.values():
            yield self._task(step)
        yield from self._groups(steps.values())

    def _groups(self, steps: Iterable["Step"]) -> Iterator[dict[str, Any]]:
        """A task for each kind of step, fresh when all of that kind are; doit's own are never up to date."""
        kinds: dict[str, list[Step]] = {}
        for step in steps:
            if ":" in step.task:
                kinds.setdefault(step.task.partition(":")[0], []).append(step)
        for kind, members in kinds.items():
            yield {
                "basename": kind,
                "name": None,
                "doc": f"every {kind}:… task",
                "uptodate": [(self.are_fresh, [members])],
                "task_dep": [step.task for step in members],
            }

    def _task(self, step: "Step") -> dict[str, Any]:
        basename, _, name = step.task.partition(":")
        task = {
            "basename": basename,
            "doc": step.doc,
            "actions": [(self.carry_out, [step])],
            "uptodate": [(self.is_fresh, [step])],
            "task_dep": [one.task for one in step.after],
            "targets": [str(self.workspace.path(target)) for target in step.targets],
            "io": {"capture": False},
        }
        return task | ({"name": name} if name else {})

    def glance(self) -> int | None:
        """How many steps the default tasks need, if all of them are fresh by the last run's seal."""
        return self.workspace.seal.holds(self._identity())

    def begin(self) -> None:
        """A run begins: what is sealed at its end is the code as it is now, not as it may be by then."""
        self.workspace.seal.break_()
        self._code = {str(path): Stamp.of(path) for path in sorted(Path(__file__).parent.rglob("*.py"))}

    def seal(self) -> None:
        """Look at everything the default tasks need once more; if it is all fresh, seal it.

        The catalog and the code that decided are those of the run's begin. Were they edited since, the next
        run finds their stamps or digest changed, and decides for itself.
        """
        digests = self.workspace.digests
        digests.flush(wait=True)
        digests.looked_at.clear()
        judge = self.graph.new_judge()
        self._drop_settled_failures(judge)
        needed = self.graph.needed(self.catalog.default_tasks)
        if all(judge.decide(step).fresh for step in needed):
            looked_at = {**digests.looked_at, **self._code}
            self.workspace.seal.write(self._identity(), len(needed), looked_at)

    def _drop_settled_failures(self, judge: "Judge") -> None:
        """Failure records of steps that are fresh again without a build, because their cause was undone."""
        for path in sorted(self.workspace.records.folder.glob("*_failure.json")):
            if failure := self.workspace.records.read_failure(path.stem):
                step = self.graph.steps.get(failure["step"])
                if step is None or judge.decide(step).fresh:
                    files.remove(path)

    def _identity(self) -> str:
        """Everything but files that a decision depends on."""
        return key_of(
            {
                "catalog": self._catalog_digest,
                "packages": host.installed_versions(),
                "pins": _stamp(self.catalog.path.with_suffix(PINS)),
                "workspace": str(self.workspace.root),
                "python": sys.version,
                "cpu": host.cpu_features(),
                "rules": str(Path(__file__).parent),
                "prefix": sys.prefix,
            }
        )

    def is_fresh(self, step: "Step") -> bool:
        """doit's question, our answer."""
        return self.graph.judge.decide(step).fresh

    def why(self, step: "Step") -> str:
        """The first reason for building a step that has been built before; nothing for a new one."""
        with alone:
            from rules.commands import wording
            from rules.decide import NEVER_BUILT

        reasons = map(wording.told, self.graph.judge.decide(step).reasons)
        return next((reason for reason in reasons if reason != NEVER_BUILT), "")

    def notes(self, step: "Step") -> list[str]:
        """What a user should know of what the step has made."""
        record = self.workspace.records.read(step.record)
        return [str(one) for one in record.facts.get("notes", ())] if record else []

    def are_fresh(self, steps: Iterable["Step"]) -> bool:
        """doit's question about a group."""
        return all(map(self.is_fresh, steps))

    def carry_out(self, step: "Step") -> TaskFailed | None:
        """A task's action: build the step; a failure is a sentence, not a traceback."""
        with alone:
            from rules.build import build

        try:
            build(step, self.graph.judge, self.workspace, force=self.force)
        except YardError as error:
            owner = step.model or step.task
            named = error.what.startswith((f"{owner}:", f"{step.task}:"))
            return TaskFailed(str(error) if named else f"{owner}: {error}")
        self.made += 1
        return None

    def clean(self, step: "Step", *, dryrun: bool = False) -> list[Path]:
        """`doit clean`: remove the step's outputs, what vouches for others first; the store still knows them.

        Returns what was removed, or with `dryrun` would be. Raises WorkspaceError, with nothing removed,
        where the outputs lie behind a link.
        """
        record = self.graph.judge.record(step)
        paths = [self.workspace.path(output.path) for output in reversed(record.outputs if record else ())]
        for output in record.outputs if record else ():
            if link := self.workspace.link_to(output.path):
                raise files.linked(link)
        present = [path for path in paths if os.path.lexists(path)]
        for path in present if not dryrun else ():
            files.remove(path)
        if step.owns is not None and not dryrun:
            self._remove_empty(self.workspace.path(step.owns), {path.parent for path in paths})
        return present

    @staticmethod
    def _remove_empty(owned: Path, folders: "set[Path]") -> None:
        """Folders in what a step owns that its outputs stood in; an empty one would not belong there."""
        for folder in sorted(folders):
            if folder != owned and folder.is_relative_to(owned):
                with contextlib.suppress(OSError):  # somebody else's file is in it
                    files.remove_folder(folder)


def _stamp(path: Path) -> list[int]:
    """Stamp of a file that need not be there."""
    with contextlib.suppress(OSError):
        return list(Stamp.of(path))
    return []
