"""`doit init`: a folder to build in."""

import os
from pathlib import Path
from typing import Any

from rules.commands.arguments import UsageError, option
from rules.commands.command import CATALOG, DODO, Command
from rules.editing import starter
from rules.keeping.files import write_bytes


class Init(Command):
    """Lay out a workspace; what is there stays as it is."""

    doc_purpose = "lay out a workspace: folders, a starter models.toml and dodo.py, source maps"
    doc_usage = "[DIR]"
    doc_description = "Nothing that exists is written over."
    cmd_options = (
        option("workspace", "where artifacts go [default: MODELS_WORKSPACE, else DIR/artifacts]", kind=str),
        option("source_map", "a source map to keep in the workspace; may be given several times", kind=list),
    )
    most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Make what is missing and print it."""
        maps = [Path(one) for one in options["source_map"]]
        for one in maps:
            if not one.is_file():
                raise UsageError(f"{one}: no such file", fix="name a source map")
        for path in lay_out(Path(operands[0] if operands else "."), options["workspace"], maps):
            print(path)
        return 0


def lay_out(folder: Path, workspace: str | None, maps: list[Path]) -> list[Path]:
    """Make the folders and files that are missing; returns what was made."""
    chosen = workspace or os.environ.get("MODELS_WORKSPACE")
    root = Path(chosen) if chosen else folder / "artifacts"
    made = []
    for path in [folder, root, *(root / name for name in starter.FOLDERS)]:
        if not path.is_dir():
            path.mkdir(parents=True)
            made.append(path)
    wanted = {
        folder / CATALOG: (starter.CATALOG + starter.EXAMPLE).encode(),
        folder / DODO: starter.DODO.encode(),
    }
    wanted |= {root / "source-maps" / one.name: one.read_bytes() for one in maps}
    for path, content in wanted.items():
        if not path.exists():
            write_bytes(path, content)
            made.append(path)
    return made
