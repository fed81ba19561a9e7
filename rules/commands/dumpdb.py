"""`doit dumpdb`: doit's own, which says so where there is no database to show, as beside any catalog."""

from dbm import whichdb
from typing import Any

from doit.cmd_dumpdb import DumpDB as DoitDumpDB

from rules.commands.arguments import UsageError
from rules.commands.command import AnyOrder


class DumpDB(AnyOrder, DoitDumpDB):  # type: ignore[misc]
    """What doit's own backends have stored; records are no database."""

    def execute(self, params: Any, args: list[str]) -> int:
        """Show a database. Raises UsageError when there is none."""
        file = params["dep_file"]
        if not whichdb(file):  # what `doit ignore` marked lies beside it, and is none
            raise UsageError(
                f"doit dumpdb: {file}: there is no database, records tell what was built",
                fix="doit why ID tells what they say",
            )
        return int(super().execute(params, args) or 0)
