"""A child with a watch on it: one that stands still, or takes more memory than it may, is ended."""

import contextlib
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Collection

from rules.builders import vitals

LOOK_S = 0.25  # between two looks at the memory that it holds
FAMILY = 4  # every so many looks, who belongs to it and what they do; that takes longer
QUIET_S = 60.0  # for so long a child may do nothing at all
GB = 1e9

_living: "set[Watched]" = set()
_lock = threading.Lock()


class Watched:
    """The watch on one process and on all that descend from it; none of them outlives the block it is for.

    `works` says whether it is its turn: a child that waits for us may do nothing for as long as that takes.
    `most` is in bytes, None for a child that is given no limit.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", most: int | None, *, works: bool = True) -> None:
        self.works = works
        self._process = process
        self._most = most
        self._why = ""
        self._interrupted = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_until_it_ends, daemon=True)

    @property
    def why(self) -> str:
        """Why the watch ended the child, after the child's name; nothing when it did not.

        Raises KeyboardInterrupt in a thread of a run that was interrupted meanwhile: how a child ended that
        went with its run is no news.
        """
        if self._interrupted:
            raise KeyboardInterrupt
        return self._why

    @property
    def advice(self) -> str:
        """What to do about a child that was ended."""
        return advice(self._why, self._most)

    def interrupt(self) -> None:
        """End the child with its run."""
        self._interrupted = True
        self.end()

    def end(self) -> None:
        """End the child and what descends from it; those that are stopped do not by themselves."""
        running = self._process.poll() is None
        members = vitals.family(self._process.pid).keys() - {self._process.pid} if running else set()
        self._process.kill()
        for number in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)

    def _look_until_it_ends(self) -> None:
        watch = vitals.Watch(self._process.pid)
        for tick in itertools.count(1):
            if self._over.wait(LOOK_S) or self._process.poll() is not None:
                return
            if tick % FAMILY == 0:
                watch.look(FAMILY * LOOK_S)
            if not self.works:
                watch.quiet_s = 0.0
            if why := self._judged(watch):
                self._why = why
                self.end()
                return

    def _judged(self, watch: vitals.Watch) -> str:
        if watch.quiet_s >= QUIET_S:
            return f"did nothing for {QUIET_S:.0f} s and was ended"
        return excessive(self._process.pid, watch.members, self._most)

    def __enter__(self) -> "Watched":
        with _lock:
            _living.add(self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.end()
        self._process.wait()
        self._thread.join()
        with _lock:
            _living.discard(self)


def excessive(first: int, members: Collection[int], most: int | None) -> str:
    """What to say of a process, with its descendants, that takes more than `most` bytes; nothing if not."""
    if most is None or (taken := vitals.memory(first, members, most)) <= most:
        return ""
    return (
        f"took {taken / GB:.1f} GB of memory, where its weights and earlier builds let expect"
        f" {most / GB:.1f} GB at the very most, and was ended"
    )


def advice(why: str, most: int | None) -> str:
    """What to do about a child that was ended for this reason."""
    if "memory" in why:
        enough = int(2 * (most or 0) / GB) + 1
        return f"see that its source is the right one; if so, give [defaults] memory_gb = {enough}"
    return "find out what stopped it, or what it waits for, then try again"


def interrupt_all() -> None:
    """End every child that is watched, as its run is interrupted."""
    for one in _watched_now():
        one.interrupt()


def end_all() -> None:
    """End every child that is watched; whoever waits for one goes on."""
    for one in _watched_now():
        one.end()


def _watched_now() -> "list[Watched]":
    with _lock:
        return list(_living)
