"""One run in a workspace at a time, whatever is done to the lock's file, by real runs of doit."""

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from contract import FILTERED, PATH, ROOT, Project, generated, model

ONE = model("mlp", generated("generic-mlp"), 'type = "generic"')
# flock refused as a file system without locks does it: seccomp(2), the numbers are those of x86-64.
WITHOUT_LOCKS = (
    """
EOPNOTSUPP, FLOCK = 95, 73
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | EOPNOTSUPP
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, FLOCK), (0x06, 0, 0, REFUSE), (0x06, 0, 0, ALLOW)]
"""
    + FILTERED
)


def remove_the_file(project: Project) -> None:
    project.path(".store/lock").unlink()


def remove_the_store(project: Project) -> None:
    shutil.rmtree(project.path(".store"))


def empty_the_file(project: Project) -> None:
    project.path(".store/lock").write_bytes(b"")


def put_another_in_its_place(project: Project) -> None:
    project.path(".store/new").write_bytes(b"[" * 100_000)
    project.path(".store/new").replace(project.path(".store/lock"))


@pytest.mark.parametrize(
    "harm", [remove_the_file, remove_the_store, empty_the_file, put_another_in_its_place]
)
def test_harm_to_the_lock_file_lets_nobody_in(tmp_path: Path, harm: Callable[[Project], None]) -> None:
    project = Project(tmp_path, ONE)
    with project.standing_still("candidate:mlp") as holder:
        harm(project)
        for words in ((), ("fsck",), ("gc",), ("forget", "pkl:mlp")):
            refused = project.doit(*words, fails=True)
            assert refused.returncode == 4
            whom = f"process {holder}" if Path("/proc/locks").exists() else "another process"
            assert f"{project.workspace}: {whom} holds this workspace\n" in refused.stderr
            assert ("add --wait" in refused.stderr) == (words in ((), ("gc",)))
    assert "pkl:mlp" in project.made()  # the holder was killed: its lock is gone, with or without a file


def test_whoever_waits_gets_in_when_the_holder_ends(tmp_path: Path) -> None:
    project = Project(tmp_path, ONE)
    with project.standing_still("candidate:mlp") as holder:
        remove_the_file(project)
        waiting = subprocess.Popen(
            [sys.executable, "-m", "doit", "--wait"],
            cwd=project.folder,
            env={"PATH": PATH, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert waiting.stdout is not None
        assert waiting.stdout.readline().startswith("waiting: process ")
        assert not project.path("compiled/mlp_tinygrad.pkl").exists()
        os.killpg(holder, signal.SIGCONT)
        out, _ = waiting.communicate()
    assert waiting.returncode == 0
    assert "0 made, 3 up to date" in out


def test_a_file_system_without_locks_is_refused(tmp_path: Path) -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the filter of system calls is written for x86-64 Linux")
    project = Project(tmp_path, ONE)
    refused = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCKS, "-m", "doit"],
        cwd=project.folder,
        env={"PATH": PATH, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if refused.returncode == 77:
        pytest.skip("this machine lets no process filter its system calls")
    assert refused.returncode == 2
    assert f"{project.workspace}: its file system has no locks" in refused.stderr
    assert "--workspace FOLDER" in refused.stderr
    assert not project.path("onnx").exists()
