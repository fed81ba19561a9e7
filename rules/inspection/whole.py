"""The bytes of an artifact, whole or in parts, read at any place without ever holding much of them."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from rules.counting import counted
from rules.keeping import files

BUFFER = 256 * 1024  # bytes held in memory at a time


class Damage(Exception):
    """The bytes are not a sound artifact; `kind` is a word of `verdict.py`, `what` says where and why."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind
        self.what = what


class Whole:
    """Files read as if they were one, in the order given; `size` in bytes is that of all of them."""

    def __init__(self, files: list[tuple[BinaryIO, int]]) -> None:
        self._files: list[tuple[int, BinaryIO]] = []
        self.size = 0
        for file, size in files:
            self._files.append((self.size, file))
            self.size += size

    def read(self, at: int, count: int) -> bytes:
        """At most `count` bytes from `at` on; fewer only where the last file ends."""
        found = b""
        for start, file in reversed(self._files):
            if start <= at:
                file.seek(at - start)
                found = file.read(count)
                break
        if found and len(found) < count and at + len(found) < self.size:
            found += self.read(at + len(found), count - len(found))
        return found

    def sha256(self) -> str:
        """The sha256 of all bytes, in hex."""
        total = hashlib.sha256()
        for _, file in self._files:
            file.seek(0)
            while block := file.read(4 * BUFFER):
                total.update(block)
        return total.hexdigest()


@contextmanager
def opened(paths: list[Path]) -> Iterator[Whole]:
    """Open `paths` as one whole. Raises OSError."""
    with ExitStack() as stack:
        handles: list[BinaryIO] = [stack.enter_context(files.opened(path)) for path in paths]
        yield Whole([(file, path.stat().st_size) for file, path in zip(handles, paths, strict=True)])


class Tape:
    """A cursor over bytes `start` to `stop` of a whole; what is skipped is never read."""

    def __init__(self, whole: Whole, start: int, stop: int) -> None:
        self._whole = whole
        self._buffer = b""
        self._base = start  # where in the whole the buffer begins
        self._at = 0
        self.stop = stop

    @property
    def position(self) -> int:
        """Where in the whole the next byte is."""
        return self._base + self._at

    @property
    def left(self) -> int:
        """How many bytes are left before `stop`."""
        return self.stop - self.position

    def byte(self) -> int:
        """The next byte. Raises Damage where there is none."""
        try:
            value = self._buffer[self._at]
        except IndexError:
            self._refill(1)
            value = self._buffer[0]
        self._at += 1
        return value

    def take(self, count: int) -> bytes:
        """The next `count` bytes. Raises Damage where there are fewer."""
        end = self._at + count
        if end > len(self._buffer):
            self._refill(count)
            end = count
        taken = self._buffer[self._at : end]
        self._at = end
        return taken

    def number(self, width: int) -> int:
        """The next `width` bytes as an unsigned little-endian number. Raises Damage where there are fewer."""
        return int.from_bytes(self.take(width), "little")

    def peek(self, count: int) -> bytes:
        """The next `count` bytes, left in place; fewer where there are fewer."""
        end = self._at + count
        if end > len(self._buffer) and self.left:
            self._refill(min(count, self.left))
            end = count
        return self._buffer[self._at : end]

    def skip(self, count: int) -> None:
        """Pass over `count` bytes unread. Raises Damage where there are fewer."""
        self._check(count)
        self._at += count
        if self._at > len(self._buffer):
            self._base, self._buffer, self._at = self.position, b"", 0

    def line(self, most: int) -> bytes:
        """The bytes up to the next line feed, which is passed over. Raises Damage beyond `most` bytes."""
        found = bytearray()
        while (value := self.byte()) != 10:
            found.append(value)
            if len(found) > most:
                raise Damage("malformed", f"a line over {most} bytes long ends at byte {self.position}")
        return bytes(found)

    def _check(self, count: int) -> None:
        if count > self.left:
            raise Damage(
                "truncated",
                f"truncated at byte {self.stop}: {counted(count, 'byte')} wanted from {self.position}",
            )

    def _refill(self, count: int) -> None:
        self._check(count)
        self._base, self._at = self.position, 0
        self._buffer = self._whole.read(self._base, min(max(count, BUFFER), self.stop - self._base))
        if len(self._buffer) < count:
            raise Damage("truncated", f"truncated at byte {self._base + len(self._buffer)}")
