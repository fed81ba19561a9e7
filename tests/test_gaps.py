"""Where plain doit falls short and this does not: each scenario is played on both, and fails on plain doit.

The plain project makes `out` from `in` by `a` and `out2` from `out` by `b`, with file_dep and targets as
doit's manual says. Ours makes one small network.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from contract import PATH, ROOT, Project, generated, model

PLAIN = """
import time
DOIT_CONFIG = {{"verbosity": 2}}
def make(source, target, word):
    text = open(source).read()
    with open(target, "w") as file:
        file.write(word)
        file.flush()
        time.sleep({pause})
        {trouble}
        file.write(text)
    print("made", target, flush=True)
def task_a():
    return {{"actions": [(make, ["in", "out", "{word}"])], "file_dep": ["in"], "targets": ["out"]}}
def task_b():
    return {{"actions": [(make, ["out", "out2", ""])], "file_dep": ["out"], "targets": ["out2"]}}
"""


class Plain:
    """Two tasks of plain doit; our plug-ins are not loaded, as entry points cannot be switched off."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in").write_text("content")
        self.write()

    def write(self, *, word: str = "x", pause: float = 0, trouble: str = "pass") -> None:
        """Write its dodo.py."""
        (self.folder / "dodo.py").write_text(PLAIN.format(word=word, pause=pause, trouble=trouble))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Run doit's own commands and no others."""
        own = "import sys; from doit import plugin; plugin.PluginDict.add_plugins = lambda *_: None; "
        own += "from doit.doit_cmd import DoitMain; sys.exit(DoitMain().run(sys.argv[1:]))"
        return subprocess.Popen(
            [sys.executable, "-c", own, *words],
            cwd=self.folder,
            env={"PATH": PATH, "HOME": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, *words: str) -> str:
        """What it prints."""
        return self.start(*words).communicate()[0]

    def made(self) -> list[str]:
        """The targets that a run made."""
        return re.findall(r"^made (\S+)", self.run(), re.M)


@pytest.fixture
def plain(tmp_path: Path) -> Plain:
    (tmp_path / "plain").mkdir()
    return Plain(tmp_path / "plain")


@pytest.fixture
def ours(tmp_path: Path) -> Project:
    return Project(tmp_path / "ours", model("mlp", generated("generic-mlp"), 'type = "generic"'))


TARGET = "compiled/mlp_tinygrad.pkl"


def killed(child: subprocess.Popen[str], line: str) -> None:
    """Kill everything once it has printed a line that starts so."""
    assert child.stdout is not None
    for printed in child.stdout:
        if printed.startswith(line):
            break
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def ours_started(ours: Project) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "doit"],
        cwd=ours.folder,
        env={"PATH": PATH, "HOME": str(ours.folder), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_a_killed_run_forgets_nothing_that_was_finished(plain: Plain, ours: Project) -> None:
    plain.write(pause=0.5)
    killed(plain.start(), "made out")
    assert "out" in plain.made()  # done again
    killed(ours_started(ours), "✓  candidate:mlp")
    assert ours.made() == ["pkl:mlp"]


def test_a_corrupt_target_is_noticed(plain: Plain, ours: Project) -> None:
    plain.made()
    (plain.folder / "out2").write_text("corrupt")
    assert plain.made() == []
    ours.doit()
    good = ours.path(TARGET).read_bytes()
    ours.path(TARGET).unlink()
    ours.path(TARGET).write_bytes(b"corrupt")
    assert ours.made() == ["pkl:mlp"]
    assert ours.path(TARGET).read_bytes() == good


def keeping_times(path: Path, change: Callable[[], object]) -> None:
    """Change a file behind an unchanged mtime, as `cp -p` and `rsync -a` do."""
    times = path.stat()
    change()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_source_that_changed_behind_its_time_is_noticed(plain: Plain, tmp_path: Path) -> None:
    plain.made()
    source = plain.folder / "in"
    keeping_times(source, lambda: source.write_text("another size"))
    assert plain.made() == []
    table = model("mlp", 'source = { path = "onnx", format = "generic" }', 'type = "generic"')
    ours = Project(tmp_path / "ours", table)
    (ours.folder / "onnx").mkdir()
    network = ours.folder / "onnx/model.onnx"
    from rules.sources.generated import generate

    network.write_bytes(generate("generic-mlp", seed=1, width=4)["model"])
    ours.doit()
    keeping_times(network, lambda: network.write_bytes(generate("generic-mlp", seed=2, width=4)["model"]))
    assert ours.made() == ["candidate:mlp", "onnx:mlp", "pkl:mlp"]


def test_a_changed_action_is_noticed(plain: Plain, ours: Project) -> None:
    plain.made()
    plain.write(word="y")
    assert plain.made() == []
    ours.doit()
    ours.edit("FLOAT16 = 1", "FLOAT16 = 0")
    assert ours.made() == ["candidate:mlp", "pkl:mlp"]


def test_two_runs_at_once_do_not_both_work(plain: Plain, ours: Project) -> None:
    plain.write(pause=1)
    both = [plain.start(), plain.start()]
    assert sum(child.communicate()[0].count("made out\n") for child in both) == 2
    first = ours_started(ours)
    time.sleep(1)
    assert ours.doit(fails=True).returncode == 4
    assert "✓  pkl:mlp" in first.communicate()[0]


def test_a_failed_step_leaves_no_half_written_target(plain: Plain, ours: Project) -> None:
    plain.write(trouble="raise ValueError")
    plain.run()
    assert (plain.folder / "out").exists()
    plain.write()
    assert plain.made() == ["out", "out2"] or (plain.folder / "out").read_text() == "x"
    ours.edit('DEV = "CPU:X86"', 'DEV = "CPU:NONE"')
    ours.doit(fails=True)
    assert not ours.path(TARGET).exists()


def test_a_listing_shows_the_whole_chain(plain: Plain, ours: Project) -> None:
    plain.made()
    (plain.folder / "in").write_text("other")
    assert re.findall(r"^R (\S+)", plain.run("list", "-s"), re.M) == ["a"]
    ours.doit()
    ours.edit("seed = 1", "seed = 2")
    listed = ours.doit("outdated").stdout
    assert [line.split()[0].rstrip(":") for line in listed.splitlines()[:3]] == [
        "onnx:mlp",
        "candidate:mlp",
        "pkl:mlp",
    ]


def test_deleting_the_database_rebuilds_nothing(plain: Plain, ours: Project) -> None:
    plain.made()
    for path in plain.folder.glob(".doit.db*"):
        path.unlink()
    assert plain.made() == ["out", "out2"]
    ours.doit()
    for path in ours.folder.glob(".doit.db*"):
        path.unlink()
    assert ours.made() == []
