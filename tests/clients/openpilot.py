"""openpilot's modeld on the files of a split model, from its documents alone: `openpilot.py FOLDER OUT`."""

import io
import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import parser
from contract import desire, frame, matrix, packed_part
from tinygrad import Tensor

FRAMES, SKIP = 10, 4  # 20 Hz over 5 Hz
BUFFERS = {(1928, 1208): 4804608, (1344, 760): 2428928}


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


class ModelState:
    """One camera's drive: the warp with its queues, the vision, the policies on histories in numpy."""

    def __init__(self, folder: Path, camera: tuple[int, int]) -> None:
        self.camera = camera
        self.warp = load(folder / "warp_{}x{}_tinygrad.pkl".format(*camera))
        order = ("off_policy", "on_policy", "policy")
        self.policies = [one for one in order if (folder / f"driving_{one}_tinygrad.pkl").exists()]
        roles = ("vision", *self.policies)
        self.jits = {role: load(folder / f"driving_{role}_tinygrad.pkl") for role in roles}
        self.about = {
            role: pickle.loads((folder / f"driving_{role}_metadata.pkl").read_bytes()) for role in roles
        }
        self.shapes = self.about[self.policies[0]]["input_shapes"]
        (self.wish,) = (name for name in self.shapes if name.startswith("desire"))
        image = next(iter(self.about["vision"]["input_shapes"].values()))
        self.views = [
            Tensor(np.zeros((6 * (SKIP + 1), *image[2:]), np.uint8)).contiguous().realize() for _ in "rw"
        ]
        steps = self.shapes["features_buffer"][1]
        self.features, self.desires = np.zeros((SKIP * steps, 512)), np.zeros((SKIP * steps, 8))

    def run(self, step: int) -> tuple[list[Any], dict[str, Any]]:
        """One frame of both cameras: raw outputs (vision, on, off policy), parsed heads."""
        shots = [Tensor(frame(step, big, BUFFERS[self.camera])).realize() for big in (False, True)]
        turns = [host(matrix(step, big, self.camera, (512, 256))) for big in (False, True)]
        given = (one for eye in zip(self.views, shots, turns, strict=True) for one in eye)
        road_q, road, wide_q, wide = self.warp(*given)
        self.views = [road_q, wide_q]
        images = {n: wide if "big" in n else road for n in self.about["vision"]["input_shapes"]}
        seen = self.jits["vision"](**images).numpy()
        slices = self.about["vision"]["output_slices"]
        heads = parser.read(parser.SIGHT, seen, slices)
        self.features = np.concatenate([self.features[1:], seen[:, slices["hidden_state"]]])
        self.desires = np.concatenate([self.desires[1:], desire(step)[None]])
        fed = {name: host(self.input(step, name, shape)) for name, shape in self.shapes.items()}
        decided = {role: self.jits[role](**fed).numpy() for role in self.policies}
        for role, output in decided.items():
            slices = self.about[role]["output_slices"]
            table = {n: how for n, how in parser.DECISION.items() if n in slices or role != "off_policy"}
            heads |= parser.read(table, output, slices)
        spoken = [decided[role] for role in ("on_policy", "off_policy", "policy") if role in decided]
        return [seen, *spoken], heads

    def input(self, step: int, name: str, shape: tuple[int, ...]) -> Any:
        """One input of the policies, float32."""
        if name == "features_buffer":
            newest = np.arange(-1, -SKIP * shape[1], -SKIP)[::-1]
            return self.features[None, newest].astype(np.float32)
        if name == self.wish:
            return self.desires.reshape(1, shape[1], SKIP, 8).max(axis=2).astype(np.float32)
        return packed_part(step, name, shape)


def main(folder: Path, out: str) -> None:
    """Drive every camera that has a warp; print the heads, save the outputs."""
    saved: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for path in sorted(folder.glob("warp_*_tinygrad.pkl")):
        width, height = (int(one) for one in re.findall(r"\d+", path.name)[:2])
        running = ModelState(folder, (width, height))
        for step in range(FRAMES):
            outputs, heads = running.run(step)
            saved |= {f"{width}x{height}.{step}.out.{i}": array for i, array in enumerate(outputs)}
            told.setdefault(f"{width}x{height}", []).append(sorted(heads))
    np.savez(out, **saved)
    print(json.dumps({"heads": told, "modules": sorted(sys.modules)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
