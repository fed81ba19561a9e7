"""sha256 of files, remembered by what the file system says of them, so that bytes are read once.

A digest is trusted while size, mtime, ctime and inode stay as they were. mtime alone can be set by anyone
(`cp -p`, `rsync -a`); ctime cannot. A file that changed within the clock's granularity of its hashing could
change again unseen, so it is read once more when it has aged, and its digest is not kept past the process
before that (git's "racily clean"). What no time tells (a write through a mapping, a disk that rots, a ctime
that is but a copy of mtime) shows only when everything is read again.

File systems that tell times in steps (FAT 2 s, exFAT 10 ms) also number files anew at every mount, and have
no links: there a digest belongs to a path, since a file can get the number, size and times of another.

The digests live in an append-only log, a line per file: a crash loses nothing that was finished.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rules.keeping import files

GRANULARITY_NS = 20_000_000
STEP_NS = 10_000_000  # exFAT's; a time in steps of no less comes from such a file system
COARSE_NS = 2_000_000_000  # FAT's step, and the longest there is
CHUNK = 1 << 20
MOST = 1 << 30  # bytes of a log of digests; one that is kept takes a few hundred thousand
LINE = 1 << 16  # bytes of its longest line


class Stamp(NamedTuple):
    """What identifies a file's content without reading it; times in ns."""

    inode: int
    size: int
    mtime: int
    ctime: int

    @classmethod
    def of(cls, path: Path | str) -> "Stamp":
        """Stamp of a file, or of a folder's own entry list. Raises OSError."""
        found = os.stat(path)  # noqa: PTH116  (a third of Path.stat's time, thousands of times a run)
        return cls(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

    @property
    def granularity(self) -> int:
        """For how many ns after its times a file could change without a new stamp."""
        return COARSE_NS if self.ctime % 1_000_000_000 == 0 else GRANULARITY_NS

    def young(self, now: int) -> bool:
        """Whether a change at the moment `now` could leave the stamp as it is."""
        return any(0 <= now - time < self.granularity for time in (self.mtime, self.ctime))

    def name(self, path: Path | str) -> int | str:
        """Under what a digest is remembered: all links of a file share one, where there are links."""
        return str(path) if self.ctime % STEP_NS == 0 else self.inode


class Pending(NamedTuple):
    """A digest that is not written down yet; `sure` unless the file was young when it was read."""

    stamp: Stamp
    sha256: str
    sure: bool


Table = dict[int | str, tuple[Stamp, str]]  # by inode, or by path


class Digest(NamedTuple):
    """Content of a file: lower-case hex sha256, and size in bytes."""

    sha256: str
    size: int


def sha256_of(path: Path | str) -> str:
    """Read the whole file; lower-case hex. Raises OSError."""
    total = hashlib.sha256()
    with files.opened(path) as file:
        while chunk := file.read(CHUNK):
            total.update(chunk)
    return total.hexdigest()


class Digests:
    """The remembered digests of one workspace. Safe to share between threads."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._pending: dict[str, Pending] = {}
        self._known: Table | None = None
        self._doubted: Table = {}
        self.looked_at: dict[str, Stamp] = {}
        self.reads = 0  # files that were read
        self.keeps = True  # past this process
        self.contradicted: dict[str, tuple[str, str]] = {}  # path → sha256 remembered, and found

    def look(self, path: Path | str) -> Stamp:
        """Stamp of a file or folder, noted among all that was looked at. Raises OSError."""
        stamp = self.looked_at[str(path)] = Stamp.of(path)
        return stamp

    def of(self, path: Path | str) -> Digest:
        """Digest of a file, read only when its stamp is new. Raises OSError.

        A file that is written to while it is read is read again.
        """
        while True:
            stamp = self.look(path)
            known = self._table().get(stamp.name(path))
            if known and known[0] == stamp:
                return Digest(known[1], stamp.size)
            began = time.time_ns()
            sha256 = sha256_of(path)
            if Stamp.of(path) == stamp:
                self._note(path, sha256, stamp, sure=not stamp.young(began))
                return Digest(sha256, stamp.size)

    def knows(self, path: Path | str) -> bool:
        """Whether `of` would answer without reading the file. Raises OSError."""
        stamp = Stamp.of(path)
        known = self._table().get(stamp.name(path))
        return known is not None and known[0] == stamp

    def of_all(self, paths: Iterable[Path | str]) -> None:
        """Learn the digests of many files at once, on all processors; what cannot be read is left out."""

        def learn(path: Path | str) -> None:
            with contextlib.suppress(OSError):
                self.of(path)

        unknown = []
        for path in paths:
            with contextlib.suppress(OSError):
                if not self.knows(path):
                    unknown.append(path)
        if len(unknown) > 1:
            from concurrent.futures import ThreadPoolExecutor  # takes longer to import than an idle run may

            with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashlib lets go of the interpreter's lock
                list(pool.map(learn, unknown))

    def doubt(self) -> None:
        """From here on, read every file once more whatever is remembered of it (`--verify`).

        Files whose bytes changed while their stamps did not are then in `contradicted`.
        """
        self._doubted, self._known = self._table(), {}

    def _note(self, path: Path | str, sha256: str, stamp: Stamp, *, sure: bool) -> None:
        """A file was read."""
        doubted = self._doubted.get(stamp.name(path))
        with self._lock:
            self.reads += 1
            if doubted and doubted[0] == stamp and doubted[1] != sha256:
                self.contradicted[str(path)] = (doubted[1], sha256)
        self._keep(path, Pending(stamp, sha256, sure))

    def remember(self, path: Path | str, sha256: str, stamp: Stamp | None = None) -> None:
        """Note the digest of bytes that were hashed while we wrote them, where nobody else writes."""
        self._keep(path, Pending(stamp or Stamp.of(path), sha256, sure=True))

    def _keep(self, path: Path | str, known: Pending) -> None:
        with self._lock:
            self._table()[known.stamp.name(path)] = known[:2]
            self._pending[str(path)] = known
        self.flush()

    @contextlib.contextmanager
    def same_bytes(self, path: Path) -> Iterator[None]:
        """For a change of links or mode in the block: it moves ctime, and not one byte."""
        sha256, before = self.of(path).sha256, Stamp.of(path)
        yield
        after = Stamp.of(path)
        if after[:3] == before[:3]:  # else somebody wrote into it meanwhile, and it is read again
            self.remember(path, sha256, after)

    def flush(self, *, wait: bool = False) -> None:
        """Write down every digest whose file has aged; with `wait`, let the young ones age first."""
        with self._lock:
            if wait and self._pending:
                time.sleep(max(one.stamp.granularity for one in self._pending.values()) / 1e9)
            now = time.time_ns()
            ripe = {path: one for path, one in self._pending.items() if not one.stamp.young(now)}
            for path in ripe:
                del self._pending[path]
        lines = [_line(path, one) for path, one in ripe.items() if self._still(path, one)]
        if lines and self.keeps:
            self._append("".join(lines))

    def _append(self, lines: str) -> None:
        # A read-only workspace can be looked at all the same: what is not remembered is read again.
        with self._lock, contextlib.suppress(OSError), files.appending(self._log) as log:
            log.write(lines.encode())

    def _still(self, path: str, known: Pending) -> bool:
        """Whether the file is what it was; one that was young then is read again."""
        try:
            if Stamp.of(path) != known.stamp:
                return False
            if known.sure or sha256_of(path) == known.sha256:
                return Stamp.of(path) == known.stamp
        except OSError:
            return False
        with self._lock:
            self._table().pop(known.stamp.name(path), None)
        return False

    def _table(self) -> Table:
        if (known := self._known) is None:
            with self._reading:  # by one thread: what another has noted since would be lost
                known = self._known = self._read() if self._known is None else self._known
        return known

    def _read(self) -> Table:
        table: Table = {}
        lines = 0
        # One that cannot be read remembers nothing. A line that no digest needs is not taken in whole.
        with contextlib.suppress(OSError), files.opened(self._log, MOST) as log:
            while line := log.readline(LINE):
                lines += 1
                # A line cut short by a crash holds nothing: the file is simply read again.
                with contextlib.suppress(ValueError, TypeError, RecursionError):
                    inode, size, mtime, ctime, sha256, *path = json.loads(line)
                    if isinstance(sha256, str):
                        table[path[0] if path else inode] = (Stamp(inode, size, mtime, ctime), sha256)
        if self.keeps and lines > 1000 and lines > 2 * len(table):
            with contextlib.suppress(OSError):  # as in `_append`
                self._compact(table)
        return table

    def _compact(self, table: Table) -> None:
        files.write_bytes(
            self._log, "".join(_named_line(name, *known) for name, known in table.items()).encode()
        )


def _line(path: str, known: Pending) -> str:
    return _named_line(known.stamp.name(path), known.stamp, known.sha256)


def _named_line(name: int | str, stamp: Stamp, sha256: str) -> str:
    return json.dumps([*stamp, sha256, *([name] if isinstance(name, str) else [])]) + "\n"
