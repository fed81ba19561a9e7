"""Driver monitoring's runtime, from its documents alone: `dmonitoring.py FOLDER OUT.npz`."""

import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import parser
from contract import frame, matrix
from tinygrad import Tensor

FRAMES = 10
BUFFERS = {(1928, 1208): 4804608, (1344, 760): 2428928}


def load(path: Path) -> Any:
    """A file that a test has built."""
    return pickle.loads(path.read_bytes())


def main(folder: Path, out: str) -> None:
    """Watch ten frames of every camera that has a warp; print the heads, save the outputs."""
    about = load(folder / "dmonitoring_model_metadata.pkl")
    model = load(folder / "dmonitoring_model_tinygrad.pkl")
    calib = np.zeros(about["input_shapes"]["calib"], np.float32)
    inputs = {"calib": Tensor(calib, device="NPY").realize()}
    saved: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for path in sorted(folder.glob("dm_warp_*_tinygrad.pkl")):
        camera = tuple(int(one) for one in re.findall(r"\d+", path.name)[:2])
        warp, label = load(path), "{}x{}".format(*camera)
        for step in range(FRAMES):
            turn = matrix(step, False, camera, (1440, 960))
            shot = Tensor(frame(step, False, BUFFERS[camera])).realize()
            inputs["input_img"] = warp(shot, Tensor(turn, device="NPY").realize())
            assert inputs["input_img"].shape == about["input_shapes"]["input_img"]
            calib[:] = np.sin(step)
            output = model(**inputs).numpy()
            heads = parser.read(parser.CABIN, output, about["output_slices"])
            saved[f"{label}.{step}.out.0"] = output
            told.setdefault(label, []).append(sorted(heads))
    np.savez(out, **saved)
    print(json.dumps({"heads": told, "modules": sorted(sys.modules)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
