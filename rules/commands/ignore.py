"""`doit ignore`: doit's own, with options anywhere; and which steps a run leaves alone for it."""

import contextlib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from doit.cmd_ignore import Ignore as DoitIgnore

from rules.commands.arguments import UsageError
from rules.commands.command import AnyOrder
from rules.commands.selection import LISTED
from rules.keeping.lock import holding

if TYPE_CHECKING:
    from rules.step import Step
    from rules.tasks import Yard


class Ignore(AnyOrder, DoitIgnore):  # type: ignore[misc]
    """Tasks that later runs leave alone, with all that follows from them."""

    def execute(self, params: Any, args: list[str]) -> int:
        """Load the tasks, then mark some."""
        params.setdefault("yard", None)
        return int(super().execute(params, args) or 0)

    def _execute(self, yard: "Yard | None", pos_args: list[str]) -> None:
        if not pos_args:
            raise UsageError("doit ignore: expected a task, got none", fix=LISTED["task"])
        with holding(yard.workspace.lock, "doit ignore") if yard else contextlib.nullcontext():
            super()._execute(pos_args)


def skipped(steps: "Iterable[Step]", marked: Collection[str]) -> dict[str, str]:
    """Why a run leaves tasks alone, by task: it is `marked`, or follows one that is left alone.

    `steps` come upstream first; what a run would look at is not in the answer.
    """
    why: dict[str, str] = {}
    for step in steps:
        upstream = next((one.task for one in step.after if one.task in why), None)
        if upstream is not None:
            why[step.task] = f"ignored, as it follows {upstream}"
        elif step.task in marked:
            why[step.task] = f"ignored (doit forget {step.task} takes that back)"
    return why
