"""`doit forget`: the next run really makes the step, instead of restoring what its key once gave."""

from typing import TYPE_CHECKING, Any

from doit.cmd_forget import Forget as DoitForget

from rules.commands.arguments import UsageError
from rules.commands.command import AnyOrder
from rules.keeping.lock import holding
from rules.keys import key_of
from rules.step import Step

if TYPE_CHECKING:
    from rules.tasks import Yard


class Forget(AnyOrder, DoitForget):  # type: ignore[misc]
    """doit's forget, for our records; with a dodo.py of another kind it is doit's and no more."""

    doc_purpose = "forget that tasks were built, so that the next run makes them anew"

    def execute(self, params: Any, args: list[str]) -> int:
        """Load the tasks, then forget some."""
        params.setdefault("yard", None)
        return int(super().execute(params, args) or 0)

    def _execute(
        self, yard: "Yard | None", forget_sub: bool, forget_disable_default: bool, forget_all: bool
    ) -> None:
        if yard is None:
            super()._execute(forget_sub, forget_disable_default, forget_all)
            return
        if self.sel_default_tasks and not forget_all:
            raise UsageError(
                "doit forget: expected a task, got none", fix="doit forget TASK, or doit forget --all"
            )
        with holding(yard.workspace.lock, "doit forget"):
            attach(self.dep_manager, yard)
            super()._execute(forget_sub, forget_disable_default, forget_all)


def attach(database: Any, yard: "Yard") -> None:
    """Make doit's Dependency `database` forget our records along with its own marks."""
    remove, remove_all = database.remove, database.remove_all

    def remove_record(task: str) -> None:
        ignored = task in yard.graph.steps and database._get(task, "ignore:")
        remove(task)
        if ignored:
            print(f"{task} is no longer ignored, and what was built is kept")
        elif task in yard.graph.steps:
            forget(yard, yard.graph.steps[task])

    def remove_records() -> None:
        remove_all()
        for step in yard.graph.steps.values():
            forget(yard, step)

    database.remove, database.remove_all = remove_record, remove_records


def forget(yard: "Yard", step: Step) -> None:
    """Drop the step's record and the results of its keys, the recorded one and the present one."""
    decision = yard.graph.judge.decide(step)
    keys = {decision.record.key} if decision.record else set()
    if decision.content is not None:
        keys.add(key_of(decision.content))
    for key in keys:
        yard.workspace.store.forget_result(key)
    yard.workspace.records.remove(step.record)
