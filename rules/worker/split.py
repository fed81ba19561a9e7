"""The layout `openpilot-split`: every network and every camera's warp in a file of its own.

The warps keep the image queues on the device; the policy's histories are the runtime's, in numpy.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tinygrad import Tensor

from . import queues, warp
from .capture import jit
from .driving import MATRICES, Driving
from .feed import Arrays, on_device, on_host
from .network import FEATURES_INPUT, HIDDEN, Network, load
from .nv12 import Nv12

PLANES = 6  # of one frame


def network_file(role: str) -> str:
    """The file name of one network's JIT."""
    return f"driving_{role}_tinygrad.pkl"


def metadata_file(role: str) -> str:
    """The file name of one network's metadata."""
    return f"driving_{role}_metadata.pkl"


def warp_file(camera: tuple[int, int]) -> str:
    """The file name of one camera's warp."""
    return "warp_{}x{}_tinygrad.pkl".format(*camera)


def skip_of(captured: Any) -> int:
    """The frame skip for which a warp was captured: its queue holds one frame more."""
    shape = captured.captured.expected_input_info[0][0].shape
    return int(shape[0]) // PLANES - 1


class Split(Driving):
    """A vision network and its policies for openpilot's modeld, which runs them in series."""

    def network_function(self, network: Network) -> Any:
        """One network's function: its ONNX inputs by name, its output as float32 (1, N)."""

        def run_onnx(**inputs: Tensor) -> Tensor:
            moved = {name: value.to(self.places.model) for name, value in inputs.items()}
            return network(moved).contiguous()

        return run_onnx

    def warp_function(self, camera: tuple[int, int]) -> Any:
        """One camera's function, called by position; each queue is uint8 (6 * depth, H/2, W/2).

        Returns the road queue and its image input (1, 12, H/2, W/2), then the same of the wide camera.
        """
        layout, place = Nv12.of(*camera), self.places.warp

        def update(queue: Tensor, frame: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
            planes = warp.driving_planes(frame.to(place), matrix.to(place), layout, self.model_size)
            full = queue[PLANES:].cat(planes[0]).contiguous()
            return full, full[:PLANES].cat(full[-PLANES:]).contiguous().reshape(1, -1, *full.shape[1:])

        def update_both_imgs(
            img_q: Tensor, frame: Tensor, tfm: Tensor, big_img_q: Tensor, big_frame: Tensor, big_tfm: Tensor
        ) -> tuple[Tensor, ...]:
            return (*update(img_q, frame, tfm), *update(big_img_q, big_frame, big_tfm))

        return update_both_imgs

    def build(self) -> dict[str, Any]:
        """The files by name, their JITs not yet captured; metadata vouches for nothing and comes last."""
        load(self.networks)
        jits = {network_file(role): jit(self.network_function(one)) for role, one in self.networks.items()}
        warps = {warp_file(camera): jit(self.warp_function(camera)) for camera in self.cameras}
        metadata = {metadata_file(role): network.metadata for role, network in self.networks.items()}
        return {**jits, **warps, **metadata}

    def captures(self, files: dict[str, Any]) -> dict[str, Any]:
        """The JITs by label: each network's role, then one for each camera."""
        jits = {role: files[network_file(role)] for role in self.networks}
        return jits | {"{}x{}".format(*camera): files[warp_file(camera)] for camera in self.cameras}

    def new_queues(self) -> dict[str, Tensor]:
        """Empty image queues on the warps' device."""
        shape = (PLANES * self.history.image_depth, self.model_size[1] // 2, self.model_size[0] // 2)
        return {
            name: on_device(np.zeros(shape, np.uint8), self.places.warp) for name in ("img_q", "big_img_q")
        }

    def at_work(self, files: Mapping[str, Any], camera: tuple[int, int]) -> "Series":  # type: ignore[override]
        """The files ready for the first frame of one camera."""
        return Series(self, files, camera)


class Series:
    """A split model at work on one camera: two networks in series, as modeld runs them."""

    def __init__(self, unit: Split, files: Mapping[str, Any], camera: tuple[int, int]) -> None:
        self.unit = unit
        self.update = files[warp_file(camera)]
        self.vision = files[network_file("vision")]
        self.policies = [files[network_file(role)] for role in unit.policies]
        self.matrices: dict[str, Any] = {name: np.zeros((3, 3), np.float32) for name in MATRICES}
        self.turns = [on_host(array) for array in self.matrices.values()]
        shapes = {name: unit.policy.shapes[name] for name in unit.policy_inputs}
        self.inputs: dict[str, Any] = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        self.fed = {name: on_host(array) for name, array in self.inputs.items()}
        self.restart()

    def restart(self) -> None:
        """Forget every frame seen so far."""
        history = self.unit.history
        self.images = list(self.unit.new_queues().values())
        self.features = np.zeros((history.feature_depth, 1, queues.FEATURES), np.float32)
        self.desires = np.zeros((history.desire_depth, 1, queues.DESIRES), np.float32)

    def step(
        self, shots: tuple[Tensor, Tensor], matrices: Mapping[str, Any], values: Mapping[str, Any]
    ) -> Arrays:
        """One frame of both cameras, uint8 on the frames' device; returns each network's output (1, N).

        `matrices` holds `tfm` and `big_tfm`, `values` every name of the unit's `packed_inputs`.
        """
        self.warp(shots, matrices)
        seen = self.vision(**dict(zip(self.unit.images.image_keys, self.stacks, strict=True))).numpy()
        self._remember(seen[:, self.unit.images.slice_of(HIDDEN)], values)
        return [seen, *(policy(**self.fed).numpy() for policy in self.policies)]

    def warp(self, shots: tuple[Tensor, Tensor], matrices: Mapping[str, Any]) -> None:
        """The warp alone: all that a runtime runs of a frame that it will not publish."""
        for name, array in self.matrices.items():
            array[:] = matrices[name]
        road, wide = zip(self.images, shots, self.turns, strict=True)
        road_queue, road_input, wide_queue, wide_input = self.update(*road, *wide)
        self.images = [road_queue, wide_queue]
        self.stacks = (road_input, wide_input)

    def _remember(self, hidden: Any, values: Mapping[str, Any]) -> None:
        """Push the newest feature and desire, then fill the policies' inputs."""
        skip, desire = self.unit.history.frame_skip, self.unit.policy.desire_key
        for queue, entry in ((self.features, hidden), (self.desires, values["desire"])):
            queue[:-1] = queue[1:].copy()
            queue[-1] = np.ravel(entry)
        for name, array in self.inputs.items():
            if name == FEATURES_INPUT:
                array[:] = queues.features(self.features, skip)
            elif name == desire:
                array[:] = queues.desires(self.desires, skip)
            else:
                array.reshape(-1)[:] = np.ravel(values[name])

    @property
    def state(self) -> Arrays:
        """What the queues hold."""
        return [*(queue.numpy() for queue in self.images), self.features.copy(), self.desires.copy()]

    @property
    def planes(self) -> Arrays:
        """What the warps made of the newest frames: road, then wide, each uint8 (1, 6, H/2, W/2)."""
        return [stack.numpy()[:, -PLANES:] for stack in self.stacks]
