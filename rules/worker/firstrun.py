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
    with capture.saying_what_is_empty():
        first = [next(drive) for drive in drives]
    can_fork = {name.split(":")[0] for name in Device._opened_devices} <= FORKABLE
    helped = range(1, min(len(drives), forks.cores()) if can_fork else 1)
    begun = [forks.begin(partial(_again, unit, files, number)) for number in helped]
    rest = {number: list(drive) for number, drive in enumerate(drives) if number not in helped}
    for number, answer in zip(helped, forks.answers(begun), strict=True):
        if answer:
            rest[number] = forks.result(answer)
        else:  # killed, for its memory perhaps: here that camera has come as far as its first frame
            print("warning: a process that drove a camera died; its frames are driven once more", flush=True)
            rest[number] = list(drives[number])
    return list(chain.from_iterable((one, *rest[number]) for number, one in enumerate(first)))


def _again(unit: Any, files: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """In a fork: one camera's steps from the second on, in memory of its own."""
    capture.release_intermediates(*unit.captures(files).values())
    memory.let_go_of_reserves()
    memory.only_read()
    drive = unit.drives(files, seed=verify.SEED, steps=verify.STEPS)[number]
    return list(verify.replayed(drive))[1:]
