"""The content store: every output lives once, by its sha256, and appears in place by a link or a copy.

`cas/ab/<sha256>` holds bytes; `ac/<key>.json` says which outputs a build key once gave, so that going back to
an earlier flag set restores instead of compiling.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Any, BinaryIO

from rules.errors import WorkspaceError
from rules.keeping import blocks, files
from rules.keeping.digests import CHUNK, Digests, sha256_of
from rules.keeping.files import (
    TEMPORARY_PREFIX,
    is_plain,
    protect,
    put_in_place,
    temporary_beside,
    write_bytes,
)

SHA256 = re.compile(r"[0-9a-f]{64}")
FICLONE = 0x40049409  # linux/fs.h: share the extents of another file


class Store:
    """The store under one folder."""

    def __init__(self, root: Path, digests: Digests) -> None:
        self.root = root
        self.digests = digests
        self.refusals: list[str] = []  # results that were found and not believed, a line each

    def path_of(self, sha256: str) -> Path:
        """Where the bytes with this digest live, if they are here."""
        return self.root / "cas" / sha256[:2] / sha256

    def blocks_of(self, sha256: str) -> Path:
        """Where the check values of the blocks of these bytes are kept."""
        return self.root / "blocks" / sha256[:2] / sha256

    def scratch(self) -> Path:
        """A fresh folder to make outputs in, on the store's own file system."""
        folder = self.root / "tmp" / f"{os.getpid()}-{secrets.token_hex(4)}"
        files.make_folder(folder)
        return folder

    def sweep(self) -> None:
        """Remove what killed runs left half made. Only for the holder of the workspace's lock."""
        files.discard(self.root / "tmp")
        for half_made in sorted((self.root / "toolchains").glob(f"{TEMPORARY_PREFIX}*")):
            files.discard(half_made)

    def put(self, made: Path) -> str:
        """Move a finished file into the store; returns its sha256. Nobody may write to the file any more."""
        return self.adopt(made, sha256_of(made))

    def adopt(self, made: Path, sha256: str) -> str:
        """`put` for a file that was hashed while it was written."""
        final = self.path_of(sha256)
        if not self.holds(sha256):
            with made.open("rb+") as file:
                os.fsync(file.fileno())
            protect(made)
            put_in_place(made, final)
            self.digests.remember(final, sha256)
            blocks.note(final, self.blocks_of(sha256))
        files.remove(made)
        return sha256

    def holds(self, sha256: str) -> bool:
        """Whether the bytes are here and still what their name says; a damaged blob is removed."""
        if not SHA256.fullmatch(sha256):
            return False
        blob = self.path_of(sha256)
        try:
            # A link in the place of a blob is no copy of ours: whoever has what it leads to may change it.
            if self.digests.of(blob).sha256 == sha256 and files.is_file(blob):
                return True
            files.remove(blob)
        except FileNotFoundError:
            pass
        return False

    def place(self, sha256: str, final: Path) -> None:
        """Make the bytes appear under `final`, atomically: by reflink, else hard link, else copy; read-only.

        Whoever writes into a hard link all the same (root, or after a chmod) damages the blob too: that is
        found, and the bytes are made anew. Only a reflink or a copy leaves a blob to restore from, and copies
        would fill the disk twice. Raises WorkspaceError when the store does not hold them intact.
        """
        if not self.holds(sha256):
            raise WorkspaceError(
                f"{final}: its bytes ({sha256[:12]}…) are no longer in the store {self.root}",
                fix="doit forget the task that makes it, then doit",
            )
        blob, temporary = self.path_of(sha256), temporary_beside(final)
        try:
            with self.digests.same_bytes(blob):
                with files.folder(final.parent, make=True) as inside:
                    _appear(blob, temporary.name, inside)
                protect(temporary)
                put_in_place(temporary, final)
        finally:
            files.remove(temporary)
        self.digests.remember(final, sha256)

    def note_result(self, key: str, result: dict[str, Any]) -> None:
        """Remember what a build key gave."""
        kept = {**result, "key": key}
        write_bytes(self.result_path(key), json.dumps(kept, sort_keys=True, indent=1).encode())

    def result(self, key: str) -> dict[str, Any] | None:
        """What a build key once gave, if every byte of it is still here.

        One that was copied from another key or edited proves nothing: it is refused. One whose bytes are gone
        or damaged is None.
        """
        try:
            result = self.read_result(key)
            complete = all(self.holds(output["sha256"]) for output in result["outputs"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self.refuse(key, str(error))
            return None
        return result if complete else None

    def read_result(self, key: str) -> dict[str, Any]:
        """The result that is kept for a key. Raises OSError, and ValueError for what is not one of ours."""
        content = files.read(self.result_path(key))
        try:
            result: dict[str, Any] = json.loads(content)
            names = [output["name"] for output in result["outputs"]]
            digests = [output["sha256"] for output in result["outputs"]]
            sound = all(map(is_plain, names)) and all(map(SHA256.fullmatch, digests))
            sound = sound and len({*names}) == len(names) and isinstance(result["facts"], dict)
            sound = sound and isinstance(result["step"], str) and result["key"] == key
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"expected a result, got something else ({type(error).__name__})") from None
        if not sound:
            raise ValueError("expected a result of this key, got something else")
        return result

    def refuse(self, key: str, flaw: str) -> None:
        """Drop a result that proves nothing, and tell the user so in `refusals`."""
        self.refusals.append(f"store {self.root}: refused ac/{key:.12}…: {flaw}")
        with contextlib.suppress(OSError):  # what took its place may be a folder; it is written over
            self.forget_result(key)

    def forget_result(self, key: str) -> None:
        """The next build of this key really builds."""
        files.remove(self.result_path(key))

    def result_path(self, key: str) -> Path:
        """Where is kept what a key gave."""
        return self.root / "ac" / f"{key}.json"


def _appear(blob: Path, name: str, inside: int) -> None:
    """Give the bytes of `blob` a new name in the folder of the descriptor `inside`."""
    if _reflink(blob, name, inside):
        return
    try:
        os.link(blob, name, dst_dir_fd=inside, follow_symlinks=False)
    except OSError as error:
        # exFAT has no links (EPERM, ENOTSUP, ENOSYS); another disk cannot share an inode (EXDEV); ext4 stops
        # at 65,000 names (EMLINK).
        if error.errno not in (
            errno.EPERM,
            errno.EXDEV,
            errno.EMLINK,
            errno.ENOTSUP,
            errno.ENOSYS,
            errno.EACCES,
        ):
            raise
        _copy(blob, name, inside)


def _reflink(blob: Path, name: str, inside: int) -> bool:
    with files.opened(blob) as source, _fresh(name, inside) as target, contextlib.suppress(OSError):
        fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
        return True
    os.unlink(name, dir_fd=inside)
    return False


def _copy(blob: Path, name: str, inside: int) -> None:
    with files.opened(blob) as source, _fresh(name, inside) as target:
        shutil.copyfileobj(source, target, CHUNK)
        target.flush()
        os.fsync(target.fileno())


def _fresh(name: str, inside: int) -> BinaryIO:
    return os.fdopen(os.open(name, files.FRESH, 0o666, dir_fd=inside), "wb")
