"""Load one artifact with nothing but tinygrad and numpy, feed it frames, and print what it says."""

import pickle
import sys

import numpy as np
from tinygrad import Tensor, dtypes

with open(sys.argv[1], "rb") as file:  # noqa: PTH123  (unpickling runs code: only for a file you built)
    artifact = pickle.load(file)
run_policy, camera = artifact["run_policy"], artifact[1928, 1208]
fed = {}
for captured in (camera.captured, run_policy.captured):
    for name, (view, _, dtype, device) in zip(captured.expected_names, captured.expected_input_info, strict=True):
        fed.setdefault(name, Tensor.zeros(*view.shape, dtype=dtype, device=device).contiguous().realize())
for step in range(3):
    for name in ("frame", "big_frame"):
        pixels = np.random.RandomState(step).randint(0, 256, fed[name].shape, dtype=np.uint8)
        fed[name].assign(Tensor(pixels, device=fed[name].device)).realize()
    fed["tfm"] = fed["big_tfm"] = Tensor(np.diag([3.77, 4.72, 1]).astype(np.float32), device="NPY")
    images = camera(**{name: fed[name] for name in artifact["warp_input_keys"]})
    fed |= {"warped": images} if isinstance(images, Tensor) else dict(zip(("img", "big_img"), images, strict=True))
    outputs = run_policy(**{name: fed[name] for name in run_policy.captured.expected_names})
    print([(array.shape, bool(np.isfinite(array).all())) for array in (one.numpy() for one in outputs)])
