"""One writer for a workspace: an advisory lock that the operating system drops when its holder dies.

It is held on the workspace's folder, so that deleting files there gives nobody a second one. It is held on
the file that tells who holds it, too: a network share may have locks on files alone.
"""

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from rules.errors import WorkspaceError, cause, printable, unwritable
from rules.keeping import files
from rules.keeping.files import read, write_bytes

LOCKS = Path("/proc/locks")
NOTE = 1 << 16  # bytes of what tells who holds it
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Held(WorkspaceError):
    """Another run holds the workspace."""

    exit_code = 4


@contextlib.contextmanager
def holding(path: Path, what: str, *, wait: bool | None = None, reads: bool = False) -> Iterator[None]:
    """Hold a workspace while the block runs; `what` tells others what runs, in the file `path` of its store.

    `wait` is None for a command that cannot wait; one that only `reads` may have a workspace that nobody can
    write to. Raises Held, naming the holder, when the workspace is taken and `wait` is not true, and
    WorkspaceError where nothing can be written, or the file system has no locks.
    """
    folder = path.parent.parent
    try:
        os.close(files.own(path, files.APPEND))
    except OSError as error:
        if not (reads and folder.is_dir() and error.errno in READ_ONLY):
            raise unwritable(folder, cause(error)) from None
        with _locked(folder, os.O_RDONLY, path, None if wait else f"wait for it, then {what}"):
            yield
        return
    again = f"wait for it, then {what}" if wait is None else "wait for it, or add --wait"
    taken = None if wait else again
    with _locked(folder, os.O_RDONLY, path, taken) as one, _locked(path, os.O_RDWR, path, taken) as other:
        if one is None and other is None:
            raise WorkspaceError(
                f"{folder}: its file system has no locks, so another run could go on there at the same time",
                fix="build on another disk: --workspace FOLDER",
            )
        note = {"pid": os.getpid(), "what": what, "since": int(time.time())}
        _write(other, path, json.dumps(note).encode())
        yield


def _write(descriptor: int | None, path: Path, note: bytes) -> None:
    if descriptor is None:
        write_bytes(path, note)
    else:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note, 0)


@contextlib.contextmanager
def alone_in(folder: Path, what: str, *, wait: bool) -> Iterator[None]:
    """Hold a folder that was handed over while the block runs; nothing is written into it for that.

    Raises Held when another holds it and `wait` is not true. A file system without locks cannot help.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = f"{folder}: {_locker(folder)} is at work there ({what})"
            if not wait:
                raise Held(held, fix="wait for it, or add --wait") from None
            print(f"waiting: {held}", flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(place: Path, access: int, path: Path, taken: str | None) -> Iterator[int | None]:
    """A descriptor of the locked file or folder, or None where the file system has no such locks.

    `taken` is what to do when another holds it; None is to wait here.
    """
    with contextlib.ExitStack() as stack:
        while True:
            descriptor = _opened(place, access)
            stack.callback(os.close, descriptor)
            try:
                _lock(descriptor, path, taken)
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                yield None
                return
            if _is(place, descriptor):
                yield descriptor
                return


def _opened(place: Path, access: int) -> int:
    """A descriptor of a folder, or of a regular file that is made when it is missing. Raises WorkspaceError.

    What we write would end elsewhere through a link, and wait for a reader in a pipe.
    """
    if access == os.O_RDONLY:
        return os.open(place, access)
    try:
        return files.own(place, access | os.O_CREAT)
    except OSError as error:
        raise WorkspaceError(
            f"{place}: {cause(error)}", fix=f"remove {place}; no run is lost by that"
        ) from None


def _lock(descriptor: int, path: Path, taken: str | None) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        folder = path.parent.parent
        if taken is not None:
            raise Held(f"{folder}: {_holder(path, folder)}", fix=taken) from None
        print(f"waiting: {printable(_holder(path, folder))}", flush=True)
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _is(place: Path, descriptor: int) -> bool:
    """Whether what was locked still bears its name: that is where the next run looks."""
    try:
        return os.path.samestat(place.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(path: Path, folder: Path) -> str:
    try:
        held = json.loads(read(path, NOTE))
        since = time.strftime("%H:%M:%S", time.localtime(held["since"]))
        return f"process {held['pid']} holds this workspace since {since} ({held['what']})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return f"{_locker(folder)} holds this workspace"


def _locker(folder: Path) -> str:
    """Whom Linux lists as the holder of a folder's lock (proc_locks(5)), when the note of it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        found = folder.stat()
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        for line in LOCKS.read_text().splitlines():
            if (fields := line.split())[1] == "FLOCK" and fields[5] == device:
                return f"process {int(fields[4])}"
    return "another process"
