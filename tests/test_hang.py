"""A compile that hangs, by a real SIGSTOP, is started over; one that is merely slow is left alone."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import PATH, Project, copied_rules, generated, model

from rules.builders import local, vitals
from rules.builders.job import Job
from rules.errors import ArtifactError

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")

MODELS = ("mlp", "mlp2")
CATALOG = "".join(
    model(one, generated("generic-mlp", seed=seed), 'type = "generic"') for seed, one in enumerate(MODELS, 1)
)
WARNING = (
    "warning: {}: the worker that compiles it did nothing for 1 s and was ended; another one starts over"
)


@pytest.fixture
def impatient(tmp_path: Path) -> dict[str, str]:
    """An environment whose modelyard waits a second where it would wait a minute."""
    environment = copied_rules(tmp_path / "copy")
    module = tmp_path / "copy/rules/builders/warm.py"
    text = re.sub(r"^LOOK_S = \S+", "LOOK_S = 0.1", module.read_text(), flags=re.M)
    module.write_text(re.sub(r"^QUIET_S = \S+", "QUIET_S = 1.0", text, flags=re.M))
    return environment


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The same models, each compiled in a process of its own."""
    project = Project(tmp_path_factory.mktemp("alone"), CATALOG)
    project.doit("--cold")
    return project


@contextlib.contextmanager
def running(project: Project, environment: dict[str, str], *words: str) -> Iterator["subprocess.Popen[str]"]:
    """doit in the background, in a group of its own that ends with the block."""
    child = subprocess.Popen(
        [sys.executable, "-m", "doit", *words],
        cwd=project.folder,
        env={"PATH": PATH, "HOME": str(project.folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def is_resident(number: int) -> bool:
    with contextlib.suppress(OSError):
        return b"\0--forge\0" in Path(f"/proc/{number}/cmdline").read_bytes()
    return False


def found(doit: int, generation: int) -> int:
    """The resident worker of a run (0), or a process that it forked for a model (1)."""
    while True:
        members = vitals.family(doit)
        for number, one in members.items():
            if is_resident(number) and (generation == is_resident(one.parent)):
                return number
        time.sleep(0.002)


def gone(number: int) -> bool:
    """Whether a process has ended, waiting a little; one whose parent takes no notice stays as a zombie."""
    for _ in range(50):
        if (process := vitals.processes().get(number)) is None or process.state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("generation", [0, 1], ids=["resident worker", "one it forked"])
def test_a_stopped_worker_is_replaced(
    tmp_path: Path, impatient: dict[str, str], alone: Project, generation: int
) -> None:
    project = Project(tmp_path / "project", CATALOG)
    with running(project, impatient) as child:
        stopped = found(child.pid, generation)
        os.kill(stopped, signal.SIGSTOP)
        out, errors = child.communicate(timeout=120)
        assert child.returncode == 0, out + errors
        assert "6 made, 0 up to date" in out
        assert errors.splitlines() in [[WARNING.format(one)] for one in MODELS]
        assert gone(stopped)
    assert project.files("compiled") == alone.files("compiled")


def test_an_interrupt_leaves_no_stopped_worker(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", CATALOG)
    with running(project, {"PYTHONPATH": str(Path(__file__).parent.parent)}) as child:
        stopped = found(child.pid, 1)
        os.kill(stopped, signal.SIGSTOP)
        os.kill(child.pid, signal.SIGINT)
        _, errors = child.communicate(timeout=60)
        assert child.returncode == 130, errors
        assert gone(stopped)


def test_a_compile_that_takes_longer_than_the_patience_is_left_alone(
    tmp_path: Path, impatient: dict[str, str]
) -> None:
    project = Project(tmp_path / "project", model("pop", generated("vision-conv+attention")))
    done = project.doit("candidate:pop", env=impatient)
    assert "warning" not in done.stderr
    assert project.record("pop_artifact")["facts"]["seconds"] > 1


def test_a_run_that_is_stopped_as_a_whole_and_goes_on_is_not_hung(
    tmp_path: Path, impatient: dict[str, str]
) -> None:
    project = Project(tmp_path / "project", CATALOG)
    with running(project, impatient) as child:
        found(child.pid, 0)
        os.killpg(child.pid, signal.SIGSTOP)
        threading.Event().wait(2)
        os.killpg(child.pid, signal.SIGCONT)
        out, errors = child.communicate(timeout=120)
        assert (child.returncode, errors) == (0, ""), out + errors


START = """
import os, sys
print(flush=True)
opening = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[opening])
"""


def test_a_program_that_never_starts_does_not_look_like_a_slow_disk(tmp_path: Path) -> None:
    """Between vfork and exec the child waits for a pipe's other end, and its parent for the child."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    child = subprocess.Popen([sys.executable, "-c", START, str(pipe)], stdout=subprocess.PIPE)
    try:
        while "D" not in {one.state for one in vitals.family(child.pid).values()}:
            assert child.poll() is None
        watch = vitals.Watch(child.pid)
        for _ in range(4):  # the first look finds all that was used before it
            watch.look(1)
        assert watch.quiet_s >= 3
    finally:
        with pipe.open("w"):
            child.communicate()


LOGS = {
    "RuntimeError: src:6:40: error: type mismatch": (
        "Traceback (most recent call last):\n"
        '  File "worker/main.py", line 3, in work\n'
        "RuntimeError: src:6:40: error: type mismatch\n"
        "  call void @r_8(float* %v2)\n"
        "                        ^\n"
    ),
    "no such device": "opening\nno such device\n",
    "tinygrad.device.CompileError: of this job": (
        "tinygrad.device.CompileError: of this job\nnote: 1 warning\n"
    ),
}


@pytest.mark.parametrize("cause", LOGS)
def test_a_failure_is_told_by_what_was_raised_last_in_its_own_job(cause: str, tmp_path: Path) -> None:
    log = tmp_path / "birch.log"
    log.write_text(
        f"=== compile birch before\nValueError: of another job\n=== compile birch now\n{LOGS[cause]}"
    )
    empty = Path()
    job = Job("birch", {"operation": "compile"}, {}, empty, empty, tmp_path, log)
    with pytest.raises(ArtifactError) as caught:
        local.facts(job, tmp_path / "none.json", "failed")
    assert caught.value.what == f"birch: compile failed: {cause}"
    assert str(log) in str(caught.value)
