"""Compiling on this machine, in a child process whose environment is built from nothing."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rules.builders import confine
from rules.builders.job import Job
from rules.builders.watched import Watched
from rules.errors import ArtifactError
from rules.keeping import files

PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
LOADING = ("verify", "replay")  # operations that load artifacts, of which some come from elsewhere
RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)(: |$)")  # how a traceback ends
SIGNS = {  # a path that exists on machines with such a device
    "QCOM": ("/dev/kgsl-3d0",),
    "CUDA": ("/dev/nvidiactl", "/proc/driver/nvidia/version"),
    "NV": ("/dev/nvidiactl",),
    "AMD": ("/dev/kfd",),
    "CL": ("/etc/OpenCL/vendors",),
    "METAL": ("/System/Library/Frameworks/Metal.framework",),
}


USB_DEVICES = Path("/sys/bus/usb/devices")
GPU_BRIDGE = (
    "add1",
    "0001",
)  # vendor and product of a USB bridge with tinygrad's firmware: an AMD GPU behind


def offers(requirement: str | None, usb: Path = USB_DEVICES) -> bool:
    """Whether this machine meets a flag set's `requires` (`device:QCOM`); `usb` lists its USB devices."""
    if requirement is None:
        return True
    device = requirement.removeprefix("device:")
    found = any(Path(sign).exists() for sign in SIGNS.get(device, ()))
    return found or (device == "AMD" and _has_gpu_bridge(usb))


def _has_gpu_bridge(devices: Path) -> bool:
    for device in sorted(devices.glob("*")):
        try:
            ids = tuple((device / name).read_text().strip() for name in ("idVendor", "idProduct"))
        except OSError:
            continue  # a hub's interface, or unplugged meanwhile
        if ids == GPU_BRIDGE:
            return True
    return False


def environment(job: Job, home: Path) -> dict[str, str]:
    """The child's whole environment: the flag set, and a short list that no shell can change.

    Home and temporary files are private to the job, and tinygrad keeps no cache on disk: a shared cache is a
    way for one build to change another.
    """
    return {
        "PATH": PATH,
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "CACHELEVEL": "0",
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(job.tinygrad.parent),
        **job.flags,
    }


def command(job: Job, *arguments: str) -> list[str]:
    """How the worker is started."""
    return [sys.executable, "-s", "-P", str(job.worker), str(os.getpid()), *arguments]


def written(job: Job) -> tuple[Path, Path]:
    """Write the job's request into its scratch folder; returns the paths of request and result."""
    operation = job.request["operation"]
    request, result = job.scratch / f"{operation}.json", job.scratch / f"{operation}-result.json"
    request.write_text(json.dumps(job.request))
    return request, result


@contextlib.contextmanager
def logging(job: Job) -> Iterator[IO[bytes]]:
    """The job's log, opened to append, with a line that says what begins."""
    with files.appending(job.log) as log:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        log.write(f"=== {job.request['operation']} {job.label} {now}\n".encode())
        log.flush()
        yield log


def run(job: Job) -> dict[str, Any]:
    """Run the worker on the job's request and return its facts; raises ArtifactError when it fails."""
    home = job.scratch / f"home-{job.request['operation']}"
    home.mkdir()
    request, result = written(job)
    with logging(job) as log:
        arguments = _confined(job, command(job, str(request), str(result)), log)
        process = subprocess.Popen(
            arguments, env=environment(job, home), cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        with Watched(process, job.most_bytes) as watch:
            code = process.wait()
    if watch.why:
        raise ended(job, watch.why, watch.advice)
    return facts(
        job, result, f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
    )


def ended(job: Job, why: str, advice: str) -> ArtifactError:
    """The error for a worker that the watch on it ended."""
    what = f"{job.label}: {job.request['operation']} {why}"
    return ArtifactError(what, fix=f"{advice}; its log is {job.log}")


def _confined(job: Job, words: list[str], log: IO[bytes]) -> list[str]:
    """The command for a job that loads artifacts: confined, where this machine can do that."""
    if job.request["operation"] not in LOADING:
        return words
    if missing := confine.missing():
        log.write(f"not confined: {missing}\n".encode())
        log.flush()
        _check_harmless(job)
        return words
    tools = (job.tinygrad.parent, job.worker)
    return confine.command(confine.room(job.request, job.flags, tools, job.scratch), words)


def _check_harmless(job: Job) -> None:
    """Raise ArtifactError unless loading the artifacts does nothing that it should not.

    A record that was edited together with its file looks like any other, and names what somebody put there.
    """
    from rules.inspection import flaw

    if found := flaw((name, Path(path)) for name, path in job.request["outputs"].items()):
        raise ArtifactError(
            f"{job.label}: {job.request['operation']} does not load what cannot be confined here: {found}",
            fix=f"doit forget candidate:{job.label}, then doit candidate:{job.label}",
        )


def _last_words(log: str) -> str:
    """What a log ends in: the exception of its last traceback, whose message may have many lines."""
    lines = [line for line in log.splitlines() if line.strip()]
    begun = max((number for number, line in enumerate(lines) if line.startswith("===")), default=0)
    raised = [line for line in lines[begun:] if RAISED.match(line)]
    return (raised or lines)[-1]


def facts(job: Job, result: Path, how: str) -> dict[str, Any]:
    """The result a worker left; raises ArtifactError, saying `how` it ended, when it left none."""
    if not result.exists():
        cause = _last_words(files.tail(job.log, files.TEXT))
        raise ArtifactError(f"{job.label}: {job.request['operation']} {how}: {cause}", fix=f"read {job.log}")
    found = _left(result)
    if found is None:
        raise ArtifactError(f"{job.label}: {job.request['operation']} left no result", fix=f"read {job.log}")
    return found


def _left(result: Path) -> dict[str, Any] | None:
    """What a worker left, read as a stranger's bytes: an artifact that it loaded may have written them."""
    try:
        found = None if result.is_symlink() else json.loads(files.read(result))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
