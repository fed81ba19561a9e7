"""Parts of a large file, `<name>.p00` … `<name>.p99`, with `<name>.sha256` over the whole of it."""

import contextlib
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rules.errors import CHECK, ArtifactError, WorkspaceError, cause, located
from rules.keeping.files import TEMPORARY_PREFIX, opened, replacing, sync_directory

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
    with _told(path, "cannot be read"), opened(path) as file:
        line = file.read(1024)
    match = _CHECKSUM.fullmatch(line.decode("utf-8", "replace"))
    if match is None or match[2] in {".", ".."}:
        raise ArtifactError(
            f"{path}: not a checksum file: expected '<64 hex digits>  <file name>', got {line[:100]!r}",
            fix="fetch it again, or make it again with `doit split`",
        )
    return match[1], match[2]


def digest(files: Iterable[Path]) -> tuple[str, int]:
    """The sha256 (hex) and the length in bytes of `files`, read one after the other."""
    whole, size = hashlib.sha256(), 0
    for path in files:
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
    Raises ArtifactError for the file, WorkspaceError for the directory.
    """
    with _told(file, f"cannot be split into {directory}"):
        size = _size(file, force)
        _check_place(directory, file.name)
        parts = [directory / name for name in part_names(file.name, size, part_size)]
        _sweep(directory, file.name)
        sha256 = _write_parts(file, size, parts, part_size)
    return Parts(file.name, size, sha256, tuple(parts), _checksum_of(directory / file.name))


def clear(directory: Path, name: str) -> None:
    """Remove the `.sha256` and every part of `name` from `directory`, the `.sha256` first. Raises OSError."""
    checksum = _checksum_of(directory / name)
    if os.path.lexists(checksum):
        checksum.unlink()
        # A power cut must not bring the checksum back after the parts are gone.
        sync_directory(directory)
    for index in range(MOST):
        (directory / part_name(name, index)).unlink(missing_ok=True)


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
        if target.exists() and target.samefile(sources[0]):
            _check_sum(checksum_file, expected, digest(sources)[0], sources)
        else:
            _concatenate(checksum_file, expected, sources, target)
    return target


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
    if not _CHECKSUM.fullmatch(f"{'0' * 64}  {name}"):
        raise ArtifactError(f"{name!r}: a checksum file cannot hold this name", fix="rename the file")
    for path in [_checksum_of(directory / name), *(directory / part_name(name, i) for i in range(MOST))]:
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
            f"{file}: needs no parts: expected more than {LIMIT} bytes, got {size}",
            fix="publish the file whole, or force the split",
        )
    return size


def _sweep(directory: Path, name: str) -> None:
    """Remove what a killed split of `name` left under temporary names."""
    finals = [_checksum_of(Path(name)).name, *(part_name(name, index) for index in range(MOST))]
    tails = {final[-80:] for final in finals}
    for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
        match = _TEMPORARY.fullmatch(entry.name)
        if match and match[2] in tails and not _alive(int(match[1])):
            entry.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _write_parts(file: Path, size: int, parts: list[Path], part_size: int) -> str:
    whole = parts[0].with_name(file.name)
    committing = False
    try:
        # The stack unwinds backwards: p99 … p00 take their names first and the checksum takes its own last.
        with contextlib.ExitStack() as stack:
            checksum = stack.enter_context(replacing(_checksum_of(whole)))
            sha256 = _copy(file, size, parts, part_size, stack)
            checksum.write(f"{sha256}  {file.name}\n".encode())
            _settle(checksum)
            committing = True
            clear(whole.parent, whole.name)
    except BaseException:
        if committing:
            with contextlib.suppress(OSError):
                clear(whole.parent, whole.name)
        raise
    return sha256


def _copy(file: Path, size: int, parts: list[Path], part_size: int, stack: contextlib.ExitStack) -> str:
    sha256, copied = hashlib.sha256(), 0
    with opened(file) as source:
        for part in parts:
            sink = stack.enter_context(replacing(part))
            for block in _blocks(source, part_size):
                sink.write(block)
                sha256.update(block)
                copied += len(block)
            _settle(sink)
    _check_steady(file, size, (sha256.hexdigest(), copied))
    return sha256.hexdigest()


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
    if any(path.exists() and target.exists() and path.samefile(target) for path in taken):
        raise WorkspaceError(
            f"{target}: the result would replace what it is made of", fix="name another output"
        )
    _refuse_shadow(target)


def _concatenate(checksum_file: Path, expected: str, sources: list[Path], target: Path) -> None:
    with replacing(target) as sink:
        _check_sum(checksum_file, expected, pour(sources, sink), sources)


def _check_sum(checksum_file: Path, expected: str, got: str, sources: list[Path]) -> None:
    if got != expected:
        listed = ", ".join(f"{path.name} {path.stat().st_size} B" for path in sources)
        raise ArtifactError(
            f"{checksum_file}: wrong sha256 over {listed}: expected {expected}, got {got}",
            fix="fetch the parts and the checksum again",
        )
