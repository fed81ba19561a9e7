"""The worker's front door: one request file in, artifacts and one result file out.

A request is JSON (`operation`, `kind`, `networks`, … as `rules/steps/compile.py` writes it); the result file
appears only when the work is complete. Everything printed goes to the model's log.
"""

import gc
import itertools
import json
import platform
import time
from pathlib import Path
from typing import Any

from tinygrad import Device
from tinygrad.uop.ops import UOp

from . import abi, artifact, capture, firstrun, forge, forks, lowering, memory, parent, registers, verify
from .driving import Driving
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
# Every compile counts tinygrad's buffers from here, whatever the process did before: numbers are pickled.
FIRST_NUMBER = 1_000_000


def compile_(request: dict[str, Any]) -> dict[str, Any]:
    """Capture every JIT, replay them, write the artifacts; returns facts about what was made."""
    gc.disable()  # captures are millions of objects that all stay: looking through them took a tenth of it
    UOp.unique_num = itertools.count(FIRST_NUMBER)
    lowering.side_by_side()
    unit = LAYOUTS[request["layout"]](request)
    with DtypeNotes() as notes:
        files = unit.build()
        replay = firstrun.first_run(unit, files)
    captures = unit.captures(files)
    facts = {"replay": replay, "captures": abi.captured(captures), "notes": notes.notes}
    capture.release_intermediates(*captures.values())
    for name, path in request["outputs"].items():
        artifact.dump(files[name], Path(path), request["pickle"])
    return facts


def verify_(request: dict[str, Any]) -> dict[str, Any]:
    """Load the artifacts in this fresh process and drive them (see `verify.py`)."""
    gc.disable()
    return verify.verify(LAYOUTS[request["layout"]](request), request)


def replay(request: dict[str, Any]) -> dict[str, Any]:
    """Run an artifact in real time (see `runtime/realtime.py`)."""
    from .runtime import realtime

    return realtime.replay(request)


def operators(request: dict[str, Any]) -> dict[str, Any]:
    """Run single nodes, each by itself (see `alone/`)."""
    from .alone import hold

    gc.disable()
    return hold(request)


OPERATIONS = {"compile": compile_, "verify": verify_, "replay": replay, "operators": operators}


def work(request_path: str, result_path: str) -> None:
    """Do what the request file says, then write the result file: all of it, or none."""
    request = json.loads(Path(request_path).read_text())
    started = time.monotonic()
    forks.most_bytes = 0
    facts = OPERATIONS[request["operation"]](request)
    facts["seconds"] = round(time.monotonic() - started, 3)
    facts["peak_bytes"] = memory.peak_bytes() + forks.most_bytes
    facts["device"] = Device.DEFAULT
    facts["machine"] = platform.machine()
    facts["renderer"] = type(Device[Device.DEFAULT].renderer).__name__
    facts["arch"] = str(Device[Device.DEFAULT].renderer.target)
    temporary = Path(result_path + ".tmp")
    temporary.write_text(json.dumps(facts))
    temporary.replace(result_path)


def main(arguments: list[str]) -> int:
    """`worker STARTER REQUEST RESULT` does a job; `worker STARTER --forge DESCRIPTOR` stays and serves many.

    STARTER is the number of the process that wants the result.
    """
    starter, *words = arguments
    parent.mind(int(starter))
    registers.remember_hashes()
    try:
        if words[0] == "--forge":
            return forge.serve(int(words[1]), work)
        work(*words)
        return 0
    finally:
        parent.no_longer()
