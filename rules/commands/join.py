"""`doit join`: the whole file from its parts, if its sha256 is right."""

from pathlib import Path
from typing import Any

from rules.commands.arguments import option
from rules.commands.command import Command
from rules.releasing import parts


class Join(Command):
    """The file that FILE.sha256 names, from the parts beside it."""

    doc_purpose = "put the parts of a file together again, verified"
    doc_usage = "FILE.sha256"
    cmd_options = (
        option("output", "the file to write [default: the name in FILE.sha256, beside it]", kind=str),
    )
    least = most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Join and print the path of the whole file."""
        print(parts.join(Path(operands[0]), Path(options["output"]) if options["output"] else None))
        return 0
