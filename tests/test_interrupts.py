"""Ctrl-C, SIGTERM, two runs at once, a full disk, a read-only folder, a clock that jumps back."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import needs
from contract import PATH, ROOT, Project, generated, model

ONE = model("mlp", generated("generic-mlp"), 'type = "generic"')
TWO = model("pop", generated("vision-conv+attention"), 'since = "v22"')


def start(project: Project, *words: str) -> subprocess.Popen[str]:
    """doit in the background, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "doit", *words],
        cwd=project.folder,
        env={"PATH": PATH, "HOME": str(project.folder), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(child: subprocess.Popen[str], line: str) -> None:
    """Read what it prints until a line says so."""
    assert child.stdout is not None
    for printed in child.stdout:
        if line in printed:
            return
    raise AssertionError(f"it ended without {line!r}: {child.stderr.read() if child.stderr else ''}")


def gone(pid: int) -> bool:
    """Whether no process of the group is left, waiting a little; one that waits to be reaped is no more."""
    for _ in range(50):
        listed = subprocess.run(
            [needs("ps"), "-e", "-o", "pgid=,stat="], capture_output=True, text=True, check=True
        )
        states = [line.split()[1] for line in listed.stdout.splitlines() if line.split()[0] == str(pid)]
        if all(state.startswith("Z") for state in states):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("threads", [(), ("-n", "2")], ids=["one by one", "side by side"])
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_tells_what_is_kept_and_leaves_no_child(
    tmp_path: Path, threads: tuple[str, ...], sent: signal.Signals, code: int
) -> None:
    project = Project(tmp_path, TWO + ONE + '[release.v22]\ncontract = "warp"\n')
    child = start(project, *threads)
    wait_for(child, "…  candidate:pop")
    time.sleep(1)
    os.kill(child.pid, sent)
    _, errors = child.communicate(timeout=30)
    assert child.returncode == code, errors
    assert re.search(r"interrupted: kept \d+ finished steps?; the next doit goes on from there", errors)
    assert "Traceback" not in errors
    assert gone(child.pid)
    assert not list(project.path("compiled").glob("*"))
    assert "onnx:pop" not in project.made("onnx:pop")


def test_a_worker_that_was_left_before_it_could_look_does_nothing() -> None:
    """Its starter may be gone while it still imports tinygrad: then its parent is somebody else already."""
    starter = subprocess.Popen([sys.executable, "-c", ""])
    starter.wait()
    begin = "import sys; from worker.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", begin, str(starter.pid), "no request", "no result"],
        env={"PATH": PATH, "PYTHONPATH": str(ROOT / "rules"), "DEV": "CPU:X86", "CC": "echo"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130, done.stderr


def test_a_second_run_says_who_holds_the_workspace_and_can_wait(tmp_path: Path) -> None:
    project = Project(tmp_path, ONE)
    first = start(project)
    wait_for(first, "…  candidate:mlp")
    second = project.doit(fails=True)
    assert second.returncode == 4
    assert f"process {first.pid} holds this workspace since" in second.stderr
    assert "add --wait" in second.stderr
    waited = project.doit("--wait")
    assert "waiting: process" in waited.stdout
    assert waited.stdout.splitlines()[-1] == "0 made, 3 up to date"
    assert first.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_leaves_nothing_half_made(tmp_path: Path) -> None:
    project = Project(tmp_path, ONE)
    project.workspace.mkdir()
    mounted = subprocess.run(
        [needs("mount"), "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(project.workspace)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"this machine mounts no tmpfs: {mounted.stderr.decode().strip()}")
    try:
        failed = project.doit(fails=True)
        assert "No space left on device" in failed.stdout + failed.stderr
        assert not list(project.path("compiled").glob("*"))
        subprocess.run(["mount", "-o", "remount,size=64m", str(project.workspace)], check=True)
        assert "pkl:mlp" in project.made()
    finally:
        subprocess.run(["umount", str(project.workspace)], check=True)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    project = Project(tmp_path, ONE)
    project.workspace.mkdir()
    project.path("compiled").write_text("a file where a folder belongs")
    failed = project.doit(fails=True)
    assert str(project.path("compiled")) in failed.stdout
    assert "doit pkl:mlp" in failed.stdout
    project.path("compiled").unlink()
    assert project.made() == ["pkl:mlp"]


def test_a_clock_that_jumps_back_hides_no_change(tmp_path: Path) -> None:
    project = Project(tmp_path, ONE)
    project.doit()
    artifact = project.path("compiled/mlp_tinygrad.pkl")
    good, times = artifact.read_bytes(), artifact.stat()
    artifact.unlink()
    artifact.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    os.utime(artifact, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert project.made() == ["pkl:mlp"]
    assert artifact.read_bytes() == good
    future = time.time() + 1e6
    for path in project.workspace.rglob("*"):
        os.utime(path, (future, future))
    assert project.made() == []
