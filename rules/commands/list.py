"""`doit list`: doit's own, with options anywhere."""

from doit.cmd_list import List as DoitList

from rules.commands.command import AnyOrder


class List(AnyOrder, DoitList):  # type: ignore[misc]
    """The tasks; with --status whether each would run."""
