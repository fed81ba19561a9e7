"""Timing whole commands: two in turn, medians, and the ratio pair by pair. A verdict is the reader's."""

import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """What to run, where, and with what added to nothing but PATH and HOME."""

    name: str
    words: Sequence[str]
    folder: Path
    env: Mapping[str, str]

    def seconds(self) -> float:
        """Wall seconds of one run; raises when it fails."""
        started = time.perf_counter()
        done = subprocess.run(self.words, cwd=self.folder, env=dict(self.env), capture_output=True, text=True)
        took = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"{self.name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return took


def environment(folder: Path) -> dict[str, str]:
    """A short environment, so that no shell's variables enter a figure."""
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder)}


def compared(ours: Command, other: Command, *, runs: int) -> str:
    """One table row: medians of both, and the median of the ratios pair by pair."""
    ours.seconds(), other.seconds()
    pairs = [(ours.seconds(), other.seconds()) for _ in range(runs)]
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return f"| {ours.name} | {mine:.3f} s | {other.name} | {theirs:.3f} s | {ratio:.2f} |"


HEADER = "| ours | median | against | median | ratio |\n|---|---|---|---|---|"
