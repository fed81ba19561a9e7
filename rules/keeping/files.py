"""Files that are right or absent: written beside their final name, fsynced, then renamed."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

TEMPORARY_PREFIX = ".tmp-"
NAME_LIMIT = 200  # bytes, so that a name with a model's id before it is still a file name


def is_plain(name: str) -> bool:
    """Whether the name stays in the folder it is put into, on every system."""
    return (
        name == PurePosixPath(name).name
        and name not in ("", ".", "..")
        and "\\" not in name
        and name.isprintable()
        and len(name.encode()) <= NAME_LIMIT
    )


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
