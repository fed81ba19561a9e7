"""The run that captures: the first frame of every camera, then all others, side by side where that can be.

A capture is complete after its first call. What is left is kernels alone, and a fork can run those of a
camera. It begins anew: what that camera's first frame left behind lies in memory that the fork shares.
"""

from functools import partial
from itertools import chain
from typing import Any

from tinygrad import Device

from . import capture, forks, memory, verify

FORKABLE = {"CPU", "NPY", "PYTHON", "DISK"}  # a GPU's driver does not survive a fork


def first_run(unit: Any, files: dict[str, Any]) -> list[dict[str, Any]]:
    """Capture every JIT of the files; what the host compares of each step (see `verify.replayed`)."""
    drives = [verify.replayed(drive) for drive in unit.drives(files, seed=verify.SEED, steps=verify.STEPS)]
    first = [next(drive) for drive in drives]
    if forks.cores() == 1 or not {name.split(":")[0] for name in Device._opened_devices} <= FORKABLE:
        rest = [list(drive) for drive in drives]
    else:
        others = [forks.begin(partial(_again, unit, files, number)) for number in range(1, len(drives))]
        rest = [list(drives[0]), *forks.results(others)]
    return list(chain.from_iterable((one, *more) for one, more in zip(first, rest, strict=True)))


def _again(unit: Any, files: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """In a fork: one camera's steps from the second on, in memory of its own."""
    capture.release_intermediates(*unit.captures(files).values())
    memory.let_go_of_reserves()
    memory.only_read()
    drive = unit.drives(files, seed=verify.SEED, steps=verify.STEPS)[number]
    return list(verify.replayed(drive))[1:]
