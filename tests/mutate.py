"""Run in a child with tinygrad: take a good artifact, change one thing, write it again.

`mutate.py HOW IN OUT REQUEST`: the functions below are the hows; REQUEST is the worker's own, as a JSON file.
"""

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad.uop.ops import Ops

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rules.worker import queues
from rules.worker.capture import jit
from rules.worker.driving import Driving, Places
from rules.worker.feed import Noise, matrix, on_device, on_host
from rules.worker.generic import Generic
from rules.worker.network import load
from rules.worker.nv12 import Nv12

SMALLER = (1344, 760)
DRIFT = 1e-3  # far below any tolerance


def newer_format(artifact: Any, request: Any) -> None:
    """A format version that no loader knows."""
    artifact["format_version"] = 2


def without_a_key(artifact: Any, request: Any) -> None:
    """A camera that the model was not built for."""
    del artifact[SMALLER]


def another_contract(artifact: Any, request: Any) -> None:
    """It says that the history is elsewhere than it is."""
    artifact["image_history_pipeline"] = "policy"


def old_policy_input_keys(artifact: Any, request: Any) -> None:
    """The policy's ONNX inputs in place of a runtime's queues."""
    artifact["policy_input_keys"] = ["desire_pulse", "traffic_convention", "features_buffer"]


def old_warp_input_keys(artifact: Any, request: Any) -> None:
    """The frames among the queues."""
    artifact["warp_input_keys"] = [*artifact["warp_input_keys"], "frame", "big_frame"]


def too_few_keys(artifact: Any, request: Any) -> None:
    """A queue that the policy insists on is not listed."""
    artifact["policy_input_keys"].remove("desire_q")


def writes_to_its_input(artifact: Any, request: Any) -> None:
    """Right outputs, and the caller's buffer is another when they are there."""
    unit = Generic(request)
    load(unit.networks)

    def run_model(**inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = tuple(output.contiguous().realize() for output in unit.model.outputs(inputs))
        for given in inputs.values():
            given.assign(given + 1).realize()
        return outputs

    (spec,) = unit.model.spec["inputs"].values()
    changed = jit(run_model)
    changed(input=on_device(np.zeros(spec["shape"], spec["dtype"]), "CPU"))
    artifact["run_model"] = changed


def renamed_argument(artifact: Any, request: Any) -> None:
    """A JIT that wants to be called otherwise."""
    artifact["run_model"].captured.expected_names[:] = ["frames"]


def swapped_cameras(artifact: Any, request: Any) -> None:
    """Each camera has the other's warp: tinygrad itself would not mind, since frames are flat."""
    first, second = ((width, height) for width, height in request["cameras"])
    artifact[first], artifact[second] = artifact[second], artifact[first]


def float_argument(artifact: Any, request: Any) -> None:
    """The argument's dtype is not that of the ONNX input."""
    captured = artifact["run_model"].captured
    view, variables, _, device = captured.expected_input_info[0]
    captured.expected_input_info[0] = (view, variables, dtypes.float, device)


def another_skip(artifact: Any, request: Any) -> None:
    """It says that frames are skipped otherwise than its queues are deep."""
    artifact["frame_skip"] = 2


def long_slice(artifact: Any, request: Any) -> None:
    """A slice that ends behind the last column; Python would cut it short and say nothing."""
    artifact["metadata"]["model"]["output_slices"]["right"] = slice(4, 9)


def ballast(artifact: Any, request: Any) -> None:
    """17 MB that nothing needs."""
    artifact["ballast"] = os.urandom(17 << 20)


def warp_elsewhere(artifact: Any, request: Any) -> None:
    """The smaller camera's warp, captured on another device."""
    unit = Driving(request)
    unit.places = Places("CPU:1", "CPU:1", "CPU:1")
    random = np.random.RandomState(0)
    fed = {name: queue for name, queue in unit.new_queues().items() if "img" in name}
    fed |= {name: on_host(matrix(random, SMALLER, unit.model_size)) for name in ("tfm", "big_tfm")}
    noise = Noise(random, Nv12.of(*SMALLER).size)
    fed |= {name: on_device(noise(i), "CPU:1") for i, name in enumerate(("frame", "big_frame"))}
    warp = jit(unit.warp_function(SMALLER))
    warp(**fed)
    warp.captured.free_intermediates()
    artifact[SMALLER] = warp


def wrong_later(artifact: Any, request: Any) -> None:
    """A JIT that is right twice and then drifts, by less than any tolerance."""
    unit = Generic(request)
    load(unit.networks)
    calls = Tensor.zeros(1).contiguous().realize()

    def run_model(**inputs: Tensor) -> tuple[Tensor, ...]:
        one = (inputs["input"].float().sum() < 1e9).cast(dtypes.float)  # pruning drops what no input decides
        calls.assign(calls + one)
        late = (calls > 3).cast(dtypes.float) * DRIFT  # the capture is one call, the other seed another
        return tuple((output + late.cast(output.dtype)).contiguous() for output in unit.model.outputs(inputs))

    (spec,) = unit.model.spec["inputs"].values()
    changed = jit(run_model)
    changed(input=on_device(np.zeros(spec["shape"], spec["dtype"]), "CPU"))
    artifact["run_model"] = changed


def scaled_weights(artifact: Any, request: Any) -> None:
    """Every stored weight half as large again, as a capture that was pickled wrongly would hold them."""
    for node in artifact["run_model"].captured._linear.toposort():
        if node.op is Ops.BUFFER and node.buffer.is_allocated() and node.dtype is dtypes.half:
            weights = np.frombuffer(node.buffer.as_memoryview(force_zero_copy=True), np.float16)
            np.multiply(weights, np.float16(1.5), out=weights)


def short_memory(request: Any, result: str) -> None:
    """Not a change: a compile whose policy looks at the newest features instead of those a skip apart."""
    from rules.worker import main

    def newest(queue: Any, frame_skip: int) -> Any:
        steps = -(-queue.shape[0] // frame_skip)
        return queue[-steps:].reshape(1, -1, queue.shape[-1])

    queues.features = newest
    Path(result).write_text(json.dumps(main.compile_(request)))


def mutate(how: str, source: str, target: str, request: Any) -> None:
    """Read, change, write."""
    artifact = pickle.loads(Path(source).read_bytes())
    globals()[how](artifact, request)
    Path(target).write_bytes(pickle.dumps(artifact, protocol=5))


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[4]).read_text()) if sys.argv[4] != "{}" else {}
    if sys.argv[1] == "short_memory":
        short_memory({**asked, "outputs": {"artifact": sys.argv[3]}}, sys.argv[2])
    else:
        mutate(*sys.argv[1:4], asked)
