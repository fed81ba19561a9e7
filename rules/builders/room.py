"""Memory for work that runs side by side: nothing starts that will not fit beside what runs already."""

import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator

GB = 10**9  # bytes
SHARE = 0.8  # of the machine's memory; the rest is for the system and the page cache
UNMEASURED = 1_000_000_000  # bytes a compile may need besides its weights, before one was measured
OVER = 4  # times the expected peak; a limit is there for what goes wrong
WEIGHT_COPIES = 4  # file, device, pickle, and one to be safe


def machine_bytes() -> int:
    """The machine's physical memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def limit(expected: int) -> int:
    """How many bytes a child may take whose peak is expected to be so many: what is over that is no slip."""
    return min(OVER * expected, machine_bytes())


class Lanes:
    """One lane for each physical device: two jobs on one GPU disturb each other's timing and memory.

    Processors have no lanes; memory alone limits how many jobs run on them.
    """

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)

    @contextlib.contextmanager
    def held(self, devices: Iterable[str]) -> Iterator[None]:
        """Wait for the lanes of these devices, by name, and hold them."""
        with contextlib.ExitStack() as stack:
            for device in sorted({*devices} - {"CPU"}):  # one order for all: nobody waits in a circle
                stack.enter_context(self._locks[device])
            yield


class Room:
    """What is left of a machine's memory, in bytes. Safe to share between threads."""

    def __init__(self, total: int | None = None) -> None:
        self.total = int(SHARE * machine_bytes()) if total is None else total
        self._taken = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserved(self, needed: int) -> Iterator[None]:
        """Wait until `needed` bytes fit beside what others hold; alone, anything may start."""
        with self._changed:
            self._changed.wait_for(lambda: self._taken == 0 or self._taken + needed <= self.total)
            self._taken += needed
        try:
            yield
        finally:
            with self._changed:
                self._taken -= needed
                self._changed.notify_all()
