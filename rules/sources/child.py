"""Somebody else's program, run for a source: bounded in time, and gone with all its children when we are."""

import contextlib
import io
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, BinaryIO

LOCAL_S = 120.0  # for what waits for no network
LONGEST_OUTPUT = 64 << 20  # bytes of what one may print
LOOK_S = 0.5
# The watcher reads from a pipe whose other end is held by us alone: it ends the whole session when we are
# gone, however that came, which no signal to the child alone would do for the child's own children.
WATCHED = '(exec <"/dev/fd/$0" >/dev/null 2>&1; read -r _; kill -9 0) & exec "$@"'


class TooLong(Exception):
    """The program did not end in time, or printed without end; the reason, in words."""


class Missing(Exception):
    """The program is not on this machine."""


@contextlib.contextmanager
def started(words: Sequence[str], env: Mapping[str, str]) -> "Iterator[subprocess.Popen[bytes]]":
    """The program with pipes to all its streams, in a session of its own; ended when the block ends.

    A session of its own has no terminal that it could ask a question on. Raises Missing.
    """
    if shutil.which(words[0], path=env.get("PATH", os.defpath)) is None:
        raise Missing(words[0])
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", WATCHED, str(reading), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            bufsize=0,
            pass_fds=(reading,),
            start_new_session=True,
        )
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    try:
        with process:
            try:
                yield process
            finally:
                _end(process)
    finally:
        os.close(writing)


def _end(process: "subprocess.Popen[bytes]") -> None:
    # Its number is its own until it has been waited for; the session's is, while its watcher lives.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def run(
    words: Sequence[str],
    env: Mapping[str, str],
    given: bytes = b"",
    *,
    within_s: float = LOCAL_S,
    watch: Callable[[], str] | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    """Run the program to its end. Raises Missing, and TooLong after `within_s` seconds.

    `watch` is asked twice a second for a reason to end it at once (empty: none).
    """
    ends = time.monotonic() + within_s
    with started(words, env) as process:
        input_: bytes | None = given
        while True:
            try:
                out, err = process.communicate(input_, timeout=LOOK_S)
                break
            except subprocess.TimeoutExpired as waiting:
                input_ = None
                _check(waiting, ends, within_s, watch)
        code = process.returncode
    return subprocess.CompletedProcess(list(words), code, out, err)


def _check(
    waiting: subprocess.TimeoutExpired, ends: float, within_s: float, watch: Callable[[], str] | None
) -> None:
    if time.monotonic() > ends:
        raise TooLong(f"no end within {within_s:.0f} s")
    if len(waiting.output or b"") + len(waiting.stderr or b"") > LONGEST_OUTPUT:
        raise TooLong(f"more than {LONGEST_OUTPUT >> 20} MiB of words")
    if watch and (reason := watch()):
        raise TooLong(reason)


class _Patient(io.RawIOBase):
    """A pipe that is not waited for without end."""

    def __init__(self, pipe: IO[bytes], quiet_s: float) -> None:
        self._pipe = pipe
        self._quiet_s = quiet_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "bytearray | memoryview") -> int:  # type: ignore[override]
        if not select.select([self._pipe], [], [], self._quiet_s)[0]:
            raise TooLong(f"not a byte within {self._quiet_s:.0f} s")
        content = os.read(self._pipe.fileno(), len(buffer))
        buffer[: len(content)] = content
        return len(content)


def patient(pipe: IO[bytes], quiet_s: float = LOCAL_S) -> BinaryIO:
    """A child's pipe to read from; a read raises TooLong when nothing comes for so many seconds."""
    return io.BufferedReader(_Patient(pipe, quiet_s), 1 << 20)
