"""`doit clean`: remove outputs; the store still knows them, so the next run restores instead of compiling."""

from typing import TYPE_CHECKING, Any

from doit.cmd_clean import Clean as DoitClean

from rules.commands.command import AnyOrder
from rules.commands.forget import attach
from rules.errors import printable
from rules.keeping.lock import holding

if TYPE_CHECKING:
    from rules.tasks import Yard


class Clean(AnyOrder, DoitClean):  # type: ignore[misc]
    """doit's clean under the workspace's lock; with a dodo.py of another kind it is doit's and no more."""

    _yard: "Yard | None" = None

    def execute(self, params: Any, args: list[str]) -> int:
        """Load the tasks, then clean some."""
        params.setdefault("yard", None)
        return int(super().execute(params, args) or 0)

    def _execute(
        self,
        yard: "Yard | None",
        dryrun: bool,
        cleandep: bool,
        cleanall: bool,
        cleanforget: bool,
        pos_args: list[str] | None = None,
    ) -> None:
        if yard is None:
            super()._execute(dryrun, cleandep, cleanall, cleanforget, pos_args)
            return
        self._yard = yard
        with holding(yard.workspace.lock, "doit clean"):
            attach(self.dep_manager, yard)
            super()._execute(dryrun, cleandep, cleanall, cleanforget, pos_args)

    def clean_tasks(self, tasks: list[Any], dryrun: bool, cleanforget: bool) -> None:
        """Clean each task once, saying which files go."""
        if self._yard is None:
            super().clean_tasks(tasks, dryrun, cleanforget)
            return
        for name in dict.fromkeys(task.name for task in tasks):
            if step := self._yard.graph.steps.get(name):
                for path in self._yard.clean(step, dryrun=dryrun):
                    print(f"{name} - removing file '{printable(path)}'")
            if cleanforget and not dryrun:
                self.dep_manager.remove(name)
        self.dep_manager.close()
