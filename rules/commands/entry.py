"""The console script `doit`: doit's own, with an answer where doit itself has none yet."""

import sys

from doit.doit_cmd import DoitMain

from rules.commands.arguments import UsageError
from rules.commands.selection import LISTED


def main() -> int:
    """The entry point; returns the exit code."""
    if "" in sys.argv[1:] and "--" not in sys.argv[1:]:
        error = UsageError("doit: expected a command or a task, got an empty word", fix=LISTED["task"])
        print(f"ERROR: {error}", file=sys.stderr)
        return error.exit_code
    return int(DoitMain().run(sys.argv[1:]) or 0)
