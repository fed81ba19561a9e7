"""Files that are right or absent: written beside their final name, fsynced, then renamed."""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

TEMPORARY_PREFIX = ".tmp-"
LARGEST = 64 << 30  # bytes of any file that is read; a model takes a hundredth of it
TEXT = 64 << 20  # bytes of a file that is read as a whole: a record, a manifest, a table of digests
CHUNK = 1 << 20
DEVICE = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")  # no file of Windows, whatever follows a dot
NO_FILE = "it is no regular file"
NAME_LIMIT = 200  # bytes, so that a name with a model's id before it is still a file name


def is_plain(name: str) -> bool:
    """Whether the name stays in the folder it is put into, on every system."""
    return (
        name == PurePosixPath(name).name
        and name not in ("", ".", "..")
        and "\\" not in name
        and name.isprintable()
        and len(name.encode()) <= NAME_LIMIT
        and not DEVICE.fullmatch(name.partition(".")[0].lower())
    )


def opened(path: Path | str, most: int = LARGEST) -> BinaryIO:
    """A regular file of at most so many bytes, opened to be read.

    What was handed over may be a pipe, which is waited for without end, or a device that gives bytes without
    end. Raises OSError, naming the path, for those as for a file that is not there.
    """
    _check(os.stat(path), path, most)  # noqa: PTH116  (opening some devices already does something)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(os.fstat(descriptor), path, most)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _check(found: os.stat_result, path: Path | str, most: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, NO_FILE, str(path))
    if found.st_size > most:
        raise OSError(errno.EFBIG, _excess(found.st_size, most), str(path))


def _excess(size: int, most: int) -> str:
    return f"it has {size:,} bytes, expected at most {most:,}"


def read(path: Path | str, most: int = TEXT) -> bytes:
    """All of a regular file of at most so many bytes. Raises OSError as `opened` does."""
    with opened(path, most) as file:
        content = file.read(os.fstat(file.fileno()).st_size + 1)
        while len(content) <= most and (piece := file.read(CHUNK)):
            content += piece
    if len(content) > most:  # it grew, or it is one of those that tell no size
        raise OSError(errno.EFBIG, _excess(len(content), most), str(path))
    return content


def appending(path: Path) -> BinaryIO:
    """A regular file, made when it is missing, opened to be added to. Raises OSError as `opened` does."""
    with contextlib.suppress(FileNotFoundError):
        _check(path.stat(), path, LARGEST)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        _check(os.fstat(descriptor), path, LARGEST)
        return os.fdopen(descriptor, "ab")
    except BaseException:
        os.close(descriptor)
        raise


def copy(path: Path, final: Path) -> Path:
    """Copy a regular file under a new name, which is returned. Raises OSError as `opened` does."""
    with opened(path) as source, final.open("xb") as target:
        shutil.copyfileobj(source, target, CHUNK)
    return final


def tail(path: Path, most: int) -> str:
    """The last bytes of a regular file, at most so many, as text. Raises OSError as `opened` does."""
    with opened(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most).decode(errors="replace")


def temporary_beside(final: Path) -> Path:
    """A fresh name in the directory of `final`, so that a rename never crosses a file system."""
    return final.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-{final.name[-80:]}")


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(temporary: Path, final: Path) -> None:
    """Rename a finished temporary file to its final name, durably."""
    temporary.replace(final)
    sync_directory(final.parent)


def protect(path: Path) -> None:
    """Let nobody write into a finished file by mistake. A file system without modes cannot help that."""
    with contextlib.suppress(OSError):
        path.chmod(0o444)


@contextlib.contextmanager
def replacing(final: Path) -> Iterator[BinaryIO]:
    """A binary file that takes the name `final` when the block ends well, and leaves no trace otherwise.

    Raises OSError as `open` does. The directory is made when it is missing.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_beside(final)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        put_in_place(temporary, final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(final: Path, content: bytes) -> None:
    """Write `content` under the name `final`: all of it, or nothing."""
    with replacing(final) as file:
        file.write(content)
