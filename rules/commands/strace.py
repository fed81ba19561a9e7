"""`doit strace`: doit's own, for tasks that are shell commands; ours are not."""

from typing import TYPE_CHECKING, Any

from doit.cmd_strace import Strace as DoitStrace

from rules.commands.arguments import UsageError
from rules.commands.command import AnyOrder

if TYPE_CHECKING:
    from rules.tasks import Yard


class Strace(AnyOrder, DoitStrace):  # type: ignore[misc]
    """What a shell command reads and writes, of another kind of dodo.py."""

    def execute(self, params: Any, args: list[str]) -> int:
        """Load the tasks, then trace one."""
        params.setdefault("yard", None)
        return int(super().execute(params, args) or 0)

    def _execute(self, yard: "Yard | None", show_all: bool) -> int:
        if yard is None:
            return int(super()._execute(show_all) or 0)
        raise UsageError(
            "doit strace: there is no database of what a task opens, and no shell command to trace:"
            " a task here is a step whose record says what it read and made",
            fix="doit why TASK, or doit info TASK",
        )
