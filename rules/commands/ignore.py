"""`doit ignore`: doit's own, with options anywhere."""

from doit.cmd_ignore import Ignore as DoitIgnore

from rules.commands.arguments import UsageError
from rules.commands.command import AnyOrder
from rules.commands.selection import LISTED


class Ignore(AnyOrder, DoitIgnore):  # type: ignore[misc]
    """Tasks that later runs leave alone, with all that follows from them."""

    def _execute(self, pos_args: list[str]) -> None:
        if not pos_args:
            raise UsageError("doit ignore: expected a task, got none", fix=LISTED["task"])
        super()._execute(pos_args)
