"""The worker's front door: one request file in, artifacts and one result file out.

A request is JSON (`operation`, `kind`, `networks`, … as `rules/steps/compile.py` writes it); the result file
appears only when the work is complete. Everything printed goes to the model's log.
"""

import itertools
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tinygrad import Device
from tinygrad.uop.ops import UOp

from . import artifact, capture, forge, lowering
from .driving import Driving
from .feed import Step, digest
from .generic import Generic
from .iqpilot import Supercombo
from .monitoring import Monitoring
from .network import DtypeNotes
from .split import Split

LAYOUTS: dict[str, Any] = {
    "starpilot-single": Driving,
    "openpilot-split": Split,
    "iqpilot-supercombo": Supercombo,
    "dmonitoring": Monitoring,
    "generic": Generic,
}
SEED, OTHER_SEED = 0, 1
STEPS = 3
PARENT_CHECK_S = 0.5
# Every compile counts tinygrad's buffers from here, whatever the process did before: numbers are pickled.
FIRST_NUMBER = 1_000_000


def replayed(steps: list[Step]) -> list[dict[str, Any]]:
    """What the host compares of a replay: digests, and whether every number is one."""
    return [
        {
            "label": step.label,
            "outputs": digest(step.outputs),
            "state": digest(step.state),
            "finite": all(bool(np.isfinite(array).all()) for array in step.outputs),
            "varies": all(array.size == 1 or bool((array != array.flat[0]).any()) for array in step.outputs),
        }
        for step in steps
    ]


def captured(captures: dict[str, Any]) -> dict[str, Any]:
    """What each capture was made on, how it is called, and how much it runs."""
    return {
        label: {
            "devices": capture.devices(one),
            "arguments": capture.names(one),
            "kernels": capture.kernels(one),
        }
        for label, one in captures.items()
    }


def compile_(request: dict[str, Any]) -> dict[str, Any]:
    """Capture every JIT, replay them, write the artifacts; returns facts about what was made."""
    UOp.unique_num = itertools.count(FIRST_NUMBER)
    lowering.side_by_side()
    unit = LAYOUTS[request["layout"]](request)
    with DtypeNotes() as notes:
        files = unit.build()
        steps = list(unit.run(files, seed=SEED, steps=STEPS))
    captures = unit.captures(files)
    facts = {"replay": replayed(steps), "captures": captured(captures), "notes": notes.notes}
    capture.release_intermediates(*captures.values())
    for name, path in request["outputs"].items():
        artifact.dump(files[name], Path(path), request["pickle"])
    return facts


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Load the artifacts from disk in this fresh process and replay them; the host judges the facts."""
    unit = LAYOUTS[request["layout"]](request)
    files = {name: artifact.read(Path(path)) for name, path in request["outputs"].items()}
    return {
        "replay": replayed(list(unit.run(files, seed=SEED, steps=STEPS))),
        "other": replayed(list(unit.run(files, seed=OTHER_SEED, steps=STEPS))),
        "captures": captured(unit.captures(files)),
    }


def replay(request: dict[str, Any]) -> dict[str, Any]:
    """Run an artifact in real time (see `runtime/realtime.py`)."""
    from .runtime import realtime

    return realtime.replay(request)


OPERATIONS = {"compile": compile_, "verify": verify, "replay": replay}


def mind_the_parent() -> None:
    """Stop soon after whoever started this process is gone: nobody wants its result any more.

    Asking now and then, by a timer, needs no thread, so that a process may fork.
    """
    parent = os.getppid()

    def ask(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(130)

    signal.signal(signal.SIGALRM, ask)
    signal.setitimer(signal.ITIMER_REAL, PARENT_CHECK_S, PARENT_CHECK_S)


def work(request_path: str, result_path: str) -> None:
    """Do what the request file says, then write the result file: all of it, or none."""
    request = json.loads(Path(request_path).read_text())
    started = time.monotonic()
    facts = OPERATIONS[request["operation"]](request)
    facts["seconds"] = round(time.monotonic() - started, 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts["peak_bytes"] = peak if sys.platform == "darwin" else 1024 * peak
    facts["device"] = Device.DEFAULT
    facts["renderer"] = type(Device[Device.DEFAULT].renderer).__name__
    facts["arch"] = str(Device[Device.DEFAULT].renderer.target)
    temporary = Path(result_path + ".tmp")
    temporary.write_text(json.dumps(facts))
    temporary.replace(result_path)


def main(arguments: list[str]) -> int:
    """`worker REQUEST RESULT` does one job; `worker --forge DESCRIPTOR` stays and serves many."""
    mind_the_parent()
    try:
        if arguments[0] == "--forge":
            return forge.serve(int(arguments[1]), work, mind_the_parent)
        work(*arguments)
        return 0
    finally:
        # While Python shuts down its handlers are gone already, and an alarm would kill the process.
        signal.setitimer(signal.ITIMER_REAL, 0)
