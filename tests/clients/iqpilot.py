"""IQPilot's runtime on one artifact: flat metadata, no lists of keys, the images' history in the policy."""

import sys
from typing import Any

import starpilot

QUEUES = ("img_q", "big_img_q", "feat_q", "desire_q", "packed_npy_inputs")


class ModelState(starpilot.ModelState):
    """One camera's drive."""

    def __init__(self, artifact: Any, camera: tuple[int, int]) -> None:
        assert {"format_version", "model_type", "policy_order"}.isdisjoint(artifact)
        self.supercombo, self.in_policy, self.order = True, True, []
        self.vision = artifact["metadata"]
        assert set(self.vision) == {"model_checkpoint", "output_slices", "input_shapes", "output_shapes"}
        self.shapes = self.vision["input_shapes"]
        keys = {"warp_input_keys": ("tfm", "big_tfm"), "policy_input_keys": QUEUES}
        self.artifact, self.camera = {**artifact, **keys}, camera
        self.make_queues(artifact["frame_skip"])


if __name__ == "__main__":
    starpilot.main(*sys.argv[1:], state=ModelState)
