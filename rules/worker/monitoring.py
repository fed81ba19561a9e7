"""Driver monitoring: one unit of four files that only make sense together."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from tinygrad import Tensor

from . import warp
from .capture import jit
from .driving import Places
from .feed import Exchange, Noise, Step, matrix, on_device, on_host
from .network import load, networks_of
from .nv12 import Nv12

INPUT_SIZE = (1440, 960)
MODEL_FILE = "dmonitoring_model_tinygrad.pkl"
METADATA_FILE = "dmonitoring_model_metadata.pkl"


def warp_file(camera: tuple[int, int]) -> str:
    """The file name of one camera's warp."""
    return "dm_warp_{}x{}_tinygrad.pkl".format(*camera)


class Monitoring:
    """The driver-monitoring network and its warps: `warp(frame, transform)`, `model(input_img=, calib=)`."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.cameras = [tuple(camera) for camera in request["cameras"]]
        self.networks = networks_of(request)
        self.model = self.networks["dmonitoring_model"]
        self.places = Places.from_flags()

    def _warp_function(self, camera: Any) -> Any:
        layout = Nv12.of(*camera)

        def driver_warp(driver_frame: Tensor, transform: Tensor) -> Tensor:
            place = self.places.warp
            return warp.monitoring_luma(driver_frame.to(place), transform.to(place), layout, INPUT_SIZE)

        return driver_warp

    def _model_function(self) -> Any:
        def driver_model(input_img: Tensor, calib: Tensor) -> Tensor:
            place = self.places.model
            return self.model({"input_img": input_img.to(place), "calib": calib.to(place)}).contiguous()

        return driver_model

    def build(self) -> dict[str, Any]:
        """The four files by name, their JITs not yet captured."""
        load(self.networks)
        warps = {warp_file(camera): jit(self._warp_function(camera)) for camera in self.cameras}
        return {MODEL_FILE: jit(self._model_function()), METADATA_FILE: self.model.metadata, **warps}

    def captures(self, files: dict[str, Any]) -> dict[str, Any]:
        """The JITs by label."""
        warps = {"{}x{}".format(*camera): files[warp_file(camera)] for camera in self.cameras}
        return {"dmonitoring_model": files[MODEL_FILE], **warps}

    def drives(self, files: dict[str, Any], *, seed: int, steps: int) -> list[Iterator[Step]]:
        """Of each camera, `steps` frames watched."""
        return [self._watch(files, camera, np.random.RandomState(seed), steps) for camera in self.cameras]

    def _watch(
        self, files: dict[str, Any], camera: Any, random: np.random.RandomState, steps: int
    ) -> Iterator[Step]:
        noise = Noise(random, Nv12.of(*camera).size)
        for step in range(steps):
            shot = on_device(noise(step), self.places.frame)
            transform = on_host(matrix(random, camera, INPUT_SIZE))
            warped = files[warp_file(camera)](shot, transform)
            calib = random.uniform(-0.1, 0.1, (1, 3)).astype(np.float32)
            output = files[MODEL_FILE](input_img=warped, calib=on_host(calib)).numpy()
            passed = {"dmonitoring_model": Exchange([warped.numpy(), calib], [output])}
            yield Step("{}x{}".format(*camera), [output], [warped.numpy()], passed)
