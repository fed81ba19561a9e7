"""Killed builds: nothing wrong under a final name, nothing finished done twice. Long form: bench/."""

from pathlib import Path

import pytest
from crash import Harness, edit_rules, small_parts

KILLS, LONGEST_S = 5, 7.0
RENAME = "os.replace(temporary.name, final.name, src_dir_fd=source, dst_dir_fd=target)"


@pytest.mark.parametrize("power_cut", [False, True], ids=["sigkill", "power cut"])
def test_a_build_killed_at_random_ends_as_an_undisturbed_one(tmp_path: Path, power_cut: bool) -> None:
    rules = small_parts(tmp_path / "copied")
    harness = Harness.set_up(tmp_path, 1, power_cut=power_cut, seed=7, rules=rules)
    harness.storm(KILLS, LONGEST_S)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("keeping/store.py", "os.fsync(file.fileno())", "pass"),
        ("keeping/files.py", RENAME, "(final.write_bytes(temporary.read_bytes()[:-1]), temporary.unlink())"),
    ],
    ids=["without fsync", "without rename"],
)
def test_the_harness_catches_a_missing_guard(tmp_path: Path, file: str, old: str, new: str) -> None:
    rules = small_parts(tmp_path / "copied")
    harness = Harness.set_up(tmp_path, 1, power_cut=True, seed=11, rules=rules)
    edit_rules(rules, file, old, new)
    with pytest.raises(AssertionError):
        harness.storm(KILLS, LONGEST_S)
