"""The long form of tests/test_crash.py: hundreds of builds killed at random instants.

    .venv/bin/python bench/crash.py [KILLS [SEED]]

Half of them are SIGKILLs of the whole process group, half power cuts (see tests/crash.py).
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from crash import Harness, small_parts

LONGEST_S = 12.0


def main(kills: int, seed: int) -> None:
    """Kill, check, and print what was done."""
    for power_cut in (False, True):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            rules = small_parts(folder / "copied")
            harness = Harness.set_up(folder, 2, power_cut=power_cut, seed=seed, rules=rules)
            harness.storm(kills // 2, LONGEST_S)
            print(
                f"{harness.kills} {'power cuts' if power_cut else 'SIGKILLs'}: every check held", flush=True
            )


main(*(int(word) for word in (*sys.argv[1:], *("300", "1")[len(sys.argv) - 1 :])))
