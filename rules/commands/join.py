"""`doit join`: the whole file from its pieces, if its sha256 is right."""

import sys
from pathlib import Path
from typing import Any

from rules.commands.arguments import option
from rules.commands.command import Command
from rules.errors import printable
from rules.releasing import joining


class Join(Command):
    """FILE is the whole file's name, one of its parts or chunks, its .sha256 or its .chunkmanifest."""

    doc_purpose = "put the parts of a file together again, verified"
    doc_usage = "FILE"
    doc_description = (
        "FILE is the whole file's name, or any of its pieces: a .pNN part, a chunk, its .sha256 or "
        ".chunkmanifest. A whole file beside its chunks would be shadowed by them, so those need --output."
    )
    cmd_options = (
        option("output", "the file to write [default: the whole file's name, beside its parts]", kind=str),
    )
    least = most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Join and print the path of the whole file."""
        made = joining.join(Path(operands[0]), Path(options["output"]) if options["output"] else None)
        print(printable(made.path))
        if not made.checked:
            print(f"not verified: no .sha256 is beside the chunks; got {made.sha256}", file=sys.stderr)
        return 0
