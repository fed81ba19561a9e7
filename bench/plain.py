"""The plain procedure that a compile script in the field follows, for one model, in one process.

OnnxRunner; TinyJit called three times for the policy and for each camera's warp; pickle; reload; two replays.
It runs the very functions that modelyard's worker captures, under the same flags, so that a comparison times
the procedure and nothing else. Run by bench/compile.py: `python plain.py REQUEST`.
"""

import json
import pickle
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "rules"))

import numpy as np
from tinygrad import TinyJit
from worker import network
from worker.driving import Driving

CALLS, REPLAYS = 3, 2


def main(request_path: str) -> None:
    """Capture, pickle, reload and replay, as the field does."""
    request = json.loads(Path(request_path).read_text())
    driving = Driving(request)
    network.load(driving.networks)
    artifact = {"run_policy": TinyJit(driving.policy_function(), prune=True)}
    for camera in driving.cameras:
        artifact[camera] = TinyJit(driving.warp_function(camera), prune=True)
    list(driving.run({"artifact": artifact}, seed=0, steps=CALLS))
    path = Path(request["outputs"]["artifact"])
    path.write_bytes(pickle.dumps(artifact))
    del artifact
    loaded = pickle.loads(path.read_bytes())
    steps = list(driving.run({"artifact": loaded}, seed=0, steps=REPLAYS))
    assert all(np.isfinite(array).all() for step in steps for array in step.outputs)


main(sys.argv[1])
