"""`doit dumpdb`: doit's own, where there is a database; records need none."""

from dbm import whichdb
from typing import Any

from doit.cmd_dumpdb import DumpDB as DoitDumpDB

from rules.commands.arguments import UsageError
from rules.commands.command import AnyOrder


class DumpDb(AnyOrder, DoitDumpDB):  # type: ignore[misc]
    """doit's database, if another kind of dodo.py has one."""

    name = "dumpdb"

    def execute(self, opt_values: dict[str, Any], pos_args: list[str]) -> int:
        """Print it. Raises UsageError where there is none."""
        if whichdb(opt_values["dep_file"]) is None:
            raise UsageError(
                "doit dumpdb: there is no database: the records in results/ decide what is stale",
                fix="doit why TASK tells what a record knows",
            )
        return int(super().execute(opt_values, pos_args) or 0)
