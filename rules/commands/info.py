"""`doit info`: doit's own, with our reasons in words."""

from typing import Any

from doit.cmd_base import check_tasks_exist
from doit.cmd_info import Info as DoitInfo

from rules.commands import wording
from rules.commands.arguments import UsageError
from rules.commands.command import AnyOrder
from rules.commands.selection import LISTED
from rules.step import Step


class Info(AnyOrder, DoitInfo):  # type: ignore[misc]
    """A task's targets and dependencies, and why it would run."""

    def _execute(self, pos_args: list[str], hide_status: bool = False) -> int:
        if len(pos_args) != 1:
            found = " ".join(pos_args) or "none"
            raise UsageError(f"doit info: expected one task, got {found}", fix=LISTED["task"])
        check_tasks_exist({task.name for task in self.task_list}, pos_args)
        return int(super()._execute(pos_args, hide_status) or 0)

    @staticmethod
    def get_reasons(reasons: dict[str, list[Any]]) -> str:
        """doit's reasons, and ours in place of the name of a function of ours."""
        for asked, args, _ in reasons["uptodate_false"]:
            if args and isinstance(args[0], Step):
                decision = asked.__self__.graph.judge.decide(args[0])
                return "\n".join(f" * {wording.told(reason)}" for reason in decision.reasons)
        return str(DoitInfo.get_reasons(reasons))
