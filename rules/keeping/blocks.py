"""A check value for each block of a stored file: where it was damaged, when no good copy is left to compare.

An artifact in place is most often a hard link to its blob, so what damages one damages both. sha256 finds
that; these values only say where.
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

from rules.keeping import files
from rules.keeping.files import write_bytes

BLOCK = 4096  # bytes
WIDTH = 4  # bytes of a CRC-32, little-endian


def note(blob: Path, table: Path) -> None:
    """Keep the check values of a file's blocks in `table`. Raises OSError."""
    write_bytes(table, b"".join(_checks(blob)))


def differing(path: Path, table: Path) -> list[tuple[int, int]]:
    """Ranges (first and last offset) of blocks of `path` that are not as noted; neighbours are one range.

    Empty when nothing was noted. Bytes beyond the noted file are not looked at. Raises OSError for `path`.
    """
    try:
        noted = files.read(table)
    except OSError:
        return []
    right = [noted[at : at + WIDTH] for at in range(0, len(noted), WIDTH)]
    ranges: list[tuple[int, int]] = []
    for index, (found, expected) in enumerate(zip(_checks(path), right, strict=False)):
        first, last = index * BLOCK, (index + 1) * BLOCK - 1
        if found == expected:
            continue
        if ranges and ranges[-1][1] == first - 1:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges


def _checks(path: Path) -> Iterator[bytes]:
    with files.opened(path) as file:
        while block := file.read(BLOCK):
            yield zlib.crc32(block).to_bytes(WIDTH, "little")
