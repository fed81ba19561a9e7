"""Pickles whose buffers lie behind the opcodes, written and read one buffer at a time.

The form (that of the external-GPU artifacts in the field): int64 little-endian count of the opcodes' bytes,
the opcodes (pickle protocol 5), then for each buffer its int64 length and its bytes, up to exactly the end of
the file. A model's weights thus never have to be in memory twice.
"""

import io
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

LENGTH = 8  # bytes of an int64
PROTOCOL = 5
START = b"\x80\x05"  # how opcodes of protocol 5 begin
CHUNK = 1 << 20


def is_out_of_band(path: Path) -> bool:
    """Whether the file begins as an out-of-band pickle does; raises OSError when it cannot be read.

    An in-band pickle has the high bytes of its first frame's length where the other has its opcodes.
    """
    with path.open("rb") as file:
        return file.read(LENGTH + len(START))[LENGTH:] == START


def dump(content: Any, path: Path) -> None:
    """Pickle `content` out of band; raises OSError when the disk is in the way.

    Buffers come last in the file but first from the pickler, which keeps what it has seen: each goes to a
    nameless file at once and is released, so that one at a time is in memory.
    """
    with path.open("wb") as file, tempfile.TemporaryFile(dir=path.parent) as spool:

        def spill(buffer: pickle.PickleBuffer) -> bool:
            with buffer.raw() as raw:
                spool.write(_packed(raw.nbytes))
                spool.write(raw)
            buffer.release()
            return False

        file.write(_packed(0))
        pickle.Pickler(file, PROTOCOL, buffer_callback=spill).dump(content)
        count = file.tell() - LENGTH
        spool.seek(0)
        shutil.copyfileobj(spool, file, CHUNK)
        file.seek(0)
        file.write(_packed(count))


def load(path: Path) -> Any:
    """Load what `dump` wrote (this runs code: only for files that were built here).

    Raises ValueError, with the position in bytes, when the file ends too early or too late, and
    pickle.UnpicklingError when its opcodes are none.
    """
    with path.open("rb") as file:
        tape = _Tape(file, path.name)
        opcodes = io.BytesIO(tape.block("the opcodes"))
        unpickler = pickle.Unpickler(opcodes, buffers=tape.buffers())
        try:
            content = unpickler.load()
        except pickle.UnpicklingError as error:
            tape.explain(error)
            raise
        if opcodes.read(1):
            raise ValueError(f"{path.name}: malformed: opcodes go on after their end")
        tape.finish()
        return content


class _Tape:
    """The blocks of an open file, in order, each checked against the file's size before it is read."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.file = file
        self.name = name
        self.size = os.fstat(file.fileno()).st_size
        self.count = 0

    def block(self, what: str) -> bytearray:
        """The next block."""
        at = self.file.tell()
        head = self.file.read(LENGTH)
        length = int.from_bytes(head, "little", signed=True)
        if len(head) < LENGTH:
            raise self._truncated(f"the length of {what} wants {LENGTH} bytes from {at}")
        if length < 0:
            raise ValueError(f"{self.name}: malformed at byte {at}: {what} of {length} bytes")
        if length > self.size - at - LENGTH:
            raise self._truncated(f"{what} wants {length} bytes from {at + LENGTH}")
        data = bytearray(length)
        if (got := self.file.readinto(data)) != length:  # type: ignore[attr-defined]
            raise self._truncated(f"{what} wants {length} bytes from {at + LENGTH}, got {got}")
        return data

    def buffers(self) -> Iterator[pickle.PickleBuffer]:
        """Every further block, as tinygrad wants it: it releases a PickleBuffer once it has copied it."""
        while self.file.tell() < self.size:
            self.count += 1
            yield pickle.PickleBuffer(self.block(f"buffer {self.count - 1}"))

    def explain(self, error: pickle.UnpicklingError) -> None:
        """Raise ValueError if what the unpickler lacks are buffers: the file was cut between two of them."""
        if self.file.tell() == self.size and "out-of-band buffers" in str(error):
            raise self._truncated(f"buffer {self.count} is missing") from error

    def finish(self) -> None:
        """Raise ValueError unless every byte was read."""
        if (at := self.file.tell()) != self.size:
            raise ValueError(f"{self.name}: {self.size - at} trailing bytes from byte {at}")

    def _truncated(self, why: str) -> ValueError:
        return ValueError(f"{self.name}: truncated at byte {self.size}: {why}")


def _packed(length: int) -> bytes:
    return length.to_bytes(LENGTH, "little", signed=True)
