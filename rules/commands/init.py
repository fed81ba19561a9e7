"""`doit init`: a folder to build in."""

import contextlib
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rules.commands.arguments import UsageError, option
from rules.commands.command import CATALOG, DODO, Command
from rules.editing import starter
from rules.errors import WorkspaceError, printable
from rules.keeping import files
from rules.keeping.files import canonical, write_bytes


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
        folder = Path(operands[0] if operands else ".")
        made = lay_out(folder, options["workspace"], maps)
        for path in made:
            print(printable(path))
        there = "" if folder == Path() else f"cd {shlex.quote(printable(folder))}, then "
        if not made:
            print(f"{printable(folder)}: everything is laid out already")
        elif folder / CATALOG in made:
            print(f"next: {there}doit builds the example, doit add FILE adds a model of yours")
        return 0


def lay_out(folder: Path, workspace: str | None, maps: list[Path]) -> list[Path]:
    """Make the folders and files that are missing; returns what was made.

    Raises WorkspaceError, before anything is made, where a file stands in place of a folder or the reverse.
    """
    chosen = workspace or os.environ.get("MODELS_WORKSPACE")
    root = Path(chosen) if chosen else folder / "artifacts"
    folders = [folder, root, *(root / name for name in starter.FOLDERS)]
    wanted = {
        folder / CATALOG: (starter.CATALOG + starter.EXAMPLE).encode(),
        folder / DODO: starter.DODO.encode(),
    }
    wanted |= {root / "source-maps" / one.name: files.read(one) for one in maps}
    _check(folders, wanted)
    made: list[Path] = []
    try:
        for path in folders:
            if not path.is_dir():
                path.mkdir(parents=True)
                made.append(path)
        for path, content in wanted.items():
            if not path.exists():
                write_bytes(canonical(path), content)
                made.append(path)
    except OSError:
        _take_back(made)
        raise
    return made


def _take_back(made: list[Path]) -> None:
    for path in reversed(made):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()


def _check(folders: Iterable[Path], files: Iterable[Path]) -> None:
    for path in folders:
        there = next(one for one in (path, *path.absolute().parents) if os.path.lexists(one))
        if not there.is_dir():
            raise WorkspaceError(
                f"doit init: {there}: expected a folder, got a file", fix="name another folder"
            )
    for path in files:
        if os.path.lexists(path) and not path.is_file():
            raise WorkspaceError(f"doit init: {path}: expected a file, got a folder", fix="move it away")
