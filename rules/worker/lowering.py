"""Lowering the kernels of one capture side by side: most of a compile is Python that each kernel needs alone.

tinygrad has a pool of its own for this, which starts fresh processes and sends them every kernel. A fork
has the kernels already. Each result comes back through a pickle, whichever child made it, and each kernel
counts from a number of its own: so the artifact is the same, byte for byte, however many cores there are.
"""

import contextlib
import itertools
import os
import pickle
import selectors
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tinygrad import Device
from tinygrad.engine import realize
from tinygrad.helpers import Context
from tinygrad.uop.ops import UOp

from . import parent

CHUNK = 1 << 20
# Far from the numbers of buffers, which the captures count; a kernel needs a few at most.
FIRST_NUMBER, NUMBERS = 1 << 40, 1 << 20


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side() -> None:
    """From here on, let tinygrad lower kernels in forks of this process.

    Only where nothing but the CPU is in use: a GPU's driver does not survive a fork.
    """
    if Device.DEFAULT.split(":")[0] == "CPU":
        realize.get_worker_pool = Forks


class Forks:
    """What `realize.lower_and_compile` expects of a pool."""

    def imap_unordered(self, work: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        """`work` of every task, in the tasks' order. Raises RuntimeError when it fails for one of them.

        Each task gets a child of its own, forked from one and the same state: what a child did before would
        show in how it pickles. Nothing is unpickled here before the last child is forked.
        """
        waiting = list(tasks)
        for answer in _answers(work, waiting):
            made, result = pickle.loads(answer) if answer else (False, "the process died")
            if not made:
                raise RuntimeError(f"a kernel could not be lowered: {result}")
            yield result


def _answers(work: Callable[[Any], Any], tasks: list[Any]) -> list[bytes]:
    """The pickled answer of every task; empty for a child that died."""
    answers = [bytearray() for _ in tasks]
    todo = iter(enumerate(tasks))
    with selectors.DefaultSelector() as selector:

        def start() -> None:
            for index, task in todo:
                reader, process = _child(work, task, index)
                selector.register(reader, selectors.EVENT_READ, (index, process))
                return

        for _ in range(cores()):
            start()
        while selector.get_map():
            for key, _ in selector.select():
                index, process = key.data
                if chunk := os.read(key.fd, CHUNK):
                    answers[index] += chunk
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                with contextlib.suppress(ChildProcessError):  # a resident worker's children reap themselves
                    os.waitpid(process, 0)
                start()
    return [bytes(answer) for answer in answers]


def _child(work: Callable[[Any], Any], task: Any, number: int) -> tuple[int, int]:
    """Fork a child for one task: the end of the pipe it answers on, and its process."""
    reader, writer = os.pipe()
    if process := os.fork():
        os.close(writer)
        return reader, process
    parent.mind()
    try:
        with open(writer, "wb") as answer, Context(ALLOW_DEVICE_USAGE=0, TRACK_MATCH_STATS=0):  # noqa: PTH123
            answer.write(pickle.dumps(_attempt(work, task, number), protocol=5))
    finally:
        os._exit(0)


def _attempt(work: Callable[[Any], Any], task: Any, number: int) -> tuple[bool, Any]:
    UOp.unique_num = itertools.count(FIRST_NUMBER + number * NUMBERS)
    try:
        return True, work(task)
    except Exception:
        return False, traceback.format_exc()
