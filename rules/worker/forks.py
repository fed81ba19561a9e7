"""Work done side by side by forks of this process, which have all that it has; each answers over a pipe."""

import os
import pickle
import selectors
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import IO, Any

from . import memory, parent

CHUNK = 1 << 20
WHOLE = b"the end."
END = struct.Struct("<8sQ")  # of an answer: WHOLE, and how many bytes of memory the fork had of its own
DIED: tuple[bool, Any] = False, "its process died"

most_bytes = 0  # of memory that forks which ran side by side had of their own

Fork = tuple[int, int]  # the end of the pipe that it answers on, and its process


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fork(work: Callable[[IO[bytes]], None]) -> Fork:
    """Fork a child that does `work`, which writes its answer to the file it is given, and then ends."""
    starter = os.getpid()
    reader, writer = os.pipe()
    flush()
    if process := os.fork():
        os.close(writer)
        return reader, process
    try:
        parent.mind(starter)
        with open(writer, "wb") as answer:  # noqa: PTH123
            work(answer)
            answer.write(END.pack(WHOLE, memory.own_bytes()))
    except BaseException:
        traceback.print_exc()
    finally:
        flush()
        os._exit(0)


def flush() -> None:
    """Write out what was printed: a fork would print it again, or its end would lose it."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def answers(forks: Sequence[Fork]) -> list[bytes]:
    """All that each fork wrote, once all have ended; of one that died, nothing."""
    return _noted(_said(forks))


def _noted(said: list[bytes]) -> list[bytes]:
    """Answers without their ends, which tell how much memory these forks had of their own, all together."""
    global most_bytes
    ends = [END.unpack(one[-END.size :]) if len(one) >= END.size else (b"", 0) for one in said]
    whole = [mark == WHOLE for mark, _ in ends]
    most_bytes = max(most_bytes, sum(size for (_, size), ended in zip(ends, whole, strict=True) if ended))
    return [one[: -END.size] if ended else b"" for one, ended in zip(said, whole, strict=True)]


def _said(forks: Sequence[Fork]) -> list[bytes]:
    said = {reader: bytearray() for reader, _ in forks}
    with selectors.DefaultSelector() as selector:
        for reader, process in forks:
            selector.register(reader, selectors.EVENT_READ, process)
        while selector.get_map():
            for key, _ in selector.select():
                if chunk := os.read(key.fd, CHUNK):
                    said[key.fd] += chunk
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                os.waitpid(key.data, 0)
    return [bytes(one) for one in said.values()]


def begin(job: Callable[[], Any]) -> Fork:
    """Do a job in a fork; `result` has what it returns."""
    return fork(partial(_answer, job))


def result(answer: bytes) -> Any:
    """What a job returned. Raises RuntimeError when it raised, with its trace, or when its process died."""
    well, returned = pickle.loads(answer) if answer else DIED
    if not well:
        raise RuntimeError(f"a fork failed: {returned}")
    return returned


def _answer(job: Callable[[], Any], file: IO[bytes]) -> None:
    try:
        content = True, job()
    except Exception:
        content = False, traceback.format_exc()
    pickle.dump(content, file, protocol=5)
