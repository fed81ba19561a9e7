"""Timing whole commands: two in turn, medians, and the ratio pair by pair. A verdict is the reader's.

Wall time on a busy machine says little: `Command.took` tells the processors' beside it, of all that the
command started and waited for (getrusage(2), RUSAGE_CHILDREN).
"""

import resource
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Took(NamedTuple):
    """Seconds of one run: on the wall, and of processors."""

    wall: float
    processor: float


@dataclass(frozen=True)
class Command:
    """What to run, where, and with what added to nothing but PATH and HOME."""

    name: str
    words: Sequence[str]
    folder: Path
    env: Mapping[str, str]

    def seconds(self) -> float:
        """Wall seconds of one run; raises when it fails."""
        return self.took().wall

    def took(self) -> Took:
        """The seconds of one run; raises when it fails."""
        used, started = _processor_s(), time.perf_counter()
        done = subprocess.run(self.words, cwd=self.folder, env=dict(self.env), capture_output=True, text=True)
        took = Took(time.perf_counter() - started, _processor_s() - used)
        if done.returncode:
            raise RuntimeError(f"{self.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return took


def _processor_s() -> float:
    """Processor seconds of every child that was waited for, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def environment(folder: Path) -> dict[str, str]:
    """A short environment, so that no shell's variables enter a figure."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}


def compared(ours: Command, other: Command, *, runs: int) -> str:
    """One table row of two commands, run in turn."""
    ours.took(), other.took()
    mine, theirs = zip(*((ours.took(), other.took()) for _ in range(runs)), strict=True)
    return row(ours.name, mine, other.name, theirs)


def row(name: str, mine: Sequence[Took], other: str, theirs: Sequence[Took]) -> str:
    """One table row: medians of both, and the medians of both ratios, taken pair by pair."""
    walls = [statistics.median(one.wall for one in column) for column in (mine, theirs)]
    pairs = list(zip(mine, theirs, strict=True))
    wall = statistics.median(a.wall / b.wall for a, b in pairs)
    processor = statistics.median(a.processor / b.processor for a, b in pairs)
    return f"| {name} | {walls[0]:.3f} s | {other} | {walls[1]:.3f} s | {wall:.2f} | {processor:.2f} |"


HEADER = "| ours | median | against | median | ratio | of processor time |\n|---|---|---|---|---|---|"
