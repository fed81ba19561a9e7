"""Weights that an ONNX file keeps outside of itself (`model.onnx.data`), which lie beside it or below."""

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from rules.errors import SourceError
from rules.keeping import files
from rules.networks import onnxfile
from rules.networks.onnxfile import shown

ONNX: Final = ".onnx"
OURS: Final = (ONNX, ".pkl")  # what a model's folders hold besides
LITTER: Final = ("._", files.TEMPORARY_PREFIX)
ROLE: Final = re.compile(r"[a-z0-9_]+")  # as models.toml has them; a pin of a role has no dot
EXPORT: Final = "export the model again with its weights inside, or in one plainly named file beside it"
TOGETHER: Final = "put the file there, whole, under that name: it belongs to the model"


def names(path: Path) -> list[str]:
    """The files outside of the ONNX file at `path`, as paths from its folder, sorted.

    Raises SourceError when the file is damaged, or names what cannot lie beside it.
    """
    return sorted(checked(path.name, onnxfile.read(path).external))


def checked(name: str, external: Mapping[str, int]) -> dict[str, int]:
    """By path from the folder of the ONNX file `name`: the bytes an outside file must at least hold.

    `external` has them as the file does (see `onnxfile.OnnxSummary`). Raises SourceError as `names` does.
    """
    needed: dict[str, int] = {}
    for location, least in external.items():
        if flaw := _flaw(location):
            raise SourceError(f"{name}: weights in {shown(location)}, {flaw}", fix=EXPORT)
        plain = str(PurePosixPath(location))
        needed[plain] = max(needed.get(plain, 0), least)
    if twins := files.alike(needed):
        both = " and ".join(map(shown, twins))
        raise SourceError(f"{name}: its weights are in {both}, which is one name on many disks", fix=EXPORT)
    return needed


def _flaw(location: str) -> str:
    """Why there can be no such file beside a model; nothing if there can."""
    path = PurePosixPath(location)
    if path.is_absolute() or ".." in path.parts or "\\" in location:
        return "expected a file beside the model"
    if not path.name or not all(map(files.is_plain, path.parts)) or path.parts[0].startswith(LITTER):
        return "expected a name that is one on every disk"
    if path.name.casefold().endswith(OURS) or ROLE.fullmatch(str(path)):
        return f"expected a name with a dot in it that ends in none of {', '.join(OURS)}"
    return ""


def is_link(path: Path, folder: Path) -> bool:
    """Whether `path`, or a folder between it and `folder`, is a link."""
    between = [path, *path.parents][: len(path.relative_to(folder).parts)]
    return any(one.is_symlink() for one in between)
