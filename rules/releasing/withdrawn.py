"""Releases taken out of models.toml, and what they left in the workspace, as far as records prove it."""

import contextlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rules.clients import starpilot
from rules.counting import counted
from rules.decide import is_litter
from rules.keeping import files
from rules.keeping.records import Output
from rules.workspace import Workspace

RELEASES = "ready-for-resources"
_NAME = re.compile(r"v[0-9]+")
_RECORD = re.compile(rf"({_NAME.pattern})_(manifest|release)")


@dataclass(frozen=True)
class Withdrawn:
    """What one such release left; what is not as its records say stays, as `left` tells.

    `files` are in the order of their removal: what vouches for others goes first, the records last.
    """

    name: str
    folder: Path
    files: tuple[Path, ...]
    records: tuple[Path, ...]
    left: tuple[Path, ...]

    def remove(self) -> None:
        """Remove it. Killed half way, the rest is found again by the records."""
        for path in self.files:
            files.remove(path)
        if self.records:
            for folder in (*_folders(self.folder, self.name), self.folder):
                with contextlib.suppress(OSError):  # something is left in it, or it was never made
                    files.remove_folder(folder)
        for path in self.records:
            files.remove(path)


def withdrawn(workspace: Workspace, declared: Collection[str]) -> list[Withdrawn]:
    """What releases other than the `declared` ones left, by name; only for the holder of the lock."""
    recorded = [found[1] for name in workspace.records.names() if (found := _RECORD.fullmatch(name))]
    top = workspace.path(RELEASES)
    folders = [path.name for path in top.iterdir() if path.is_dir()] if top.is_dir() else []
    names = {*recorded, *(one for one in folders if _NAME.fullmatch(one))} - set(declared)
    return [_withdrawn(workspace, one) for one in sorted(names)]


def _withdrawn(workspace: Workspace, name: str) -> Withdrawn:
    folder = workspace.path(f"{RELEASES}/{name}")
    outputs, records = _recorded(workspace, name)
    made = [workspace.path(output.path) for output in reversed(outputs) if _is_there(workspace, output)]
    if folder.is_symlink():  # its files lie elsewhere
        return Withdrawn(name, folder, (), (), (folder,))
    inside = sorted(_inside(folder, name)) if folder.is_dir() else []
    litter = [path for path in inside if records and files.is_file(path) and is_litter(path.name)]
    paths = [*litter, *made]
    named = (workspace.path(output.path) for output in outputs)
    left = {path for path in (*inside, *named) if path.exists() and path not in paths}
    return Withdrawn(name, folder, tuple(paths), records, tuple(sorted(left)))


def _folders(folder: Path, name: str) -> list[Path]:
    """Those in the release's folder that a release has."""
    return [
        folder / one for one in PurePosixPath(starpilot.place(name, starpilot.manifest_name(name))).parts[:-1]
    ]


def _inside(folder: Path, name: str) -> Iterator[Path]:
    own = [one for one in _folders(folder, name) if files.is_folder(one)]
    for one in (folder, *own):
        yield from (path for path in one.iterdir() if path not in own)


def _recorded(workspace: Workspace, name: str) -> tuple[list[Output], tuple[Path, ...]]:
    """The release's outputs, manifest last, and its records."""
    manifest = starpilot.manifest_name(name)
    own = (
        f"manifests/{manifest}",
        f"source-maps/{starpilot.id_map_name(name)}",
        f"{RELEASES}/{name}/{starpilot.place(name, manifest)}",
    )
    outputs, records = [], []
    for kind in ("release", "manifest"):
        record = workspace.records.read(f"{name}_{kind}")
        if record is not None and record.step == f"{kind}:{name}":
            outputs += [
                one
                for one in record.outputs
                if one.path in own or str(PurePosixPath(one.path).parent) == f"{RELEASES}/{name}"
            ]
            records.append(workspace.records.path_of(f"{name}_{kind}"))
    return outputs, tuple(records)


def _is_there(workspace: Workspace, output: Output) -> bool:
    """Whether the output is in its place with the bytes that were recorded."""
    path = workspace.path(output.path)
    return files.is_file(path) and workspace.digests.of(path).sha256 == output.sha256


def lines(found: Withdrawn, root: Path, *, dry: bool) -> Iterator[str]:
    """What goes, or with `dry` would go, and what stays."""
    if found.files or found.records:
        what = f"{counted(len(found.files), 'file')} {'would be removed' if dry else 'removed'}"
        yield f"release {found.name}, which models.toml has no more: {what}"
    for path in found.left:
        yield f"{path.relative_to(root)}: of no release in models.toml, and not as one made it; left as it is"
