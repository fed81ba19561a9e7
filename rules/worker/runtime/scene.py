"""What a replay is fed, and when: a road or a driver that moves, or NV12 frames from files; desires.

Cameras are those of openpilot (common/transformations/camera.py and model.py), mounted without any turn.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..nv12 import Nv12

Frame = np.ndarray[Any, Any]
Pixels = np.ndarray[Any, Any]
Camera = tuple[int, int]

RATE = 20  # frames a second
RING = 20  # a made scene repeats after a second

NARROW, WIDE, DRIVER = "narrow", "wide", "driver"
REFERENCE_WIDTH = 1928
FOCAL = {NARROW: 2648.0, WIDE: 567.0, DRIVER: 567.0}  # pixels, at the reference width
SMALLER_SENSOR = {(1344, 760): {NARROW: 1141.5, WIDE: 425.25, DRIVER: 425.25}}
MODEL_SIZE = (512, 256)
MODEL_VIEWS = {  # focal length and horizon: a larger input sees more of the road, not the same road larger
    MODEL_SIZE: {NARROW: (910.0, 47.6), WIDE: (455.0, 151.8)},
    (1024, 512): {NARROW: (910.0, 303.6), WIDE: (910.0, 303.6)},
}
DRIVER_CENTRE = (720.0, 356.0)  # of the input: the sensor's rows that it leaves out are all above

CAMERA_HEIGHT = 1.22  # metres above the road
LANE, MARKING, ROAD = 1.85, 0.12, 5.5  # metres from the middle: lane line, half its width, the road's edge
PERIOD, DASH = 12.0, 4.0  # metres between dashed markings, and of one
LEAD_DISTANCE, LEAD_WIDTH, LEAD_SWAY = 30.0, 1.8, 0.5
SKY, GRASS, ASPHALT, PAINT, CAR = 190, 110, 80, 230, 30
SKIN, CABIN = 170, 40
DESIRES, LEFT, RIGHT = 8, 3, 4  # a lane change to the left, to the right
FIRST_CHANGE, CHANGE_LASTS, CHANGE_EVERY = 10, 30, 100  # in frames
GREY = 128


def intrinsics(camera: Camera, lens: str) -> Any:
    """The pinhole matrix (3, 3) of a camera of `camera` = (width, height) pixels."""
    width, height = camera
    known = SMALLER_SENSOR.get(camera)
    focal = known[lens] if known else FOCAL[lens] * width / REFERENCE_WIDTH
    return np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])


def road_matrix(camera: Camera, lens: str, model_size: tuple[int, int]) -> Any:
    """The warp (3, 3) float32 from a driving model's input pixels to the camera's."""
    scale = 1.0 if model_size in MODEL_VIEWS else model_size[0] / MODEL_SIZE[0]
    focal, horizon = (scale * value for value in MODEL_VIEWS.get(model_size, MODEL_VIEWS[MODEL_SIZE])[lens])
    model = np.array([[focal, 0, model_size[0] / 2], [0, focal, horizon], [0, 0, 1.0]])
    return (intrinsics(camera, lens) @ np.linalg.inv(model)).astype(np.float32)


def driver_matrix(camera: Camera) -> Any:
    """The warp (3, 3) float32 from driver monitoring's input pixels, 1440x960, to the camera's."""
    focal, (x, y) = FOCAL[DRIVER], DRIVER_CENTRE
    model = np.array([[focal, 0, x], [0, focal, y], [0, 0, 1.0]])
    return (intrinsics(camera, DRIVER) @ np.linalg.inv(model)).astype(np.float32)


def packed(luma: Pixels, layout: Nv12) -> Frame:
    """A grey picture (height/2, width/2), each pixel doubled, as a frame's bytes: uint8 (size,)."""
    frame = np.zeros(layout.size, np.uint8)
    rows = frame[: layout.uv_offset].reshape(-1, layout.stride)
    rows[: layout.height, : layout.width] = luma.repeat(2, 0).repeat(2, 1)
    colour = frame[layout.uv_offset :][: layout.stride * (layout.height // 2)].reshape(-1, layout.stride)
    colour[:, : layout.width] = GREY
    return frame


@dataclass(frozen=True)
class Road:
    """The road ahead through one lens, in pixels of half the camera's resolution."""

    camera: Camera
    lens: str
    speed: float  # m/s

    def frames(self) -> list[Frame]:
        """One second of frames, each of a layout's size."""
        across, along, ground = self._ground()
        layout = Nv12.of(*self.camera)
        return [packed(self._picture(across, along, ground, index), layout) for index in range(RING)]

    def _ground(self) -> tuple[Pixels, Pixels, Pixels]:
        """Metres across (h, w) and along (h, 1) for each pixel, and which rows show ground (h, 1)."""
        focal, middle = intrinsics(self.camera, self.lens)[0, 0], self.camera[0] / 2
        rows = np.arange(1, self.camera[1], 2)[:, None] - self.camera[1] / 2
        columns = np.arange(1, self.camera[0], 2)[None, :] - middle
        along = CAMERA_HEIGHT * focal / np.maximum(rows, 1)
        return (columns * along / focal).astype(np.float32), along, rows > 0

    @property
    def cycles(self) -> int:
        """How many markings pass in the second after which the scene repeats."""
        return max(1, round(self.speed / PERIOD)) if self.speed else 0

    def _picture(self, across: Pixels, along: Pixels, ground: Pixels, index: int) -> Pixels:
        travelled = PERIOD * self.cycles * index / RING
        painted = (along + travelled) % PERIOD < DASH
        verge = GRASS + 20 * ((along + travelled) % PERIOD < PERIOD / 2)
        distance = np.abs(across)
        surface = np.where(distance < ROAD, ASPHALT, verge)
        surface = np.where((np.abs(distance - LANE) < MARKING) & painted, PAINT, surface)
        surface = np.where(np.abs(distance - ROAD) < MARKING, PAINT, surface)
        picture: Pixels = np.where(ground, surface, SKY).astype(np.uint8)
        self._draw_lead(picture, index)
        return picture

    def _draw_lead(self, picture: Pixels, index: int) -> None:
        scale = intrinsics(self.camera, self.lens)[0, 0] / LEAD_DISTANCE / 2  # pixels of `picture` a metre
        sway = LEAD_SWAY * math.sin(2 * math.pi * index / RING)
        middle, floor = self.camera[0] / 4 + sway * scale, self.camera[1] / 4 + CAMERA_HEIGHT * scale
        half = LEAD_WIDTH / 2 * scale
        columns = slice(max(0, int(middle - half)), max(0, int(middle + half) + 1))
        picture[max(0, int(floor - 2 * half)) : int(floor), columns] = CAR


@dataclass(frozen=True)
class Driver:
    """Somebody in a seat whose head sways."""

    camera: Camera

    def frames(self) -> list[Frame]:
        """One second of frames, each of a layout's size."""
        layout = Nv12.of(*self.camera)
        return [packed(self._picture(index), layout) for index in range(RING)]

    def _picture(self, index: int) -> Pixels:
        width, height = self.camera[0] // 2, self.camera[1] // 2
        sway = 0.05 * width * math.sin(2 * math.pi * index / RING)
        rows, columns = np.ogrid[:height, :width]
        face = ((columns - width * 0.4 - sway) / (width * 0.1)) ** 2
        face = face + ((rows - height * 0.45) / (height * 0.25)) ** 2
        shade: Pixels = np.where(face < 1, SKIN, CABIN + 20 * ((rows // 16 + columns // 16) % 2))
        return shade.astype(np.uint8)


def unpacked(tight: Frame, layout: Nv12) -> Frame:
    """A frame without padding (width*height*3/2 bytes) in the camera's own layout: uint8 (size,)."""
    frame = np.zeros(layout.size, np.uint8)
    rows = frame[: layout.uv_offset].reshape(-1, layout.stride)
    rows[: layout.height, : layout.width] = tight[: layout.width * layout.height].reshape(layout.height, -1)
    colour = frame[layout.uv_offset :][: layout.stride * (layout.height // 2)].reshape(-1, layout.stride)
    colour[:, : layout.width] = tight[layout.width * layout.height :].reshape(layout.height // 2, -1)
    return frame


class Footage:
    """NV12 frames in files, one or many in each, from the first again after the last."""

    def __init__(self, paths: list[str], camera: Camera, *, tight: bool) -> None:
        self.layout = Nv12.of(*camera)
        self.tight = tight
        self.size = camera[0] * camera[1] * 3 // 2 if tight else self.layout.size
        self.places = [
            (path, number * self.size)
            for path in paths
            for number in range(Path(path).stat().st_size // self.size)
        ]

    def __call__(self, index: int) -> Frame:
        """Frame `index`, in the camera's layout."""
        path, offset = self.places[index % len(self.places)]
        frame = np.fromfile(path, np.uint8, self.size, offset=offset)
        return unpacked(frame, self.layout) if self.tight else frame


def ring(frames: list[Any]) -> Callable[[int], Any]:
    """Frames by index, from the first again after the last."""
    return lambda index: frames[index % len(frames)]


def next_frame(last: int, elapsed: float) -> int:
    """The frame to take after `last`: the one that follows, or the newest there is when that is too old.

    Frame n comes n/20 s after the start; `elapsed` is the time since then.
    """
    return max(last + 1, int(elapsed * RATE))


def desire(index: int) -> Any:
    """What the driver wants at one frame, float32 (8,): lane changes, to the left and right in turn."""
    flags = np.zeros(DESIRES, np.float32)
    number, since = divmod(index - FIRST_CHANGE, CHANGE_EVERY)
    if index >= FIRST_CHANGE and since < CHANGE_LASTS:
        flags[RIGHT if number % 2 else LEFT] = 1
    return flags
