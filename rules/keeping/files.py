"""Files that are right or absent, and the doors through which names are written, moved and removed.

A file is written beside its final name, fsynced, then renamed. Every door reaches the folder by descriptors,
a name at a time, and follows no link on the way: whoever puts a link where a folder of ours was, before or
while we are at work, is told of it, and what it leads to stays as it is. A path that a user names may lead
through any link of theirs; `canonical` settles that once, before anything is done.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from rules.errors import WorkspaceError, printable

TEMPORARY_PREFIX = ".tmp-"
LARGEST = 64 << 30  # bytes of any file that is read; a model takes a hundredth of it
TEXT = 64 << 20  # bytes of a file that is read as a whole: a record, a manifest, a table of digests
CHUNK = 1 << 20
DEVICE = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")  # no file of Windows, whatever follows a dot
NO_FILE = "it is no regular file"
NAME_LIMIT = 200  # bytes, so that a name with a model's id before it is still a file name
LONGEST = 255  # bytes of a file name
NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EACCES)
APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
FRESH = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | _FOLDER  # a folder that may be passed need not be readable


# ---- names


def is_plain(name: str, limit: int = NAME_LIMIT) -> bool:
    """Whether the name, of `limit` bytes at most, is one file in its folder, on every system."""
    return (
        name not in ("", ".", "..")
        and name.isprintable()  # also no NUL, newline or escape, and no byte that is not UTF-8
        and not {*"/\\:"} & {*name}  # a colon names a drive or a stream on Windows
        and name[-1] not in ". "  # Windows drops them, and gets another name
        and len(name.encode()) <= limit
        and not DEVICE.fullmatch(name.partition(".")[0].lower())
    )


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """Two names that are one name where case or Unicode's forms do not count, as on exFAT, APFS and NTFS."""
    known: dict[str, str] = {}
    for name in names:
        first = known.setdefault(_folded(name), name)
        if first != name:
            return first, name
    return None


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


# ---- folders


def canonical(path: Path) -> Path:
    """The path with the links in its folder followed, for one that a user named."""
    return path.parent.resolve() / path.name


@contextlib.contextmanager
def folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder, reached without following a link; `make` makes what is missing.

    Raises WorkspaceError that names the link, and OSError as `open` does.
    """
    descriptor = _reached(path.absolute(), make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless it is there. Raises as `folder` does."""
    with folder(path, make=True):
        pass


def _reached(path: Path, make: bool) -> int:
    here = os.open(path.anchor, _SEARCH)
    for depth, name in enumerate(path.parts[1:], 2):
        try:
            there = _entered(here, name, make)
        except OSError as error:
            raise _refused(error, Path(*path.parts[:depth]), here) from None
        finally:
            os.close(here)
        here = there
    return here


def _entered(here: int, name: str, make: bool) -> int:
    try:
        return os.open(name, _SEARCH, dir_fd=here)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=here)
    return os.open(name, _SEARCH, dir_fd=here)


def _refused(error: OSError, path: Path, inside: int) -> Exception:
    """What to raise for a name in the folder `inside` that cannot be opened: a link is told as one."""
    with contextlib.suppress(OSError):
        if stat.S_ISLNK(os.lstat(path.name, dir_fd=inside).st_mode):
            return linked(path)
    return OSError(error.errno, error.strerror, str(path))


def linked(path: Path) -> WorkspaceError:
    """The error for a link where a file or a folder of ours has to be."""
    return WorkspaceError(
        f"{printable(path)}: is a link, and nothing is written or removed through one",
        fix=f"move {printable(path)} away, and what it leads to into its place if that belongs there",
    )


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut."""
    with folder(directory) as inside:
        _sync(inside)


def _sync(inside: int) -> None:
    descriptor = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=inside)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- files that are read


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


def copy(path: Path, final: Path) -> Path:
    """Copy a regular file under a new name, which is returned. Raises OSError as `opened` does."""
    with opened(path) as source, final.open("xb") as target:
        shutil.copyfileobj(source, target, CHUNK)
    return final


def tail(path: Path, most: int) -> str:
    """The last bytes of a log of ours, at most so many, as text. Raises as `own` does."""
    with reading(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most).decode(errors="replace")


# ---- files that are written


def temporary_beside(final: Path) -> Path:
    """A fresh name in the directory of `final`, so that a rename never crosses a file system."""
    return final.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(4)}-{final.name[-80:]}")


def put_in_place(temporary: Path, final: Path) -> None:
    """Rename a finished temporary file to its final name, durably; the folder is made when it is missing."""
    with folder(temporary.parent) as source, folder(final.parent, make=True) as target:
        os.replace(temporary.name, final.name, src_dir_fd=source, dst_dir_fd=target)
        _sync(target)


def protect(path: Path) -> None:
    """Let nobody write into a finished file by mistake. A file system without modes cannot help that."""
    with contextlib.suppress(OSError), folder(path.parent) as inside:
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=inside)
        try:
            os.fchmod(descriptor, 0o444)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def replacing(final: Path, *, over: bool = True) -> Iterator[BinaryIO]:
    """A binary file that takes the name `final` when the block ends well, and leaves no trace otherwise.

    Without `over` a file that has the name by then keeps it, and FileExistsError is raised.
    Raises as `folder` does, and WorkspaceError for a pipe or a device, which a rename would take away. The
    directory is made when it is missing.
    """
    temporary = temporary_beside(final)
    with folder(final.parent, make=True) as inside:
        _check_replaceable(final)
        try:
            with _fresh(temporary, inside) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if over:
                os.replace(temporary.name, final.name, src_dir_fd=inside, dst_dir_fd=inside)
            else:
                _moved(temporary.name, final.name, inside)
            _sync(inside)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary.name, dir_fd=inside)
            raise


def _check_replaceable(final: Path) -> None:
    mode = _mode(final)
    if mode and not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
        raise WorkspaceError(
            f"{printable(final)}: is no plain file, and is not replaced by one", fix="name another file"
        )


def _fresh(path: Path, inside: int) -> BinaryIO:
    try:
        descriptor = os.open(path.name, FRESH, 0o666, dir_fd=inside)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    return os.fdopen(descriptor, "wb")


def write_bytes(final: Path, content: bytes) -> None:
    """Write `content` under the name `final`: all of it, or nothing."""
    with replacing(final) as file:
        file.write(content)


def own(path: Path, flags: int) -> int:
    """A descriptor of a plain file that has no other name, so that what is written in it shows nowhere else.

    Raises WorkspaceError for a link, a hard link, a pipe or a device, and OSError as `open` does.
    """
    with folder(path.parent, make=bool(flags & os.O_CREAT)) as inside:
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe would wait for its other end
        try:
            descriptor = os.open(path.name, flags, 0o666, dir_fd=inside)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a pipe that nobody reads
                raise _strange(path, "no plain file") from None
            raise _refused(error, path, inside) from None
    about = os.fstat(descriptor)
    if stat.S_ISREG(about.st_mode) and about.st_nlink < 2:  # 0: it was removed meanwhile
        return descriptor
    os.close(descriptor)
    raise _strange(path, "a hard link of another file" if stat.S_ISREG(about.st_mode) else "no plain file")


def _strange(path: Path, kind: str) -> WorkspaceError:
    return WorkspaceError(
        f"{printable(path)}: is {kind}", fix=f"move {printable(path)} away; it is made anew"
    )


def appending(path: Path) -> BinaryIO:
    """A log of ours, opened to append. Raises as `own` does."""
    return os.fdopen(own(path, APPEND), "ab")


def reading(path: Path) -> BinaryIO:
    """A file of ours, opened to read. Raises as `own` does."""
    return os.fdopen(own(path, os.O_RDONLY), "rb")


@contextlib.contextmanager
def emptied(path: Path) -> Iterator[BinaryIO]:
    """A note of ours, written anew in place, since others hold a lock on the file. Raises as `own` does."""
    with os.fdopen(own(path, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate()
        yield file


# ---- names that go


def move(old: Path, new: Path) -> None:
    """Rename a file within one folder to a name that nothing has; FileExistsError where something has it.

    Killed in between, the file may have both names. A file system without hard links gets a plain rename.
    """
    with folder(old.parent) as inside:
        _moved(old.name, new.name, inside)


def _moved(old: str, new: str, inside: int) -> None:
    try:
        os.link(old, new, src_dir_fd=inside, dst_dir_fd=inside, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        if _is_there(new, inside):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from None
        os.rename(old, new, src_dir_fd=inside, dst_dir_fd=inside)
    else:
        os.unlink(old, dir_fd=inside)


def _is_there(name: str, inside: int) -> bool:
    try:
        os.lstat(name, dir_fd=inside)
    except FileNotFoundError:
        return False
    return True


def remove(path: Path) -> None:
    """Remove a file, or the link itself, unless it is gone. Raises as `folder` does."""
    with contextlib.suppress(FileNotFoundError), folder(path.parent) as inside:
        os.unlink(path.name, dir_fd=inside)


def remove_folder(path: Path) -> None:
    """Remove an empty folder. Raises as `folder` does."""
    with folder(path.parent) as inside:
        os.rmdir(path.name, dir_fd=inside)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, or a file, or the link itself, unless it is gone."""
    with contextlib.suppress(FileNotFoundError), folder(path.parent) as inside:
        if stat.S_ISDIR(os.lstat(path.name, dir_fd=inside).st_mode):
            shutil.rmtree(path.name, dir_fd=inside)
        else:
            os.unlink(path.name, dir_fd=inside)


def discard(scratch: Path) -> None:
    """Remove a scratch folder as far as that can be done; what is left is swept by the next run."""
    with contextlib.suppress(OSError, WorkspaceError):
        remove_tree(scratch)


def is_file(path: Path) -> bool:
    """Whether a plain file is there, and no link to one."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Whether a folder is there, and no link to one."""
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0
