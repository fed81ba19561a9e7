"""How an artifact lies on disk: whole or in parts, its pickle in-band or with buffers out of band.

Out of band: int64 little-endian length of the opcodes, the opcodes (pickle protocol 5), then for each buffer
its int64 length and its bytes, up to exactly the end of the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rules.counting import counted
from rules.errors import ArtifactError
from rules.inspection import stranger
from rules.inspection.opcodes import TABLE
from rules.inspection.whole import Damage, Tape, Whole
from rules.keeping import files
from rules.releasing.parts import MOST, part_name, read_checksum

LENGTH = 8  # bytes of an int64
BUFFERS = 200_000
PICKLES = range(2, 6)  # protocols that begin with PROTO

_PART = re.compile(r"(?P<whole>.+)\.(?P<kind>p\d\d|sha256|chunkmanifest|chunk\d\dof\d\d)")
_COUNT = re.compile(rb"\s*(\d{1,2})\s*")


@dataclass(frozen=True)
class Place:
    """Where an artifact's bytes are: `files` in order; `sha256` in hex when a checksum lies beside them."""

    name: str
    files: list[Path]
    sha256: str | None = None


@dataclass(frozen=True)
class Container:
    """Where in the whole the opcodes are, and the sizes of the out-of-band buffers (None: in-band)."""

    start: int
    stop: int
    buffers: list[int] | None = None
    damage: list[Damage] = field(default_factory=list)


def place_of(path: Path) -> Place:
    """The files that `path` stands for: itself, or the parts of which it is one, or the name.

    Raises ArtifactError when there is nothing, Damage when parts are missing or the checksum is no checksum.
    """
    match = _PART.fullmatch(path.name)
    whole = path.with_name(match["whole"]) if match else path
    if match and path.exists():
        files = chunks_of(whole) if match["kind"].startswith("chunk") else _parts(whole) or [whole]
    else:
        marked = path.with_name(f"{path.name}.chunkmanifest").exists()
        files = [path] if path.exists() else _parts(path) or (chunks_of(path) if marked else [])
        whole = path
    for file in files or [whole]:
        if not file.is_file():
            raise _absent(file, match and path)
    return Place(whole.name, files, _checksum(whole))


def _absent(file: Path, piece: Path | None) -> ArtifactError:
    """There is no file at `file`, which was named, or for which the file `piece` stands."""
    if piece is not None and piece != file and piece.exists():
        return ArtifactError(
            f"{file}: expected an artifact, got nothing: {piece.name} alone is not one",
            fix=f"fetch {file.name}, or all its parts, into the same folder",
        )
    found = "a folder" if file.is_dir() else "no plain file" if file.exists() else "nothing"
    return ArtifactError(f"{file}: expected an artifact, got {found}", fix=stranger.instead_of(file))


def _checksum(whole: Path) -> str | None:
    beside = whole.with_name(f"{whole.name}.sha256")
    if not beside.is_file():
        return None
    try:
        sha256, name = read_checksum(beside)
    except ArtifactError as error:
        raise Damage("checksum", error.what) from error
    if name != whole.name:
        raise Damage("checksum", f"{beside.name} is of another file: expected {whole.name!r}, got {name!r}")
    return sha256


def _parts(whole: Path) -> list[Path]:
    probes = [whole.with_name(part_name(whole.name, index)) for index in range(MOST)]
    found = [probe for probe in probes if probe.exists()]
    for part, probe in zip(found, probes, strict=False):
        if part != probe:
            raise Damage("missing", f"part {probe.name} is missing")
    return found


def chunks_of(whole: Path) -> list[Path]:
    """The chunks of `whole` in order, as many as its marker says. Raises Damage when one is missing."""
    marker = whole.with_name(f"{whole.name}.chunkmanifest")
    try:
        if not marker.is_file():  # a FIFO would be waited for
            raise Damage("missing", f"{marker.name} is {'no plain file' if marker.exists() else 'missing'}")
        with files.opened(marker) as file:
            text = file.read(64)
    except OSError as error:
        raise Damage("missing", f"{marker.name} is missing") from error
    match = _COUNT.fullmatch(text)
    count = int(match[1]) if match else 0
    if not count:
        raise Damage("malformed", f"{marker.name}: expected a count of chunks, got {text[:20]!r}")
    chunks = [whole.with_name(f"{whole.name}.chunk{index:02d}of{count:02d}") for index in range(1, count + 1)]
    for chunk in chunks:
        if not chunk.exists():
            raise Damage("missing", f"chunk {chunk.name} is missing")
    return chunks


def is_out_of_band(head: bytes, size: int) -> bool:
    """Whether the first bytes of a file of `size` bytes say that buffers follow the opcodes."""
    if head[LENGTH : LENGTH + 2] != b"\x80\x05":
        return False
    count = int.from_bytes(head[:LENGTH], "little", signed=True)
    return 0 < count <= size - LENGTH or not starts_pickle(head)


def starts_pickle(head: bytes) -> bool:
    """Whether `head` begins as pickles of protocol 2 to 5 do."""
    return len(head) > 1 and head[0] == 0x80 and head[1] in PICKLES and (len(head) == 2 or head[2] in TABLE)


def container_of(whole: Whole) -> Container:
    """Where the opcodes and buffers are. Raises Damage when there is no artifact at all."""
    head = whole.read(0, 256)
    if not head or head.startswith(stranger.POINTER) or stranger.certain(head):
        raise Damage("not a pickle", "not a pickle")
    if is_out_of_band(head, whole.size):
        return _out_of_band(whole)
    return Container(0, whole.size)


def _out_of_band(whole: Whole) -> Container:
    tape = Tape(whole, 0, whole.size)
    count = _length(tape, "the opcodes")
    if count > tape.left:
        short = Damage(
            "truncated", f"truncated at byte {whole.size}: the opcodes want {counted(count, 'byte')} from 8"
        )
        return Container(LENGTH, whole.size, [], [short])
    tape.skip(count)
    sizes: list[int] = []
    container = Container(LENGTH, LENGTH + count, sizes)
    try:
        sizes.extend(_buffers(tape))
    except Damage as damage:
        container.damage.append(damage)
    return container


def _buffers(tape: Tape) -> Iterator[int]:
    """The size of each buffer from here to the end."""
    for index in range(BUFFERS):
        if not tape.left:
            return
        size = _length(tape, what := f"out-of-band buffer {index}")
        at = tape.position
        if size > tape.left:
            raise Damage(
                "truncated", f"truncated at byte {tape.stop}: {what} wants {counted(size, 'byte')} from {at}"
            )
        tape.skip(size)
        yield size
    raise Damage("bomb", f"pickle bomb: more than {BUFFERS} out-of-band buffers at byte {tape.position}")


def _length(tape: Tape, what: str) -> int:
    at = tape.position
    size = int.from_bytes(tape.take(LENGTH), "little", signed=True)
    if size < 0:
        raise Damage("malformed", f"malformed at byte {at}: {what} of {counted(size, 'byte')}")
    return size
