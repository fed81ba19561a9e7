"""Load one artifact with nothing but tinygrad and numpy, feed it frames, and print what it says."""

import math
import pickle
import sys

import numpy as np
from tinygrad import Tensor

artifact = pickle.load(open(sys.argv[1], "rb"))  # noqa: PTH123, SIM115  (runs code: only for what you built)
metadata, skip, whole = artifact["metadata"], artifact["frame_skip"], "model" in artifact["metadata"]
shapes = metadata["model" if whole else artifact["policy_order"][0]]["input_shapes"]
desire = next(name for name in shapes if name.startswith("desire"))
steps, own = shapes["features_buffer"][1], (desire, "features_buffer")
plain = [name for name in shapes if name not in own and "img" not in name]
packed = 8 + sum(math.prod(shapes[name]) for name in plain) + 512 * whole
blank = {"img_q": (skip + 1, 6, 128, 256), "desire_q": (skip * shapes[desire][1], 1, 8)}
blank |= {"big_img_q": blank["img_q"], "feat_q": (skip * steps if whole else skip * (steps - 1) + 1, 1, 512)}
kinds = {name: "uint8" if "img" in name else "float32" for name in blank}
fed = {name: Tensor.zeros(*shape, dtype=kinds[name]).contiguous().realize() for name, shape in blank.items()}
fed["packed_npy_inputs"] = Tensor(np.zeros(packed, np.float32), device="NPY").realize()
warp = np.diag([3.77, 4.72, 1]).astype(np.float32)  # where in the frame each pixel of 512x256 lies
fed |= {name: Tensor(warp.copy(), device="NPY").realize() for name in ("tfm", "big_tfm")}
for seed in range(3):
    nv12 = np.random.RandomState(seed).randint(0, 256, 4804608, dtype=np.uint8)  # bytes of a 1928x1208 frame
    shots = {name: Tensor(nv12).realize() for name in ("frame", "big_frame")}
    seen = artifact[1928, 1208](**{name: fed[name] for name in artifact["warp_input_keys"]}, **shots)
    seen = {"warped": seen} if isinstance(seen, Tensor) else dict(zip(("img", "big_img"), seen, strict=True))
    outputs = artifact["run_policy"](**{name: fed[name] for name in artifact["policy_input_keys"]}, **seen)
    print([(array.shape, bool(np.isfinite(array).all())) for array in (one.numpy() for one in outputs)])
