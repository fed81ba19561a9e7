"""Run in a child: drive the files of a split model as openpilot's modeld does, from its documents alone.

`modeld.py FOLDER PLAN.json OUT.npz`; the plan is that of tests/probe.py.
"""

import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
from contract import desire, frame, matrix, packed_part
from tinygrad import Tensor

MODEL_SIZE = (512, 256)
SKIP, STEPS = 4, 25  # 20 Hz over 5 Hz; how far the policy looks back


def load(path: Path) -> Any:
    """A pickle whose buffers follow its opcodes, or a plain one."""
    file = io.BytesIO(path.read_bytes())
    if file.getvalue()[8:10] != b"\x80\x05":
        return pickle.load(file)
    opcodes = file.read(int.from_bytes(file.read(8), "little"))
    buffers = []
    while head := file.read(8):
        buffers.append(bytearray(file.read(int.from_bytes(head, "little"))))
    return pickle.loads(opcodes, buffers=buffers)


def host(array: Any) -> Tensor:
    """On NPY, as modeld holds what it refills."""
    return Tensor(np.ascontiguousarray(array), device="NPY").realize()


def main(folder: Path, plan: dict[str, Any], out: str) -> None:
    """Feed the plan's steps to every camera's warp, the vision and the policies; save their outputs."""
    policies = [name for name in ("on_policy", "off_policy", "policy") if (folder / jit(name)).exists()]
    vision, *thinkers = (load(folder / jit(name)) for name in ("vision", *policies))
    hidden = load(folder / "driving_vision_metadata.pkl")["output_slices"]["hidden_state"]
    shapes = load(folder / f"driving_{policies[0]}_metadata.pkl")["input_shapes"]
    saved: dict[str, Any] = {}
    for width, height in plan["cameras"]:
        warp = load(folder / f"warp_{width}x{height}_tinygrad.pkl")
        road, wide = (Tensor.zeros(30, 128, 256, dtype="uint8").contiguous().realize() for _ in range(2))
        features, desires = np.zeros((1, SKIP * STEPS, 512)), np.zeros((1, SKIP * STEPS, 8))
        for step in range(plan["steps"]):
            size = plan["sizes"][f"{width}x{height}"]
            shots = [Tensor(frame(step, big, size)).realize() for big in (False, True)]
            turns = [host(matrix(step, big, (width, height), MODEL_SIZE)) for big in (False, True)]
            result = warp(road, shots[0], turns[0], wide, shots[1], turns[1])
            road, wide = result[0].realize(), result[2].realize()
            seen = vision(img=result[1], big_img=result[3]).contiguous().realize().numpy()
            features = np.concatenate([features[:, 1:], seen[None, :, hidden]], axis=1)
            desires = np.concatenate([desires[:, 1:], desire(step)[None, None]], axis=1)
            newest = np.arange(-1, -SKIP * STEPS, -SKIP)[::-1]
            known = {
                "features_buffer": features[:, newest],
                "desire_pulse": desires.reshape(1, STEPS, SKIP, 8).max(axis=2),
            }
            named = {n: known[n] if n in known else packed_part(step, n, s) for n, s in shapes.items()}
            inputs = {name: host(array.astype(np.float32)) for name, array in named.items()}
            decided = [think(**inputs).contiguous().realize().numpy() for think in thinkers]
            key = f"{width}x{height}.{step}"
            saved |= {f"{key}.out.{i}": array for i, array in enumerate([seen, *decided])}
            saved |= {f"{key}.seen.{i}": result[2 * i + 1].numpy() for i in (0, 1)}
    np.savez(out, **saved)


def jit(name: str) -> str:
    """A network's file."""
    return f"driving_{name}_tinygrad.pkl"


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), sys.argv[3])
