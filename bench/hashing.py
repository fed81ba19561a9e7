"""Artifacts whose times all changed and whose bytes did not: read once, and not again.

.venv/bin/python bench/hashing.py [FILES [MEGABYTES]]
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from rules.keeping.digests import Digests

FILES, MEGABYTES = 40, 100


def main(files: int, megabytes: int) -> None:
    """Print how long each pass takes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        block = os.urandom(1 << 20)
        paths = [folder / f"artifact{i}" for i in range(files)]
        for path in paths:
            with path.open("wb") as file:
                for _ in range(megabytes):
                    file.write(block)
        log = folder / "digests.log"
        for name in ("first", "unchanged", "times changed", "again"):
            if name == "times changed":
                for path in paths:
                    path.touch()
            digests = Digests(log)
            started = time.perf_counter()
            digests.of_all(paths)
            took = time.perf_counter() - started
            digests.flush(wait=True)
            total = files * megabytes / 1024
            print(f"| {name} | {took:.3f} s | {total / took:.1f} GiB/s |", flush=True)


print("| pass | seconds | rate |\n|---|---|---|")
main(*(int(word) for word in (*sys.argv[1:], *map(str, (FILES, MEGABYTES)[len(sys.argv) - 1 :]))))
