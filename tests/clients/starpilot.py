"""StarPilot's runtime on one artifact, from its documents alone: `starpilot.py ARTIFACT OUT.npz`.

It makes its queues and takes everything else from the artifact: shapes, slices, frame skip, key lists.
"""

import json
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import parser
from contract import desire, frame, matrix, packed_part
from tinygrad import Tensor

FRAMES = 10
BUFFERS = {(1928, 1208): 4804608, (1344, 760): 2428928}  # bytes of a camera's frame


class ModelState:
    """One camera's drive."""

    def __init__(self, artifact: Any, camera: tuple[int, int]) -> None:
        assert artifact["format_version"] == 1
        self.artifact, self.camera = artifact, camera
        self.order = artifact.get("policy_order", [])
        self.metadata = artifact["metadata"]
        self.supercombo = artifact["model_type"] == "supercombo"
        policy = "on_policy" if "on_policy" in self.order else "policy"
        self.vision = self.metadata["model" if self.supercombo else "vision"]
        self.shapes = self.metadata["model" if self.supercombo else policy]["input_shapes"]
        self.in_policy = artifact.get("image_history_pipeline", "warp") == "policy"
        self.make_queues(artifact["frame_skip"])

    def make_queues(self, skip: int) -> None:
        """Device tensors, matrices and the packed vector, the latter two over numpy."""
        image = next(s for n, s in self.vision["input_shapes"].items() if "img" in n and "big" not in n)
        wish = next(name for name in self.shapes if name.startswith("desire"))
        past = self.shapes["features_buffer"]
        plain = [n for n in self.shapes if n not in (wish, "features_buffer") and "img" not in n]
        self.packed = {"desire": (8,), **{name: self.shapes[name] for name in plain}}
        if self.supercombo:
            self.packed["prev_feat"] = (1, math.prod(past[2:]))
        self.vector = np.zeros(sum(map(math.prod, self.packed.values())), np.float32)
        self.turns = {name: np.zeros((3, 3), np.float32) for name in ("tfm", "big_tfm")}
        self.previous = np.zeros(512, np.float32)
        views = skip * (image[1] // 6 - 1) + 1
        back = skip * past[1] if self.supercombo else skip * (past[1] - 1) + 1
        blank = {
            "img_q": np.zeros((views, 6, *image[2:]), np.uint8),
            "big_img_q": np.zeros((views, 6, *image[2:]), np.uint8),
            "feat_q": np.zeros((back, past[0], 512), np.float32),
            "desire_q": np.zeros((skip * self.shapes[wish][1], 1, 8), np.float32),
        }
        self.queues = {name: Tensor(array).contiguous().realize() for name, array in blank.items()}
        refilled = {**self.turns, "packed_npy_inputs": self.vector}
        self.queues |= {name: Tensor(array, device="NPY").realize() for name, array in refilled.items()}

    def refill(self, step: int) -> None:
        """This frame's numbers, in place."""
        for name, turn in self.turns.items():
            turn[:] = matrix(step, "big" in name, self.camera, (512, 256))
        known = {"desire": desire(step), "prev_feat": self.previous}
        parts = [known[n] if n in known else packed_part(step, n, s) for n, s in self.packed.items()]
        self.vector[:] = np.concatenate([part.flatten() for part in parts])

    def run(self, step: int) -> tuple[list[Any], dict[str, Any]]:
        """One frame of both cameras: raw outputs, parsed heads."""
        self.refill(step)
        size = BUFFERS[self.camera]
        shots = {n: Tensor(frame(step, "big" in n, size)).realize() for n in ("frame", "big_frame")}
        keys = self.artifact["warp_input_keys"]
        seen = self.artifact[self.camera](**{key: self.queues[key] for key in keys}, **shots)
        if self.in_policy:
            images = {"warped": seen}
        else:
            img, big_img = seen
            images = {"img": img, "big_img": big_img}
        keys = self.artifact["policy_input_keys"]
        outputs = self.artifact["run_policy"](**{key: self.queues[key] for key in keys}, **images)
        return self.parse([output.numpy() for output in outputs])

    def parse(self, outputs: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """What the family's parser reads; of policies, the main one speaks last."""
        first, slices = outputs[0], self.vision["output_slices"]
        self.previous = first[0, slices["hidden_state"]].copy()
        if self.supercombo:
            return outputs, parser.read(parser.SIGHT | parser.DECISION, first, slices)
        heads = parser.read(parser.SIGHT, first, slices)
        for role, output in sorted(zip(self.order, outputs[1:], strict=True)):
            slices = self.metadata[role]["output_slices"]
            table = {n: how for n, how in parser.DECISION.items() if n in slices or role != "off_policy"}
            heads |= parser.read(table, output, slices)
        return outputs, heads


def main(path: str, out: str, *, state: Any = ModelState) -> None:
    """Drive every camera of the artifact; print the heads, save the outputs."""
    artifact = pickle.loads(Path(path).read_bytes())
    saved: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for width, height in (key for key in artifact if isinstance(key, tuple)):
        running = state(artifact, (width, height))
        for step in range(FRAMES):
            outputs, heads = running.run(step)
            saved |= {f"{width}x{height}.{step}.out.{i}": array for i, array in enumerate(outputs)}
            told.setdefault(f"{width}x{height}", []).append(sorted(heads))
    np.savez(out, **saved)
    keys = [repr(key) for key in artifact]
    print(json.dumps({"keys": keys, "heads": told, "modules": sorted(sys.modules)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
