"""Sources on this machine: an ONNX file, or a folder of them.

What a file is for is told by its name, never by its being the only one there.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from rules.errors import SourceError
from rules.keeping.digests import sha256_of
from rules.keeping.files import copy
from rules.keys import Content
from rules.sources import chunks
from rules.sources.beside import Beside, take_from
from rules.steps.preflight import ROLES

GENERIC = "generic"


def _listing(path: Path) -> dict[Path, chunks.Chunked | None]:
    """ONNX files, and how those that lie in chunks do."""
    folder = path if path.is_dir() else path.parent
    whole = folder / chunks.whole_of(path.name)
    marker = folder / f"{path.name}{chunks.MARKER}"
    if not path.is_dir() and path == whole and path.exists() and not marker.exists():
        return {path: None}
    there = [one.name for one in folder.iterdir()] if folder.is_dir() else []
    names = [name for name in there if _is_onnx(name)]
    wanted = chunks.wholes(names) if path.is_dir() else [whole.name]
    return {folder / name: chunks.chunked(name, names) for name in wanted}


def _is_onnx(name: str) -> bool:
    return not name.startswith("._") and chunks.whole_of(name).endswith(".onnx")


def role_of(path: Path, form: object) -> str | None:
    """The role a file's name tells, with or without an id before it; None when it tells none."""
    if form == GENERIC:
        return "model"
    return next((role for role in sorted(ROLES) if path.stem == role or path.stem.endswith(f"_{role}")), None)


def _roles(options: Mapping[str, object], base: Path) -> dict[str, tuple[Path, chunks.Chunked | None]]:
    source = base / str(options["path"])
    listed = _listing(source)
    if not source.exists() and not any(listed.values()):
        raise SourceError(f"{source}: no such file or folder", fix="correct the source's path in models.toml")
    roles: dict[str, tuple[Path, chunks.Chunked | None]] = {}
    for path, pieces in listed.items():
        role = role_of(path, options.get("format"))
        if role is None:
            told = "" if pieces else f" (sha256 {sha256_of(path)})"
            raise SourceError(
                f"{path}{told}: its name does not say what it is for",
                fix=f'rename it to one of {", ".join(sorted(ROLES))} (.onnx), or write format = "generic"',
            )
        if role in roles:
            raise SourceError(
                f"{source}: both {roles[role][0].name} and {path.name} are a {role}",
                fix="keep one of them there",
            )
        roles[role] = path, pieces
    if not roles:
        raise SourceError(f"{source}: no .onnx file is in it", fix="correct the source's path in models.toml")
    return roles


def files(options: Mapping[str, object], base: Path) -> Mapping[str, Path]:
    """The ONNX files by role; of one in chunks, each of its files by role and ending."""
    found: dict[str, Path] = {}
    for role, (path, pieces) in _roles(options, base).items():
        names = pieces.files if pieces else (path.name,)
        found |= {role + name.removeprefix(path.name): path.with_name(name) for name in names}
    return found


def _copy_beside(whole: Path, name: str, final: Path) -> None:
    copy(whole.with_name(name), final)


def identity(options: Mapping[str, object]) -> Content:
    """Nothing but the files' bytes decides."""
    return {}


def fetch(options: Mapping[str, object], base: Path, scratch: Path, *, cache: Path) -> dict[str, Path]:
    """Join or copy the files in, with what they name beside them; the originals stay the user's."""
    fetched, beside = {}, Beside(scratch)
    for role, (path, pieces) in _roles(options, base).items():
        fetched[role] = scratch / f"{role}.onnx"
        if pieces:
            chunks.join(pieces, partial(_copy_beside, path), fetched[role])
        else:
            copy(path, fetched[role])
        folder = path.resolve().parent
        beside.bring(fetched[role], str(folder), take_from(folder))
    return fetched | beside.files
