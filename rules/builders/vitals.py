"""Signs of life of a process and of all that it forked, as Linux tells them in /proc (proc(5)).

A compile computes, or has children that do, so one that uses no processor and waits for no disk is stuck:
stopped by a signal, or waiting for something that never comes. Where there is no /proc, everything counts as
alive.
"""

import contextlib
import os
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
RUNS, WAITS = "R", "D"  # on a processor or in line for one; waiting for a disk, or for a vfork
# Of processor time. A worker that is stuck still looks for its parent twice a second, which takes far less.
ENOUGH_S = 0.05
GENERATIONS = 4  # a worker, what it forked, and what that started


class Process(NamedTuple):
    """A process: its parent's number, its state's letter, seconds of processor time that it has used."""

    parent: int
    state: str
    used: float


def processes() -> dict[int, Process]:
    """Every process that can be seen, by number; nothing where there is no /proc."""
    found = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdecimal() and (process := _process(entry / "stat")):
            found[int(entry.name)] = process
    return found


def _process(stat: Path) -> Process | None:
    try:
        # The name, in brackets, may hold anything. Then come state, parent, and as 14th and 15th the ticks.
        fields = stat.read_text(errors="replace").rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return Process(int(fields[1]), fields[0], ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None  # it has ended meanwhile


def family(first: int) -> dict[int, Process]:
    """A process and all that descend from it, by number."""
    every = processes()
    children: dict[int, list[int]] = {}
    for number, process in every.items():
        children.setdefault(process.parent, []).append(number)
    found, waiting = {}, [first]
    while waiting:
        number = waiting.pop()
        if number in every and number not in found:
            found[number] = every[number]
            waiting += children.get(number, ())
    return found


def _active(members: dict[int, Process]) -> bool:
    # A parent whose child has not come to its exec yet waits as if for a disk: it tells nothing (vfork(2)).
    parents = {one.parent for one in members.values()}
    waiting = {number for number, one in members.items() if one.state == WAITS}
    return bool(waiting - parents) or any(one.state == RUNS for one in members.values())


def memory(first: int, members: Collection[int], enough: int) -> int:
    """Bytes of memory that a process and all its `members` hold (see `family`), 0 where no system tells.

    Forks share most of what each of them seems to hold, which takes long to count: it is looked at closely
    only when what they seem to hold is over `enough`.
    """
    seeming = sum(map(_resident, members)) if members else _listed(first)
    return sum(map(_own, members)) if members and seeming > enough else seeming


def _resident(number: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
        return int((PROC / str(number) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _own(number: int) -> int:
    """What a process holds, a share of what it shares."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (PROC / str(number) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return _resident(number)


def _listed(first: int) -> int:
    """The same by ps(1), where there is no /proc."""
    try:
        listed = subprocess.run(
            ["/bin/ps", "-axo", "pid=,ppid=,rss="], capture_output=True, text=True, check=False, timeout=5
        ).stdout
        rows = [[int(number) for number in line.split()] for line in listed.splitlines()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0
    found = {first}
    for _ in range(GENERATIONS):
        found |= {pid for pid, parent, _ in rows if parent in found}
    return sum(1024 * size for pid, _, size in rows if pid in found)


class Watch:
    """How long a family of processes has been doing nothing, by looks at it.

    Only time that the looker was waiting itself is counted: whoever stops a whole run, or puts the machine to
    sleep, and lets it go on later has not made a compile hang.
    """

    def __init__(self, first: int) -> None:
        self.quiet_s = 0.0
        self.members: Collection[int] = {first} if PROC.is_dir() else ()
        self._first = first
        self._used: dict[int, float] = {}

    def look(self, waited_s: float) -> None:
        """Look again, having waited so long since the last look."""
        members = family(self._first)
        self.members = members.keys()
        used = sum(max(0.0, one.used - self._used.get(number, 0.0)) for number, one in members.items())
        if not members or used >= ENOUGH_S or _active(members):
            self.quiet_s = 0.0
            self._used = {number: one.used for number, one in members.items()}
        else:
            self.quiet_s += waited_s
