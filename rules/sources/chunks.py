"""ONNX files in chunks: `<name>.chunk01of03` …, and a marker `<name>.chunkmanifest` that holds their count.

The count may have been planned before the size was known: chunks at the end may be empty.
"""

import re
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from rules.errors import SourceError
from rules.keeping import files

MARKER = ".chunkmanifest"
LONGEST_MARKER = 64  # bytes

_CHUNK = re.compile(r"(?P<whole>.+\.onnx)\.chunk(?P<index>\d\d)of(?P<count>\d\d)", re.S)
_COUNT = re.compile(rb"\s*(\d{1,2})\s*")


@dataclass(frozen=True)
class Chunked:
    """A file in chunks: its own name, its marker's, and the chunks' in order."""

    whole: str
    chunks: tuple[str, ...]

    @property
    def marker(self) -> str:
        """The marker's name."""
        return self.whole + MARKER

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that it is."""
        return (self.marker, *self.chunks)


def whole_of(name: str) -> str:
    """The name of the whole file, of a chunk's or a marker's; any other name as it is."""
    if name.endswith(f".onnx{MARKER}"):
        return name.removesuffix(MARKER)
    match = _CHUNK.fullmatch(name)
    return match["whole"] if match else name


def is_piece(name: str) -> bool:
    """Whether the name is that of a chunk of an ONNX file, or of its marker."""
    return whole_of(name) != name


def wholes(names: Iterable[str]) -> list[str]:
    """The names, with that of the whole in the place of its pieces, each once, sorted."""
    return sorted({whole_of(name) for name in names})


def chunked(whole: str, names: Collection[str]) -> Chunked | None:
    """How `whole` lies in chunks among `names`; None where none of its pieces is there.

    Raises SourceError where not all of them are, or the whole file lies beside them.
    """
    pieces = [name for name in names if whole_of(name) == whole != name]
    if not pieces:
        return None
    counts = sorted({match["count"] for name in pieces if (match := _CHUNK.fullmatch(name))})
    if whole in names:
        raise SourceError(
            f"{whole}: both the whole file and {min(pieces)} are there, expected one form",
            fix="remove the one that is out of date",
        )
    if whole + MARKER not in pieces:
        raise SourceError(
            f"{min(pieces)}: expected {whole}{MARKER} beside it, got nothing", fix="fetch it, too"
        )
    if len(counts) != 1:
        found = f"chunks of {' and of '.join(counts)}" if counts else "no chunk"
        raise SourceError(
            f"{whole}{MARKER}: expected the chunks of one file beside it, got {found}",
            fix=f"fetch {whole} again with all its chunks, or remove the marker",
        )
    return _complete(numbered(whole, int(counts[0])), pieces)


def numbered(whole: str, count: int) -> Chunked:
    """The file `whole` in `count` chunks."""
    return Chunked(whole, tuple(f"{whole}.chunk{index:02d}of{count:02d}" for index in range(1, count + 1)))


def _complete(one: Chunked, pieces: Collection[str]) -> Chunked:
    if missing := [name for name in one.files if name not in pieces]:
        raise SourceError(f"{missing[0]}: this chunk is missing", fix="fetch it into the same place")
    if strange := sorted({*pieces} - {*one.files}):
        raise SourceError(f"{strange[0]}: no chunk of {len(one.chunks)}", fix="remove it")
    return one


def count_in(marker: Path, shown: str) -> int:
    """The count that a marker holds. Raises SourceError for anything else."""
    with files.opened(marker) as file:
        content = file.read(LONGEST_MARKER + 1)
    match = _COUNT.fullmatch(content)
    if match is None or not int(match[1]):
        raise SourceError(
            f"{shown}: expected a count of chunks from 1 to 99, got {content[:20]!r}", fix="fetch it again"
        )
    return int(match[1])


def join(one: Chunked, bring: Callable[[str, Path], None], final: Path) -> None:
    """Write the whole file to `final`; `bring` writes a piece, by name, to a path beside it.

    Raises SourceError where the marker holds another count, or a chunk in the middle is empty.
    """
    piece = final.with_name(f"{final.name}.piece")
    bring(one.marker, piece)
    if (count := count_in(piece, one.marker)) != len(one.chunks):
        raise SourceError(
            f"{one.marker}: expected {len(one.chunks)}, as its chunks are numbered, got {count}",
            fix=f"fetch {one.whole} again with all its chunks",
        )
    piece.unlink()
    empty = ""
    with final.open("xb") as sink:
        for name in one.chunks:
            bring(name, piece)
            size = piece.stat().st_size
            if size and empty:
                raise SourceError(f"{empty}: empty, although {name} after it is not", fix="fetch it again")
            empty = empty if size else name
            with files.opened(piece) as source:
                shutil.copyfileobj(source, sink, files.CHUNK)
            piece.unlink()
