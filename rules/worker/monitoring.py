"""Driver monitoring: one unit of four files that only make sense together."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from tinygrad import Tensor

from . import warp
from .capture import jit
from .driving import Places
from .feed import Exchange, Noise, Scene, Step, matrix, on_device, on_host
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

    def scenes(self, *, seed: int, steps: int) -> list[Iterator[Scene]]:
        """Of each camera, what a runtime is fed in `steps` frames."""
        return [self._scenes(camera, np.random.RandomState(seed), steps) for camera in self.cameras]

    def _scenes(self, camera: Any, random: np.random.RandomState, steps: int) -> Iterator[Scene]:
        noise = Noise(random, Nv12.of(*camera).size)
        for step in range(steps):
            transform = {"transform": matrix(random, camera, INPUT_SIZE)}
            calib = random.uniform(-0.1, 0.1, (1, 3)).astype(np.float32)
            yield Scene("{}x{}".format(*camera), (noise(step),), transform, {"calib": calib})

    def drives(self, files: dict[str, Any], *, seed: int, steps: int) -> list[Iterator[Step]]:
        """Of each camera, `steps` frames watched."""
        scenes = zip(self.cameras, self.scenes(seed=seed, steps=steps), strict=True)
        return [self._watch(files, camera, scene) for camera, scene in scenes]

    def _watch(self, files: dict[str, Any], camera: Any, scenes: Iterator[Scene]) -> Iterator[Step]:
        for scene in scenes:
            shot = on_device(scene.frames[0], self.places.frame)
            warped = files[warp_file(camera)](shot, on_host(scene.matrices["transform"]))
            calib = scene.values["calib"]
            output = files[MODEL_FILE](input_img=warped, calib=on_host(calib)).numpy()
            passed = {"dmonitoring_model": Exchange([warped.numpy(), calib], [output])}
            yield Step(scene.label, [output], [warped.numpy()], passed)
