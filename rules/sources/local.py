"""Sources on this machine: an ONNX file, or a folder of them.

What a file is for is told by its name, never by its being the only one there.
"""

from collections.abc import Mapping
from pathlib import Path

from rules.errors import SourceError
from rules.keeping.digests import sha256_of
from rules.keeping.files import copy
from rules.keys import Content
from rules.sources.beside import Beside, take_from
from rules.steps.preflight import ROLES

GENERIC = "generic"


def _listing(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(
            one for one in path.iterdir() if one.suffix == ".onnx" and not one.name.startswith("._")
        )
    return [path]


def role_of(path: Path, form: object) -> str | None:
    """The role a file's name tells, with or without an id before it; None when it tells none."""
    if form == GENERIC:
        return "model"
    return next((role for role in sorted(ROLES) if path.stem == role or path.stem.endswith(f"_{role}")), None)


def _roles(options: Mapping[str, object], base: Path) -> dict[str, Path]:
    source = base / str(options["path"])
    if not source.exists():
        raise SourceError(f"{source}: no such file or folder", fix="correct the source's path in models.toml")
    roles: dict[str, Path] = {}
    for path in _listing(source):
        role = role_of(path, options.get("format"))
        if role is None:
            raise SourceError(
                f"{path} (sha256 {sha256_of(path)}): its name does not say what it is for",
                fix=f'rename it to one of {", ".join(sorted(ROLES))} (.onnx), or write format = "generic"',
            )
        if role in roles:
            raise SourceError(
                f"{source}: both {roles[role].name} and {path.name} are a {role}",
                fix="keep one of them there",
            )
        roles[role] = path
    if not roles:
        raise SourceError(f"{source}: no .onnx file is in it", fix="correct the source's path in models.toml")
    return roles


def files(options: Mapping[str, object], base: Path) -> Mapping[str, Path]:
    """The ONNX files by role."""
    return _roles(options, base)


def identity(options: Mapping[str, object]) -> Content:
    """Nothing but the files' bytes decides."""
    return {}


def fetch(options: Mapping[str, object], base: Path, scratch: Path, *, cache: Path) -> dict[str, Path]:
    """Copy the files in, with what they name beside them; the originals stay the user's."""
    fetched, beside = {}, Beside(scratch)
    for role, path in _roles(options, base).items():
        fetched[role] = scratch / f"{role}.onnx"
        copy(path, fetched[role])
        folder = path.resolve().parent
        beside.bring(fetched[role], str(folder), take_from(folder))
    return fetched | beside.files
