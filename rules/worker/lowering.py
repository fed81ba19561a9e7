"""Lowering the kernels of one capture side by side: most of a compile is Python that each kernel needs alone.

tinygrad has a pool of its own for this, which starts fresh processes and sends them every kernel. A fork
has the kernels already, one a core, and each takes the next kernel that none has taken. What it made comes
back through a pickle and is made canonical, so the artifact is the same, byte for byte, however many cores
there are, whichever fork made what, and whatever this process lowered before.
"""

import contextlib
import dataclasses
import io
import itertools
import os
import pickle
import struct
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import IO, Any

from tinygrad import Device
from tinygrad.dtype import DType
from tinygrad.engine import realize
from tinygrad.helpers import Context
from tinygrad.uop.ops import UOp

from . import forks

# Far from the numbers of buffers, which the captures count; a kernel needs a few at most.
FIRST_NUMBER, NUMBERS = 1 << 40, 1 << 20
NUMBER, FRAME = struct.Struct("<I"), struct.Struct("<IQ")  # a task's number; that and an answer's length

Task = tuple[int, tuple[UOp, Any], dict[str, Any]]  # tinygrad's: number, kernel and renderer, settings
compile_kernel: Callable[[Task], tuple[int, UOp]] = realize._compile_kernel


def side_by_side() -> None:
    """From here on, let tinygrad lower kernels in forks of this process.

    Only where nothing but the CPU is in use: a GPU's driver does not survive a fork.
    """
    if Device.DEFAULT.split(":")[0] == "CPU":
        realize.get_worker_pool = Forks
        realize._compile_kernel = alone


def alone(task: Task) -> tuple[int, UOp]:
    """Lower one kernel here; it becomes what it would have become in a fork."""
    return _result(_attempt(task))


class Forks:
    """What `realize.lower_and_compile` expects of a pool."""

    def imap_unordered(self, work: object, tasks: Iterable[Task]) -> Iterator[tuple[int, UOp]]:
        """Each task's kernel lowered, in the tasks' order. Raises RuntimeError when one cannot be."""
        for answer in _answers(list(tasks)):
            yield _result(answer)


def _result(answer: bytes) -> tuple[int, UOp]:
    made, result = canonical(answer) if answer else forks.DIED
    if not made:
        raise RuntimeError(f"a kernel could not be lowered: {result}")
    lowered: tuple[int, UOp] = result
    return lowered


def _answers(tasks: list[Task]) -> list[bytes]:
    """The pickled answer of every task; empty for one whose fork died over it."""
    queue, filling = os.pipe()
    work = partial(_take, tasks, queue, filling)
    started = [forks.fork(work) for _ in range(min(forks.cores(), len(tasks)))]
    os.close(queue)
    with contextlib.suppress(BrokenPipeError), open(filling, "wb") as file:  # noqa: PTH123
        file.writelines(NUMBER.pack(number) for number in range(len(tasks)))
    answers = [b""] * len(tasks)
    for said in forks.answers(started):
        at = 0
        while len(said) - at >= FRAME.size:
            number, size = FRAME.unpack_from(said, at)
            at += FRAME.size + size
            if at <= len(said):
                answers[number] = said[at - size : at]
    return answers


def _take(tasks: list[Task], queue: int, filling: int, answers: IO[bytes]) -> None:
    """In a fork: lower the tasks whose numbers come through the queue, until it ends."""
    os.close(filling)
    with Context(ALLOW_DEVICE_USAGE=0, TRACK_MATCH_STATS=0):
        while number := os.read(queue, NUMBER.size):
            (index,) = NUMBER.unpack(number)
            content = _attempt(tasks[index])
            answers.write(FRAME.pack(index, len(content)) + content)


def _attempt(task: Task) -> bytes:
    """Lower one kernel; its numbers follow from what it is, not from what was lowered before it.

    Returns the pickle of whether that went well, and of number and program or of what went wrong.
    """
    before = UOp.unique_num
    _, (kernel, _), _ = task
    UOp.unique_num = itertools.count(FIRST_NUMBER + int.from_bytes(kernel.key[:4]) * NUMBERS)
    try:
        return pickle.dumps((True, compile_kernel(task)), protocol=5)
    except Exception:
        return pickle.dumps((False, traceback.format_exc()), protocol=5)
    finally:
        UOp.unique_num = before


# ---- one object for one value

_known: dict[Any, Any] = {}


def canonical(pickled: bytes) -> Any:
    """Unpickle, with one object for equal values in all that the UOps are made of.

    A pickle writes an object once and refers to it from then on, so which of two equal values are the same
    object decides its bytes; left alone, that would tell what a fork had lowered before.
    """
    return _Canonical(io.BytesIO(pickled)).load()


class _Canonical(pickle.Unpickler):
    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._met: dict[int, tuple[Any, Any]] = {}  # by id: a value, and the object that stands for it

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return self._uop if found is UOp else found

    def _uop(self, op: Any, dtype: Any, src: Any, *rest: Any) -> UOp:
        return UOp(op, dtype, self._one(src), *map(self._one, rest))

    def _one(self, value: Any) -> Any:
        """The object that stands for a value; what is not made of values stands for itself."""
        if id(value) in self._met:
            return self._met[id(value)][1]
        if isinstance(value, (str, bytes)):
            identity: Any = value
        elif type(value) is tuple:
            members = tuple(map(self._one, value))
            identity = tuple(map(_identity, members))
        elif dataclasses.is_dataclass(value) and not isinstance(value, (type, DType, UOp)):
            fields = [field.name for field in dataclasses.fields(value)]
            for name in fields:
                object.__setattr__(value, name, self._one(getattr(value, name)))
            identity = tuple(_identity(getattr(value, name)) for name in fields)
        elif isinstance(value, float) and type(value) is not float:  # tinygrad's own: an object to a pickle
            identity = repr(value)
        else:
            return value
        one = _known.setdefault((type(value), identity), members if type(value) is tuple else value)
        self._met[id(value)] = value, one
        return one


def _identity(value: Any) -> Any:
    """Numbers by what they are (True is not 1, nor 0.0 -0.0), all else by being one object already."""
    return (type(value), repr(value)) if isinstance(value, (int, float)) else id(value)
