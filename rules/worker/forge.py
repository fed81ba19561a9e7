"""A worker that stays: it compiles one model, then forks a child for each further one of its architecture.

Most of a compile is lowering in Python, and tinygrad keeps what it lowered in the process. A fork inherits
that, shares nothing it writes, and starts tinygrad's counter where a fresh process starts it: its artifact is
byte-identical to a cold one.

Jobs come as messages on a Unix socket: JSON, with two descriptors, one to answer on and one for the log. The
answer is a single byte; a connection that closes without one belongs to a child that died.
"""

import json
import os
import socket
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from tinygrad import Device

from . import forks, memory, parent

DONE, FAILED = b"1", b"0"
MESSAGE_BYTES = 65536

Work = Callable[[str, str], None]


def serve(descriptor: int, work: Work) -> int:
    """Serve jobs until the other end closes; `work(request, result)` does one.

    Every child is waited for, so that its processor time is counted as its starter's.
    """
    control = socket.socket(fileno=descriptor)
    Device[Device.DEFAULT].synchronize()  # opens the device: two signals that nothing here ever moves
    before = memory.shared()
    first, server = True, os.getpid()
    children: set[int] = set()
    while job := _next(control):
        message, answer, log = job
        if first:
            _redirect(log)
            if not _do(message, work, answer):
                return 1
            first = False
            memory.let_go(before)
        elif child := os.fork():
            children.add(child)
        else:
            control.close()
            parent.mind(server)
            _redirect(log)
            os._exit(0 if _do(message, work, answer) else 1)
        os.close(answer)
        os.close(log)
        children -= _ended(children, os.WNOHANG)
    _ended(children, 0)
    return 0


def _ended(children: Iterable[int], options: int) -> set[int]:
    """Those that have ended and are now reaped; see waitpid(2) for `options`."""
    return {child for child in children if os.waitpid(child, options)[0]}


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
        forks.flush()
        os.write(answer, FAILED)
        return False
    forks.flush()
    os.write(answer, DONE)
    return True
