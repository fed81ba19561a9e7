"""Compiling on this machine, in a child process whose environment is built from nothing."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rules.builders.job import Job
from rules.errors import ArtifactError

PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
SIGNS = {  # a path that exists on machines with such a device
    "QCOM": ("/dev/kgsl-3d0",),
    "CUDA": ("/dev/nvidiactl", "/proc/driver/nvidia/version"),
    "NV": ("/dev/nvidiactl",),
    "AMD": ("/dev/kfd", "/dev/bus/usb"),
    "CL": ("/etc/OpenCL/vendors",),
    "METAL": ("/System/Library/Frameworks/Metal.framework",),
}


def offers(requirement: str | None) -> bool:
    """Whether this machine meets a flag set's `requires` (`device:QCOM`)."""
    if requirement is None:
        return True
    signs = SIGNS.get(requirement.removeprefix("device:"), ())
    return any(Path(sign).exists() for sign in signs)


def environment(job: Job, home: Path) -> dict[str, str]:
    """The child's whole environment: the flag set, and a short list that no shell can change.

    Home, temporary files and tinygrad's cache are private to the job: a shared cache is a way for one build
    to change another.
    """
    return {
        "PATH": PATH,
        "HOME": str(home),
        "TMPDIR": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "LC_ALL": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(job.tinygrad.parent),
        **job.flags,
    }


def run(job: Job) -> dict[str, Any]:
    """Run the worker on the job's request and return its facts; raises ArtifactError when it fails."""
    operation = job.request["operation"]
    home = job.scratch / f"home-{operation}"
    home.mkdir()
    request, result = job.scratch / f"{operation}.json", job.scratch / f"{operation}-result.json"
    request.write_text(json.dumps(job.request))
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with job.log.open("ab") as log:
        log.write(f"=== {operation} {job.label} {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        log.flush()
        command = [sys.executable, "-s", "-P", str(job.worker), str(request), str(result)]
        child = subprocess.Popen(
            command, env=environment(job, home), cwd=home, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
        # The child watches its standard input: when this process dies, however, the pipe closes.
        with child:
            code = child.wait()
    if code or not result.exists():
        raise _failed(job, operation, code)
    facts: dict[str, Any] = json.loads(result.read_text())
    return facts


def _failed(job: Job, operation: str, code: int) -> ArtifactError:
    lines = [line for line in job.log.read_text(errors="replace").splitlines() if line.strip()]
    how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
    return ArtifactError(
        f"{job.label}: {operation} {how}: {lines[-1] if lines else 'it printed nothing'}",
        fix=f"read {job.log}",
    )
