"""Handing finished artifacts over to a folder of the user's: complete files in one form, or nothing new."""

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from rules.keeping.digests import CHUNK, sha256_of
from rules.keeping.files import opened, replacing
from rules.releasing import parts
from rules.step import Step
from rules.workspace import Workspace


def outputs(steps: Sequence[Step], workspace: Workspace) -> list[Path]:
    """What fresh steps made, what vouches for others last."""
    records = [workspace.records.read(step.record) for step in steps]
    return [workspace.path(output.path) for record in records if record for output in record.outputs]


def deliver(files: Sequence[Path], folder: Path) -> list[Path]:
    """Copy `files`, what vouches for others last, and return the copies. Raises OSError.

    Parts of an earlier form of the same artifact go; WorkspaceError for a file that has the name of one and
    is none. No name is taken before every byte is on disk.
    """
    if all(path.parent.resolve() == folder.resolve() for path in files):
        return list(files)
    inside = folder.resolve()
    wholes = [path for path in files if not any(path.name.startswith(f"{one.name}.") for one in files)]
    old: dict[str, parts.Standing] = {}
    for path in wholes:
        old |= parts.standing(inside, path.name, lambda: {one.name: sha256_of(one) for one in files})
    with contextlib.ExitStack() as stack:  # unwinds backwards: the last of `files` takes its name last
        for path in reversed(files):
            sink = stack.enter_context(replacing(inside / path.name))
            with opened(path) as source:
                shutil.copyfileobj(source, sink, CHUNK)
            sink.flush()
        parts.clear(inside, old)
    return [folder / path.name for path in files]
