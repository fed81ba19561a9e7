"""Compiling many models of few architectures: one resident worker each, forked for every further model.

A resident worker serves jobs that agree in every key field and in architecture, and no others. What it makes
is byte-identical to a cold compile (tested for every model type), so records need not tell the two apart.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rules.builders import local, vitals, watched
from rules.builders.job import Job
from rules.keeping import files

MOST = 4  # each holds some hundred MB; the one that was idle longest makes room
LOOK_S = 1.0  # between two looks at a worker that has not answered yet
QUIET_S = 60.0  # for so long a worker may do nothing at all


class Silent(Exception):
    """A resident worker has a job and does nothing."""


class Excessive(Exception):
    """A resident worker takes more memory than its jobs may; the text says how much."""


@dataclass
class Resident:
    """One worker that stays. `primed` is set once it has compiled its first model."""

    home: Path
    process: subprocess.Popen[bytes]
    control: socket.socket
    lock: threading.Lock = field(default_factory=threading.Lock)
    primed: bool = False
    busy: int = 0

    @classmethod
    def start(cls, job: Job) -> "Resident":
        """Start a worker in a home of its own beside the job's scratch folder."""
        home = job.scratch.with_name(job.scratch.name + "-resident")
        home.mkdir()
        ours, theirs = socket.socketpair()
        with local.logging(job) as log:  # what it says before its first job belongs to that job
            process = subprocess.Popen(
                local.command(job, "--forge", str(theirs.fileno())),
                env=local.environment(job, home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs.fileno(),),
            )
        theirs.close()
        return cls(home, process, ours)

    def ask(self, job: Job) -> tuple[Path, bool]:
        """Have the job done; returns where its result lies, and whether the one who did it lived to say so.

        Raises OSError when the worker is gone, and Silent when it does nothing.
        """
        request, result = local.written(job)
        ours, theirs = socket.socketpair()
        with local.logging(job) as log, ours:
            message = json.dumps({"request": str(request), "result": str(result)}).encode()
            with theirs:
                socket.send_fds(self.control, [message], [theirs.fileno(), log.fileno()])
            return result, bool(self._await(ours, job.most_bytes))

    def _await(self, answer: socket.socket, most: int | None) -> bytes:
        """The answer, however long it takes a worker that does something. Raises Silent, and Excessive.

        Jobs of one worker are alike, so that one of them may take as much as another.
        """
        watch = vitals.Watch(self.process.pid)
        answer.settimeout(LOOK_S)
        while True:
            with contextlib.suppress(TimeoutError):
                return answer.recv(1)
            watch.look(LOOK_S)
            if watch.quiet_s >= QUIET_S:
                raise Silent
            allowed = most and most * max(1, self.busy)
            if excess := watched.excessive(self.process.pid, watch.members, allowed):
                raise Excessive(excess)

    def ended(self) -> bool:
        """Whether the worker itself has died, told by the end of what it was to answer on."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # it closes its files a little before it is gone
            self.process.wait(LOOK_S)
        return self.process.poll() is not None

    def stop(self) -> None:
        """End the worker and what it forked, and remove its home.

        One that has nothing to do ends by itself, and then its children's processor time is counted.
        """
        self.control.close()
        if self.primed and not self.busy:
            self.ended()
        running = self.process.poll() is None
        forked = vitals.family(self.process.pid).keys() - {self.process.pid} if running else set()
        self.process.kill()
        self.process.wait()
        # They would end by themselves, but for one that is stopped or stuck.
        for number in forked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        files.discard(self.home)


class Warm:
    """The resident workers of one run, by what their jobs have in common."""

    def __init__(self) -> None:
        self._residents: dict[str, Resident] = {}
        self._closed = False
        self._lock = threading.Lock()

    def run(self, job: Job, kind: str) -> dict[str, Any]:
        """Run a compile on the resident worker for `kind`, starting it if need be.

        Raises ArtifactError when the compile fails.
        """
        resident = self._taken(job, kind)
        try:
            if resident.primed:
                return self._outcome(resident, job)
            with resident.lock:  # the first model of an architecture goes alone; the others profit from it
                if resident.primed:
                    return self._outcome(resident, job)
                if self._residents.get(kind) is resident:
                    return self._first(resident, job, kind)
        finally:
            with self._lock:
                resident.busy -= 1
        return self.run(job, kind)

    def _taken(self, job: Job, kind: str) -> Resident:
        with self._lock:
            self._check_open()
            resident = self._residents.pop(kind, None)
            if resident is None:
                self._make_room()
                resident = Resident.start(job)
            self._residents[kind] = resident  # last in the dict: used last
            resident.busy += 1
            return resident

    def _make_room(self) -> None:
        idle = [kind for kind, resident in self._residents.items() if resident.primed and not resident.busy]
        while idle and len(self._residents) >= MOST:
            self._residents.pop(idle.pop(0)).stop()

    def _first(self, resident: Resident, job: Job, kind: str) -> dict[str, Any]:
        try:
            facts = self._outcome(resident, job)
        except BaseException:
            with self._lock:
                self._residents.pop(kind, None)
            resident.stop()
            raise
        resident.primed = True
        return facts

    def _outcome(self, resident: Resident, job: Job) -> dict[str, Any]:
        """What the resident made of the job; if it died or hangs, a process of its own compiles the job."""
        if (result := self._asked(resident, job)) is not None:
            return local.facts(job, result, "failed")
        self._drop(resident)  # nothing of it may go on writing where another one writes now
        return local.run(job)

    def _drop(self, resident: Resident) -> None:
        with self._lock:
            self._check_open()
            self._residents = {kind: one for kind, one in self._residents.items() if one is not resident}
        resident.stop()

    def _check_open(self) -> None:
        """An interrupt ended the run in another thread: a worker that went with it is not replaced."""
        if self._closed:
            raise KeyboardInterrupt

    def _asked(self, resident: Resident, job: Job) -> Path | None:
        """Where the resident's result lies, if there is one; None when the resident is of no use any more."""
        try:
            result, answered = resident.ask(job)
        except OSError:
            return None
        except Silent:
            how = f"the worker that compiles it did nothing for {QUIET_S:.0f} s and was ended"
            print(f"warning: {job.label}: {how}; another one starts over", file=sys.stderr, flush=True)
            return None
        except Excessive as excess:
            self._drop(resident)
            raise local.ended(job, str(excess), watched.advice(str(excess), job.most_bytes)) from None
        return result if answered or not resident.ended() else None

    def close(self) -> None:
        """End every resident worker."""
        with self._lock:
            self._closed = True
            residents = list(self._residents.values())
            self._residents.clear()
        for resident in residents:
            resident.stop()
