"""Signs of life of a process and of all that it forked, as Linux tells them in /proc (proc(5)).

A compile computes, or has children that do, so one that uses no processor and waits for no disk is stuck:
stopped by a signal, or waiting for something that never comes. Where there is no /proc, everything counts as
alive.
"""

import os
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
RUNS, WAITS = "R", "D"  # on a processor or in line for one; waiting for a disk, or for a vfork
# Of processor time. A worker that is stuck still looks for its parent twice a second, which takes far less.
ENOUGH_S = 0.05


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


class Watch:
    """How long a family of processes has been doing nothing, by looks at it.

    Only time that the looker was waiting itself is counted: whoever stops a whole run, or puts the machine to
    sleep, and lets it go on later has not made a compile hang.
    """

    def __init__(self, first: int) -> None:
        self.quiet_s = 0.0
        self._first = first
        self._used: dict[int, float] = {}

    def look(self, waited_s: float) -> None:
        """Look again, having waited so long since the last look."""
        members = family(self._first)
        used = sum(max(0.0, one.used - self._used.get(number, 0.0)) for number, one in members.items())
        if not members or used >= ENOUGH_S or _active(members):
            self.quiet_s = 0.0
            self._used = {number: one.used for number, one in members.items()}
        else:
            self.quiet_s += waited_s
