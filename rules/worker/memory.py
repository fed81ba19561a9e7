"""This process's memory and its forks': how much, and which both would write to.

tinygrad maps the CPU's memory shared, so what is mapped when a process forks belongs to both.
"""

import ctypes
import gc
import mmap
import os
import resource
import sys
from pathlib import Path

from tinygrad import Device
from tinygrad.device import LRUAllocator
from tinygrad.uop.ops import buffers

SHARED_MEMORY = "/dev/zero (deleted)"  # how Linux names an anonymous mapping that forks share


def shared() -> set[str]:
    """The anonymous mappings that a fork would share, as Linux lists them; nothing elsewhere."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return {line.split()[0] for line in lines if line.endswith(SHARED_MEMORY)}


def let_go_of_reserves() -> None:
    """Unmap what tinygrad has freed and keeps for reuse: two forks would take the same piece."""
    for device in Device._opened_devices:
        allocator = Device[device].allocator
        if isinstance(allocator, LRUAllocator):
            Device[device].synchronize()  # freeing does; the first time, it takes memory for that
            allocator.free_cache()


def peak_bytes() -> int:
    """The most memory that this process has had in use, what it shares with others included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def own_bytes() -> int:
    """The most memory that a fork has had of its own: what it has now, and what it had beside that and freed.

    Elsewhere than on Linux all that it has, as if nothing were shared.
    """
    try:
        rollup = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return peak_bytes()
    lines = (line.split() for line in rollup.splitlines()[1:])
    found = {name: 1024 * int(size) for name, size, *_ in lines}
    return found["Private_Dirty:"] + max(0, peak_bytes() - found["Rss:"])


def only_read() -> None:
    """What this fork shares can be read from here on, not written: a write ends this process, where it would
    have changed what another one reads. Elsewhere than on Linux, nothing."""
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    for mapping in shared():
        start, stop = (int(address, 16) for address in mapping.split("-"))
        if mprotect(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.PROT_READ):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def let_go(before: set[str]) -> None:
    """Free every buffer that was made since `before` was all that was shared.

    Raises RuntimeError when any is left.
    """
    gc.collect()
    let_go_of_reserves()
    gc.collect()
    if len(buffers) or shared() - before:
        raise RuntimeError("memory of the first model is still in use, so no other can be forked from it")
