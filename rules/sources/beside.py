"""What an ONNX file keeps outside of itself, brought along from wherever that file comes."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rules.errors import SourceError
from rules.keeping.digests import sha256_of
from rules.keeping.files import copy
from rules.networks import onnxfile, outside
from rules.networks.onnxfile import shown

FOLDER = "beside"  # of a scratch folder

Take = Callable[[str, Path], None]


class Beside:
    """The outside files of one unit's ONNX files, in a folder of `scratch`; `files` has them by location."""

    def __init__(self, scratch: Path) -> None:
        self.files: dict[str, Path] = {}
        self._scratch = scratch
        self._origins: dict[str, str] = {}

    def bring(self, onnx: Path, folder: str, take: Take) -> None:
        """Bring what the fetched file `onnx` names; in its source it lies in `folder`.

        `take` writes what the source has at a path from that folder into a new file, or raises SourceError.
        Raises SourceError for a path that leads elsewhere, or that stands for two different files of the
        unit: all of them come to lie in one folder.
        """
        for location in named(onnx):
            origin = f"{folder}/{location}"
            known = self._origins.setdefault(location.casefold(), origin)
            if known == origin and location in self.files:
                continue
            final = self._scratch / (FOLDER if known == origin else f"{FOLDER}-again") / location
            final.parent.mkdir(parents=True, exist_ok=True)
            take(location, final)
            if known == origin:
                self.files[location] = final
            else:
                self._check_same(location, final, known, origin)

    def _check_same(self, location: str, final: Path, known: str, origin: str) -> None:
        first = self.files.get(location)
        if first is None or sha256_of(first) != sha256_of(final):
            raise SourceError(
                f"{known} and {origin} are different files of one model, and would lie in one folder as"
                f" {shown(location)}",
                fix="export the networks so that their weights lie in files of different names",
            )
        final.unlink()


def named(onnx: Path) -> list[str]:
    """The outside files of an ONNX file; none of a file that is no model, as the preflight tells better."""
    try:
        external = onnxfile.read(onnx).external
    except SourceError:
        return []
    return sorted(outside.checked(onnx.name, external))


def plain(onnx: Path, told: Iterable[object]) -> list[str]:
    """The outside files that a record tells of an ONNX file. Raises SourceError for what is none."""
    return sorted(outside.checked(onnx.name, {str(name): 0 for name in told}))


def take_from(folder: Path) -> Take:
    """Takes from a folder on this machine, where what a link leads to is not taken."""

    def take(location: str, final: Path) -> None:
        path = folder / location
        if not is_there(folder, location):
            link = outside.is_link(path, folder)
            raise SourceError(
                f"{path}: {'a link' if link else 'no such file'}, expected the weights of a model beside it",
                fix=outside.TOGETHER,
            )
        copy(path, final)

    return take


def is_there(folder: Path, location: str) -> bool:
    """Whether a folder has a regular file at a location."""
    return (folder / location).is_file() and not outside.is_link(folder / location, folder)


def missing(path: str, place: str) -> SourceError:
    """The error for weights that a source at `place` has not where its ONNX file says that they are."""
    return SourceError(
        f"{place}: no {path} is there, in which its ONNX file keeps weights",
        fix="name a source that has both, or export the model with its weights inside",
    )


def of_files(roles: Mapping[str, Path], names: Mapping[str, list[str]]) -> dict[str, Path]:
    """Outside files of local ONNX files by location; `names` says by role which there are."""
    found: dict[str, Path] = {}
    for role, path in roles.items():
        folder = path.resolve().parent
        found |= {one: folder / one for one in names[role] if is_there(folder, one)}
    return found
