"""The plain procedure that a compile script in the field follows, for one model, in one process.

OnnxRunner; TinyJit called three times for the policy and for each camera's warp; pickle; reload; two replays.
It runs the very functions that modelyard's worker captures, under the same flags, so that a comparison times
the procedure and nothing else. With `checked` it makes modelyard's checks instead of the two replays, in the
same process: eight frames of each camera before and after the reload, one of another seed, and onnxruntime's
outputs for the same inputs. Run by bench/compile.py: `python plain.py REQUEST [checked]`.
"""

import json
import pickle
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "rules"))

import numpy as np
from tinygrad import TinyJit
from worker import network, verify
from worker.driving import Driving
from worker.feed import Step

from rules.networks import reference

CALLS, REPLAYS = 3, 2


def main(request_path: str, checked: bool) -> None:
    """Capture, pickle, reload and replay, as the field does."""
    request = json.loads(Path(request_path).read_text())
    driving = Driving(request)
    network.load(driving.networks)
    artifact = {"run_policy": TinyJit(driving.policy_function(), prune=True)}
    for camera in driving.cameras:
        artifact[camera] = TinyJit(driving.warp_function(camera), prune=True)
    steps = verify.STEPS if checked else CALLS
    made = list(verify.replayed(driven(driving, artifact, steps)))
    path = Path(request["outputs"]["artifact"])
    path.write_bytes(pickle.dumps({**driving.head(), **artifact}))
    del artifact
    if checked:
        check(driving, request, made)
    else:
        loaded = pickle.loads(path.read_bytes())
        replays = list(driven(driving, loaded, REPLAYS))
        assert all(np.isfinite(array).all() for step in replays for array in step.outputs)


def driven(driving: Driving, artifact: dict, steps: int) -> Iterable[Step]:
    """So many frames of each camera, one camera after the other."""
    return chain.from_iterable(driving.drives({"artifact": artifact}, seed=verify.SEED, steps=steps))


def check(driving: Driving, request: dict, made: list) -> None:
    """Modelyard's checks, one after the other."""
    observed = Path(request["outputs"]["artifact"] + ".npz")
    seen = verify.verify(driving, {**request, "observed": str(observed)})
    assert seen["replay"] == made
    networks = {role: reference.Network(spec) for role, spec in request["networks"].items()}
    drifts = reference.judged(networks, reference.steps_of(observed))["heads"]
    assert max(drifts.values()) < 0.02


main(sys.argv[1], sys.argv[2:] == ["checked"])
