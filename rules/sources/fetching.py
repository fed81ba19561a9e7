"""Whether a fetch that git makes still gets on, seen by what grows on the disk."""

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

from rules.counting import counted
from rules.sources import space

WITHIN_S = 4 * 3600.0
QUIET_S = 300.0  # a large repository's server counts before it sends
LEAST = 64 << 10  # bytes that have to come meanwhile


@dataclass
class Watch:
    """Asked again and again: why the fetch into a bare repository is to be ended, or nothing."""

    folder: Path
    quiet_s: float = QUIET_S
    _since: float = field(default_factory=time.monotonic)
    _size: int = 0

    def __call__(self) -> str:
        """The reason, in words."""
        size = self._written()
        if size >= self._size + LEAST:
            self._size, self._since = size, time.monotonic()
        if time.monotonic() - self._since > self.quiet_s:
            return f"less than {counted(LEAST, 'byte')} came within {self.quiet_s:.0f} s"
        return f"{self.folder} has no more room" if space.free(self.folder) == 0 else ""

    def _written(self) -> int:
        total = 0
        for path in (self.folder / "objects" / "pack").glob("*"):
            with contextlib.suppress(OSError):
                total += path.stat().st_size
        return total
