"""A worker that stays: it compiles one model, then forks a child for each further one of its architecture.

Most of a compile is lowering in Python, and tinygrad keeps what it lowered in the process. A fork inherits
that, shares nothing it writes, and starts tinygrad's counter where a fresh process starts it: its artifact is
byte-identical to a cold one.

Jobs come as messages on a Unix socket: JSON, with two descriptors, one to answer on and one for the log. The
answer is a single byte; a connection that closes without one belongs to a child that died.
"""

import gc
import json
import os
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinygrad import Device
from tinygrad.device import LRUAllocator
from tinygrad.uop.ops import buffers

from . import parent

DONE, FAILED = b"1", b"0"
MESSAGE_BYTES = 65536
SHARED_MEMORY = "/dev/zero (deleted)"  # how Linux names an anonymous mapping that forks share

Work = Callable[[str, str], None]


def serve(descriptor: int, work: Work) -> int:
    """Serve jobs until the other end closes; `work(request, result)` does one."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    control = socket.socket(fileno=descriptor)
    Device[Device.DEFAULT].synchronize()  # opens the device: two signals that nothing here ever moves
    before = _shared()
    first, server = True, os.getpid()
    while job := _next(control):
        message, answer, log = job
        if first:
            _redirect(log)
            if not _do(message, work, answer):
                return 1
            first = False
            _let_go(before)
        elif os.fork() == 0:
            control.close()
            parent.mind(server)
            _redirect(log)
            os._exit(0 if _do(message, work, answer) else 1)
        os.close(answer)
        os.close(log)
    return 0


def _shared() -> set[str]:
    """The anonymous mappings that a fork would share, as Linux lists them; nothing elsewhere."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return {line.split()[0] for line in lines if line.endswith(SHARED_MEMORY)}


def _let_go(before: set[str]) -> None:
    """Free every buffer of the first model, those that tinygrad keeps for reuse too: its CPU memory is mapped
    shared, and two forks that reused a piece of it would write into each other's models.

    `before` lists what was mapped before that model. Raises RuntimeError when anything of it is left.
    """
    gc.collect()
    for device in Device._opened_devices:
        allocator = Device[device].allocator
        if isinstance(allocator, LRUAllocator):
            allocator.free_cache()
    gc.collect()
    if len(buffers) or _shared() - before:
        raise RuntimeError("memory of the first model is still in use, so no other can be forked from it")


def _next(control: socket.socket) -> tuple[dict[str, Any], int, int] | None:
    content, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
    if not content:
        return None
    answer, log = descriptors
    return json.loads(content), answer, log


def _redirect(log: int) -> None:
    for standard in (1, 2):
        os.dup2(log, standard)


def _do(message: dict[str, Any], work: Work, answer: int) -> bool:
    try:
        work(message["request"], message["result"])
    except BaseException:
        traceback.print_exc()
        os.write(answer, FAILED)
        return False
    os.write(answer, DONE)
    return True
