"""`doit split`: a file in parts that a repository takes."""

from pathlib import Path
from typing import Any

from rules.commands.arguments import UsageError, option
from rules.commands.command import Command
from rules.errors import printable
from rules.releasing import parts

MIB = 1 << 20


class Split(Command):
    """The parts of FILE and their .sha256, in place of an earlier split."""

    doc_purpose = "split a large file into .pNN parts and a .sha256"
    doc_usage = "FILE"
    doc_description = f"Without --chunk-size-mib and --force only a file over {parts.LIMIT:,} bytes is split."
    cmd_options = (
        option("output_dir", "folder for the parts [default: that of FILE]", kind=str),
        option("chunk_size_mib", f"size of a part in MiB [default: {parts.PART_SIZE // MIB}]", kind=int),
        option("force", "split a file that needs no parts, too"),
    )
    least = most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Split and print what was written."""
        mib = options["chunk_size_mib"]
        if mib is not None and not 0 < mib * MIB <= parts.LIMIT:
            most = parts.LIMIT // MIB
            raise UsageError(
                f"doit split: --chunk-size-mib: expected 1 to {most}, got {mib}", fix=f"say {most}"
            )
        file = Path(operands[0])
        size = parts.PART_SIZE if mib is None else mib * MIB
        made = parts.split(
            file,
            Path(options["output_dir"] or file.parent),
            part_size=size,
            force=options["force"] or mib is not None,
        )
        for path in (*made.parts, made.checksum):
            print(printable(path))
        return 0
