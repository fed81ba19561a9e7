"""`doit ignore`: doit's own, with options anywhere."""

from doit.cmd_ignore import Ignore as DoitIgnore

from rules.commands.command import AnyOrder


class Ignore(AnyOrder, DoitIgnore):  # type: ignore[misc]
    """Tasks that later runs leave alone, with all that follows from them."""
