"""Parts of a large file, `<name>.p00` … `<name>.p99`, with `<name>.sha256` over the whole of it."""

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rules.errors import CHECK, ArtifactError, WorkspaceError, YardError, cause, located, printable
from rules.keeping import files
from rules.keeping.digests import Stamp, sha256_of
from rules.keeping.files import TEMPORARY_PREFIX, canonical, opened, replacing

LIMIT = 100_000_000  # bytes a resource repository takes in one file
PART_SIZE = 95 * 1024 * 1024  # bytes
MOST = 100  # the client probes p00 … p99
BUFFER = 1024 * 1024  # bytes held in memory at a time

_CHECKSUM = re.compile(r"([0-9a-f]{64}) [ *]([^/\\\x00-\x1f\ud800-\udfff\ufffd]{1,255})\n?")
_TEMPORARY = re.compile(re.escape(TEMPORARY_PREFIX) + r"(\d+)-[0-9a-f]{8}-(.+)")


@dataclass(frozen=True, slots=True)
class Parts:
    """A file in parts: `size` in bytes and `sha256` in hex are those of the whole; `parts` are in order."""

    name: str
    size: int
    sha256: str
    parts: tuple[Path, ...]
    checksum: Path


def needs_parts(size: int) -> bool:
    """Whether a file of `size` bytes is too large for a resource repository."""
    return size > LIMIT


def part_name(name: str, index: int) -> str:
    """The name of part `index` (0 … 99) of the file `name`."""
    return f"{name}.p{index:02d}"


def part_names(name: str, size: int, part_size: int = PART_SIZE) -> list[str]:
    """The names of the parts of `name`, `size` bytes long, with at most `part_size` bytes in each.

    Raises ArtifactError when a part would be empty, be over the limit, or need a third digit.
    """
    if not 0 < part_size <= LIMIT:
        raise ArtifactError(
            f"{name}: the part size is out of bounds: expected 1 to {LIMIT} bytes, got {part_size}",
            fix=f"use the default, {PART_SIZE}",
        )
    if size <= 0:
        raise ArtifactError(f"{name}: an empty file has no parts: expected 1 byte or more, got {size}")
    count = -(-size // part_size)
    if count > MOST:
        raise ArtifactError(
            f"{name}: too many parts for {size} bytes: expected at most {MOST}, got {count}",
            fix=f"use a part size of {-(-size // MOST)} bytes or more",
        )
    return [part_name(name, index) for index in range(count)]


def read_checksum(path: Path) -> tuple[str, str]:
    """The sha256 (hex) and the file name in a `.sha256` file of one `sha256sum` line.

    Raises ArtifactError when the file is missing, malformed, or names a path instead of a file.
    """
    if path.is_symlink():
        raise ArtifactError(f"{printable(path)}: expected a checksum file, got a link", fix="move it away")
    with _told(path, "cannot be read"), opened(path) as file:
        line = file.read(1024)
    return parsed_checksum(line, str(path))


def parsed_checksum(line: bytes, shown: str) -> tuple[str, str]:
    """`read_checksum` of what such a file holds; `shown` is its name for people."""
    match = _CHECKSUM.fullmatch(line.decode("utf-8", "replace"))
    if match is None or not files.is_plain(match[2], files.LONGEST):
        raise ArtifactError(
            f"{shown}: not a checksum file: expected '<64 hex digits>  <file name>', got {line[:100]!r}",
            fix="fetch it again, or make it again with `doit split`",
        )
    return match[1], match[2]


def digest(sources: Iterable[Path]) -> tuple[str, int]:
    """The sha256 (hex) and the length in bytes of `sources`, read one after the other."""
    whole, size = hashlib.sha256(), 0
    for path in sources:
        with opened(path) as file:
            for block in _blocks(file):
                whole.update(block)
                size += len(block)
    return whole.hexdigest(), size


def pour(sources: Iterable[Path], sink: BinaryIO) -> str:
    """Write `sources` into `sink`, one after the other; the sha256 (hex) of it all. Raises OSError."""
    sha256 = hashlib.sha256()
    for path in sources:
        with opened(path) as file:
            for block in _blocks(file):
                sink.write(block)
                sha256.update(block)
    return sha256.hexdigest()


def split(file: Path, directory: Path, *, part_size: int = PART_SIZE, force: bool = False) -> Parts:
    """Write the parts of `file` and their `.sha256` into `directory`, in place of an earlier split.

    A file within the limit is refused unless `force`. Until the new parts are all on disk the earlier
    ones stay as they are; from then on there is no `.sha256` until every part is in place.
    Raises ArtifactError for the file, WorkspaceError for the directory, and for a file there that has a
    part's name and is of no split of ours.
    """
    with _told(file, f"cannot be split into {directory}"):
        size = _size(file, force)
        inside = directory.resolve()
        _check_place(inside, file.name)
        names = part_names(file.name, size, part_size)
        old = standing(inside, file.name, lambda: _coming(file, names, part_size))
        _sweep(inside, file.name)
        sha256 = _write_parts(file, size, [inside / name for name in names], part_size, old)
    parts = tuple(directory / name for name in names)
    return Parts(file.name, size, sha256, parts, _checksum_of(directory / file.name))


# ---- what an earlier split left


@dataclass(frozen=True, slots=True)
class Standing:
    """A checksum or a part that stands in a folder: its sha256 (hex), and its stamp when that was read."""

    sha256: str
    stamp: Stamp


def standing(directory: Path, name: str, coming: Callable[[], Mapping[str, str]]) -> dict[str, Standing]:
    """The checksum and the parts of `name` that stand in `directory`, by name: they are ours to remove.

    That is so for what a checksum of the whole vouches for, for what a killed split of ours noted, and for
    what has the bytes that are `coming` (sha256 by name; asked only when needed). Raises WorkspaceError for
    anything else.
    """
    there = [one for one in _finals(name) if os.path.lexists(directory / one)]
    if strange := [one for one in there if not files.is_file(directory / one)]:
        raise _not_ours(directory / strange[0], "is a link or no plain file")
    found = {one: _standing(directory / one) for one in there}
    noted = _noted(directory, name)
    ours = {*_vouched(directory, name), *(one for one in there if found[one].sha256 in noted.get(one, ()))}
    strange = [one for one in there if one not in ours]
    expected = coming() if strange else {}
    for one in strange:
        if expected.get(one) != found[one].sha256:
            raise _not_ours(directory / one, f"is nothing that {printable(name)}.sha256 vouches for")
    return found


def clear(directory: Path, old: Mapping[str, Standing]) -> None:
    """Remove what stood in `directory`, the `.sha256` first. Raises WorkspaceError for what changed since."""
    for one, stood in old.items():
        if os.path.lexists(directory / one) and Stamp.of(directory / one) != stood.stamp:
            raise _not_ours(directory / one, "was changed meanwhile")
    _remove(directory, old)


def _remove(directory: Path, names: Iterable[str]) -> None:
    for one in sorted(names, key=lambda one: (not one.endswith(".sha256"), one)):
        files.remove(directory / one)
        if one.endswith(".sha256"):
            # A power cut must not bring the checksum back after the parts are gone.
            files.sync_directory(directory)


def _not_ours(path: Path, what: str) -> WorkspaceError:
    return WorkspaceError(
        f"{printable(path)}: {what}, and is not removed",
        fix=f"move {printable(path)} away, or name another folder",
    )


def _finals(name: str) -> list[str]:
    return [f"{name}.sha256", *(part_name(name, index) for index in range(MOST))]


def _standing(path: Path) -> Standing:
    stamp = Stamp.of(path)
    return Standing(sha256_of(path), stamp)


def _vouched(directory: Path, name: str) -> list[str]:
    """The checksum and the parts, from the first on, that are together what it says; else nothing."""
    checksum = directory / f"{name}.sha256"
    try:
        expected, named = read_checksum(checksum)
    except YardError:
        return []
    whole, names = hashlib.sha256(), [checksum.name]
    for index in range(MOST if named == name else 0):
        part = directory / part_name(name, index)
        if not files.is_file(part):
            break
        names.append(part.name)
        with part.open("rb", buffering=0) as file:
            for block in _blocks(file):
                whole.update(block)
        if whole.hexdigest() == expected:
            return names
    return []


def _coming(file: Path, names: list[str], part_size: int) -> dict[str, str]:
    """sha256 by name of what splitting `file` gives."""
    found, whole = {}, hashlib.sha256()
    with file.open("rb", buffering=0) as source:
        for name in names:
            part = hashlib.sha256()
            for block in _blocks(source, part_size):
                whole.update(block)
                part.update(block)
            found[name] = part.hexdigest()
    line = checksum_line(whole.hexdigest(), file.name)
    return {**found, f"{file.name}.sha256": hashlib.sha256(line).hexdigest()}


def checksum_line(sha256: str, name: str) -> bytes:
    """What a `.sha256` file holds, as `sha256sum` prints it."""
    return f"{sha256}  {name}\n".encode()


# ---- a note of what is being replaced by what, for whoever comes after a kill


def _note_of(directory: Path, name: str) -> Path:
    return files.temporary_beside(directory / f"{name}.parts")


def _note(path: Path, lines: bytes) -> None:
    """Write a note that is read line by line, so that one cut short vouches for what it came to."""
    with files.appending(path) as file:
        file.write(lines)
        _settle(file)
    files.sync_directory(path.parent)


def _notes(directory: Path, name: str) -> list[Path]:
    """Notes of splits of `name` that were killed."""
    return [path for path in _left(directory, [f"{name}.parts"]) if files.is_file(path)]


def _noted(directory: Path, name: str) -> dict[str, set[str]]:
    """What was noted: for each name the sha256 of what stood there and of what was to stand there."""
    found: dict[str, set[str]] = {}
    for path in _notes(directory, name):
        for line in path.read_text("utf-8", "replace").splitlines() if path.stat().st_size < BUFFER else ():
            if match := _CHECKSUM.fullmatch(line):
                found.setdefault(match[2], set()).add(match[1])
    return found


# ---- whole again


def join(checksum_file: Path, output: Path | None = None) -> Path:
    """Put together the parts that lie beside `checksum_file`, and return the path of the whole file.

    The result is `output`, or the file that the checksum names, beside it. With no parts but a whole
    file, that is what is checked. Raises ArtifactError when bytes are missing or wrong, and then
    leaves what was under the output's name untouched.
    """
    expected, name = read_checksum(checksum_file)
    if checksum_file.name != f"{name}.sha256":
        raise ArtifactError(
            f"{checksum_file}: is of another file: expected '{checksum_file.stem}', got '{name}'",
            fix=f"rename it to {name}.sha256, or fetch the right one",
        )
    whole = checksum_file.with_name(name)
    target = output or whole
    with _told(target, "cannot be joined"):
        sources = _sources(whole)
        _check_target(target, [*sources, checksum_file] if sources != [whole] else [checksum_file])
        gather(sources, target, lambda got: _check_sum(checksum_file, expected, got, sources))
    return target


def check_free(target: Path) -> None:
    """Raise WorkspaceError where a link, a pipe or a device has the name."""
    if os.path.lexists(target) and not files.is_file(target):
        raise WorkspaceError(
            f"{printable(target)}: is a link or no plain file, and is not replaced", fix="name another output"
        )


def gather(sources: list[Path], target: Path, judge: Callable[[str], None]) -> str:
    """Write `sources`, one after the other, to `target` unless it holds that already; the sha256 (hex).

    `judge` raises what is wrong with a sha256. Raises WorkspaceError for a `target` of other bytes, or that
    is no plain file, ArtifactError for sources that are links, OSError; then nothing was written.
    """
    for path in sources:
        if not files.is_file(path):
            found = "a link" if path.is_symlink() else "none"
            raise ArtifactError(
                f"{printable(path)}: expected a plain file, got {found}", fix="fetch it again"
            )
    if not os.path.lexists(target):
        with replacing(canonical(target), over=False) as sink:
            judge(sha256 := pour(sources, sink))
        return sha256
    check_free(target)
    judge(sha256 := digest(sources)[0])
    if not target.samefile(sources[0]) and digest([target])[0] != sha256:
        raise WorkspaceError(
            f"{printable(target)}: holds other bytes, and is not replaced",
            fix="move it away, or name another output",
        )
    return sha256


@contextlib.contextmanager
def _told(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceError(
            f"{path}: {what}: {located(error) if error.filename != str(path) else cause(error)}",
            fix=f"{CHECK}, then run the command again",
        ) from error


def _blocks(file: BinaryIO, limit: int = sys.maxsize) -> Iterator[bytes]:
    while limit and (block := file.read(min(limit, BUFFER))):
        yield block
        limit -= len(block)


def _checksum_of(whole: Path) -> Path:
    return whole.with_name(f"{whole.name}.sha256")


def _refuse_shadow(whole: Path) -> None:
    marker = whole.with_name(f"{whole.name}.chunkmanifest")
    if os.path.lexists(marker):
        raise ArtifactError(
            f"{marker}: a chunk marker shadows {whole.name}: expected one form of the artifact, got two",
            fix=f"remove {marker} and its chunks",
        )


def _check_place(directory: Path, name: str) -> None:
    if directory.exists() and not directory.is_dir():
        raise WorkspaceError(
            f"{directory}: expected a directory for the parts of {name}, got a file",
            fix="name another directory",
        )
    if not files.is_plain(name, files.LONGEST - len(".sha256")):
        raise ArtifactError(f"{name!r}: a checksum file cannot hold this name", fix="rename the file")
    for path in [directory / one for one in _finals(name)]:
        if path.is_dir():
            raise WorkspaceError(
                f"{path}: expected a file or nothing, got a directory", fix=f"move {path} away"
            )
    _refuse_shadow(directory / name)


def _size(file: Path, force: bool) -> int:
    if not file.is_file():
        found = "something else" if file.exists() else "nothing"
        raise ArtifactError(f"{file}: expected a file to split, got {found}", fix="check the path")
    size = file.stat().st_size
    if not force and not needs_parts(size):
        raise ArtifactError(
            f"{file}: needs no parts: expected more than {LIMIT:,} bytes, got {size:,}",
            fix=f"publish the file whole, or doit split {file} --force",
        )
    return size


def _sweep(directory: Path, name: str) -> None:
    """Remove what a killed split of `name` left under temporary names; its note still vouches for parts."""
    for path in _left(directory, _finals(name)):
        files.remove(path)


def _left(directory: Path, finals: list[str]) -> list[Path]:
    """Temporary files for these final names of processes that are gone."""
    tails = {final[-80:] for final in finals}
    found = []
    for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
        match = _TEMPORARY.fullmatch(entry.name)
        if match and match[2] in tails and not _alive(int(match[1])):
            found.append(entry)
    return found


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _write_parts(
    file: Path, size: int, parts: list[Path], part_size: int, old: Mapping[str, Standing]
) -> str:
    folder, checksum = parts[0].parent, f"{file.name}.sha256"
    killed, note, committing = _notes(folder, file.name), _note_of(folder, file.name), False
    try:
        # The stack unwinds backwards: p99 … p00 take their names first and the checksum takes its own last.
        with contextlib.ExitStack() as stack:
            sink = stack.enter_context(replacing(folder / checksum))
            sha256, digests = _copy(file, size, parts, part_size, stack)
            sink.write(checksum_line(sha256, file.name))
            _settle(sink)
            both = [*((one, stood.sha256) for one, stood in old.items()), *digests.items()]
            _note(note, b"".join(checksum_line(sha256, one) for one, sha256 in both))
            committing = True
            clear(folder, old)
    except BaseException:
        if committing:
            with contextlib.suppress(OSError, YardError):
                _take_back(folder, [checksum, *digests], old)
                files.remove(note)
        raise
    for path in (note, *killed):
        files.remove(path)
    return sha256


def _take_back(folder: Path, new: list[str], old: Mapping[str, Standing]) -> None:
    """Leave neither split once the earlier one has begun to go; what somebody else put there stays."""
    clear(folder, {one: stood for one, stood in old.items() if one not in new})
    _remove(folder, new)


def _copy(
    file: Path, size: int, parts: list[Path], part_size: int, stack: contextlib.ExitStack
) -> tuple[str, dict[str, str]]:
    """Fill the parts; the sha256 (hex) of the whole, and of each part by name."""
    whole, copied, digests = hashlib.sha256(), 0, dict[str, str]()
    with opened(file) as source:
        for path in parts:
            sink, part = stack.enter_context(replacing(path)), hashlib.sha256()
            for block in _blocks(source, part_size):
                sink.write(block)
                whole.update(block)
                part.update(block)
                copied += len(block)
            digests[path.name] = part.hexdigest()
            _settle(sink)
    _check_steady(file, size, (whole.hexdigest(), copied))
    return whole.hexdigest(), digests


def _settle(sink: BinaryIO) -> None:
    # A full disk must show before the earlier split goes, not while the new one takes its place.
    sink.flush()
    os.fsync(sink.fileno())


def _check_steady(file: Path, size: int, copied: tuple[str, int]) -> None:
    # A writer at work while we read gives a copy that never was the file; a second reading shows it.
    now = digest([file])
    if copied[1] != size or now != copied:
        raise ArtifactError(
            f"{file}: changed while it was split: expected {size} bytes with sha256 {copied[0]}, "
            f"got {now[1]} bytes with sha256 {now[0]}",
            fix="let its writer finish, then split again",
        )


def _sources(whole: Path) -> list[Path]:
    """The parts of `whole` in order, or the whole file itself when there are none."""
    probes = [whole.with_name(part_name(whole.name, index)) for index in range(MOST)]
    found = [path for path in probes if path.exists()]
    for part, probe in zip(found, probes, strict=False):
        if part != probe:
            raise ArtifactError(
                f"{probe}: this part is missing: expected it before {part.name}, got nothing", fix="fetch it"
            )
        if not part.is_file() or part.stat().st_size == 0:
            raise ArtifactError(f"{part}: expected a part of 1 byte or more, got none", fix="fetch it again")
    if not found and not whole.is_file():
        raise ArtifactError(
            f"{whole}: expected {probes[0].name} or the whole file beside the checksum, got neither",
            fix="fetch the parts into the checksum's folder",
        )
    return found or [whole]


def _check_target(target: Path, taken: list[Path]) -> None:
    if target.is_dir():
        raise WorkspaceError(
            f"{target}: expected a file name for the result, got a directory", fix="add a file name"
        )
    check_free(target)
    if any(path.exists() and target.exists() and path.samefile(target) for path in taken):
        raise WorkspaceError(
            f"{target}: the result would replace what it is made of", fix="name another output"
        )
    _refuse_shadow(target)


def _check_sum(checksum_file: Path, expected: str, got: str, sources: list[Path]) -> None:
    if got != expected:
        listed = ", ".join(f"{path.name} {path.stat().st_size} B" for path in sources)
        raise ArtifactError(
            f"{checksum_file}: wrong sha256 over {listed}: expected {expected}, got {got}",
            fix="fetch the parts and the checksum again",
        )
