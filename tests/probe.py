"""Run in a child: drive an artifact as a runtime does, by its documented contract; save all that came out.

`probe.py drive PLAN OUT.npz` takes a JSON plan; `probe.py monitoring FOLDER OUT.npz`; `probe.py poison IN OUT
HOW` writes an artifact whose weights were changed after it was captured.
"""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
from contract import desire, frame, matrix, packed_part
from tinygrad import Tensor, dtypes
from tinygrad.helpers import ansistrip
from tinygrad.uop.ops import Ops

MODEL_SIZE = (512, 256)
DRIVER_SIZE = (1440, 960)


def load(path: str) -> Any:
    """An artifact that a test has built."""
    return pickle.loads(Path(path).read_bytes())


def host(array: Any) -> Tensor:
    """As the runtimes hold what they refill each frame: on NPY."""
    return Tensor(np.ascontiguousarray(array), device="NPY").realize()


def abi(artifact: Any) -> dict[str, Any]:
    """What can be said of the artifact's dict in JSON."""
    jits = {key: value for key, value in artifact.items() if hasattr(value, "captured")}
    plain = {key: value for key, value in artifact.items() if key not in jits and key != "metadata"}
    return {
        "keys": [repr(key) for key in artifact],
        "plain": plain,
        "metadata": {
            role: {name: repr(value) for name, value in one.items()}
            for role, one in artifact["metadata"].items()
        },
        "arguments": {str(key): jit.captured.expected_names for key, jit in jits.items()},
        "dtypes": {
            str(key): {
                name: [info[2].name, info[3]]
                for name, info in zip(
                    jit.captured.expected_names, jit.captured.expected_input_info, strict=True
                )
            }
            for key, jit in jits.items()
        },
        "sums": {str(key): sums(jit) for key, jit in jits.items()},
    }


def sums(jit: Any) -> list[str]:
    """The kernels of a JIT that add many numbers up; tinygrad names them r, all others E."""
    kernels = (node.arg.name for node in jit.captured._linear.toposort() if node.op is Ops.PROGRAM)
    return [ansistrip(name) for name in kernels if name.startswith("r")]


def drive(plan: dict[str, Any], out: str) -> None:
    """Feed `steps` frames of every camera from empty queues; print the ABI, save arrays by name."""
    artifact = load(plan["artifact"])
    saved: dict[str, Any] = {}
    for camera in (tuple(one) for one in plan["cameras"]):
        queues = {
            name: Tensor.zeros(*shape, dtype=dtypes.uint8 if "img" in name else dtypes.float32)
            .contiguous()
            .realize()
            for name, shape in plan["queues"].items()
        }
        previous = np.zeros(512, np.float32)
        for step in range(plan["steps"]):
            fed = dict(queues)
            for name in ("tfm", "big_tfm"):
                fed[name] = host(matrix(step, "big" in name, camera, MODEL_SIZE))
            for name in ("frame", "big_frame"):
                fed[name] = Tensor(
                    frame(step, "big" in name, plan["sizes"][f"{camera[0]}x{camera[1]}"])
                ).realize()
            images = artifact[camera](**{name: fed[name] for name in plan["warp"]})
            if isinstance(images, Tensor):
                fed["warped"] = images
            else:
                fed["img"], fed["big_img"] = images
            parts = [desire(step), *(packed_part(step, n, tuple(s)).flatten() for n, s in plan["packed"])]
            fed["packed_npy_inputs"] = host(
                np.concatenate([*parts, *([previous] if plan["feeds_back"] else [])])
            )
            seen = [images] if isinstance(images, Tensor) else images
            outputs = artifact["run_policy"](**{name: fed[name] for name in plan["policy"]})
            key = f"{camera[0]}x{camera[1]}.{step}"
            saved |= {f"{key}.seen.{i}": one.numpy() for i, one in enumerate(seen)}
            saved |= {f"{key}.out.{i}": one.numpy() for i, one in enumerate(outputs)}
            saved |= {f"{key}.{name}": one.numpy() for name, one in queues.items() if "img" not in name}
            previous = saved[f"{key}.out.0"][0, slice(*plan["hidden"])].copy()
    np.savez(out, **saved)
    print(json.dumps(abi(artifact)))


def monitoring(folder: str, out: str) -> None:
    """Warp two frames of both cameras and watch them; save what came out."""
    model = load(f"{folder}/dmonitoring_model_tinygrad.pkl")
    saved: dict[str, Any] = {}
    for camera, size in (((1928, 1208), 4804608), ((1344, 760), 2428928)):
        warp = load(f"{folder}/dm_warp_{camera[0]}x{camera[1]}_tinygrad.pkl")
        assert not sums(warp)
        for step in range(2):
            warped = warp(
                Tensor(frame(step, False, size)).realize(), host(matrix(step, False, camera, DRIVER_SIZE))
            )
            output = model(input_img=warped, calib=host(packed_part(step, "calib", (1, 3))))
            saved |= {f"{camera[0]}x{camera[1]}.{step}.warped": warped.numpy()}
            saved |= {f"{camera[0]}x{camera[1]}.{step}.out": output.numpy()}
    np.savez(out, **saved)
    metadata = load(f"{folder}/dmonitoring_model_metadata.pkl")
    print(json.dumps({name: repr(value) for name, value in metadata.items()}))


def poison(source: str, target: str, how: str) -> None:
    """Change every stored float of `run_policy` or of a generic model's JIT: `nan`, `zero` or `scale`."""
    artifact = load(source)
    jit = artifact.get("run_policy") or artifact["run_model"]
    factor = {"nan": np.nan, "zero": 0.0, "scale": 1.5}[how]
    for node in jit.captured._linear.toposort():
        if node.op is Ops.BUFFER and node.buffer.is_allocated() and node.dtype in (dtypes.half, dtypes.float):
            kind = np.float16 if node.dtype is dtypes.half else np.float32
            weights = np.frombuffer(node.buffer.as_memoryview(force_zero_copy=True), kind)
            np.multiply(weights, kind(factor), out=weights)
    Path(target).write_bytes(pickle.dumps(artifact, protocol=5))


if __name__ == "__main__":
    if sys.argv[1] == "drive":
        drive(json.loads(Path(sys.argv[2]).read_text()), sys.argv[3])
    elif sys.argv[1] == "monitoring":
        monitoring(*sys.argv[2:])
    else:
        poison(*sys.argv[2:])
