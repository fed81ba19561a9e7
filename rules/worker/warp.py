"""From a camera's NV12 frame to what a network sees: a perspective warp, nearest neighbour."""

from dataclasses import dataclass

from tinygrad import Tensor, dtypes
from tinygrad.helpers import Context

from .nv12 import Nv12


def source_pixels(matrix: Tensor, width: int, height: int, scale: int) -> tuple[Tensor, Tensor]:
    """Where each of `width` x `height` output pixels comes from: (x, y), each float32 (height*width,).

    `matrix` (3, 3) float32 maps homogeneous output pixels to source pixels; the division is the perspective.
    Both planes may be subsampled by `scale`: that is the warp S⁻¹·M·S with S = diag(scale, scale, 1).
    """
    x = (Tensor.arange(width) * scale).cast(dtypes.float32).reshape(1, width)
    y = (Tensor.arange(height) * scale).cast(dtypes.float32).reshape(height, 1)
    x, y = x.expand(height, width).flatten(), y.expand(height, width).flatten()
    row = [matrix[i, 0] * x + matrix[i, 1] * y + matrix[i, 2] for i in range(3)]
    return row[0] / row[2] / scale, row[1] / row[2] / scale


@dataclass(frozen=True)
class Plane:
    """An 8-bit plane in a flat buffer: pixel (x, y) lies at `y*stride + x*step`, in bytes."""

    width: int
    height: int
    stride: int
    step: int = 1


def sample(
    pixels: Tensor,
    plane: Plane,
    matrix: Tensor,
    output: tuple[int, int],
    *,
    scale: int = 1,
    outside: int | None = None,
) -> Tensor:
    """Warp one plane: uint8 (height*width,) of `output` = (width, height).

    Pixels that come from outside the plane repeat its border, or hold `outside` when that is given.
    """
    x, y = (coordinate.round() for coordinate in source_pixels(matrix, *output, scale))
    column = x.clip(0, plane.width - 1).cast(dtypes.int32)
    line = y.clip(0, plane.height - 1).cast(dtypes.int32)
    found = pixels[line * plane.stride + column * plane.step]
    if outside is None:
        return found
    inside = (x >= 0) & (x <= plane.width - 1) & (y >= 0) & (y <= plane.height - 1)
    return inside.where(found, outside).cast(dtypes.uint8)


def driving_planes(frame: Tensor, matrix: Tensor, layout: Nv12, model_size: tuple[int, int]) -> Tensor:
    """The six half-size planes of one warped frame, realized: uint8 (1, 6, H/2, W/2), `model_size` = (W, H).

    Planes: luma at (even, even), (odd, even), (even, odd), (odd, odd) rows and columns, then U, then V.
    """
    width, height = model_size
    half = (width // 2, height // 2)
    luma = sample(frame, Plane(layout.width, layout.height, layout.stride), matrix, model_size)
    luma = luma.reshape(height, width)
    quarters = [luma[row::2, column::2] for column in (0, 1) for row in (0, 1)]
    colour = Plane(layout.width // 2, layout.height // 2, layout.stride, step=2)
    u, v = (sample(frame[layout.uv_offset + first :], colour, matrix, half, scale=2) for first in (0, 1))
    shape = (1, half[1], half[0])
    return _realized(Tensor.cat(*(plane.reshape(shape) for plane in (*quarters, u, v))).unsqueeze(0))


def monitoring_luma(frame: Tensor, matrix: Tensor, layout: Nv12, size: tuple[int, int]) -> Tensor:
    """The driver camera's luma, warped and realized: uint8 (1, height*width) of `size` = (W, H).

    Pixels from outside the frame hold 16.
    """
    plane = Plane(layout.width, layout.height, layout.stride)
    return _realized(sample(frame, plane, matrix, size, outside=16).reshape(1, -1))


def _realized(pixels: Tensor) -> Tensor:
    """Made here and now. Fused with queues, pixels would be warped for every plane that these hold.

    tinygrad writes "the pixel at" as a sum over the frame, which becomes a single load unless it is split
    first: then it stays a sum, and a warp takes ten times as long.
    """
    with Context(SPLIT_REDUCEOP=0):
        return pixels.contiguous().realize()
