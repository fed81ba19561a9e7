"""Which camera a warp was made for, by the bytes of the frames that it takes."""

from collections.abc import Iterable

from rules.inspection.graph import Jit

Camera = tuple[int, int]

FIELD: tuple[Camera, ...] = ((1928, 1208), (1344, 760))  # those of the devices


def spelled(camera: Camera) -> str:
    """A camera as names have it."""
    return f"{camera[0]}x{camera[1]}"


def frames(jit: Jit) -> set[int]:
    """The sizes in bytes of the frames that `jit` takes; empty where it does not say."""
    shapes = (one.shape for one in jit.inputs if one.dtype == "uint8" and one.shape is not None)
    return {shape[0] for shape in shapes if len(shape) == 1}


def of(sizes: set[int], named: Iterable[Camera]) -> Camera | None:
    """The camera whose frames have all of `sizes`, of those named and the field's; None if there is none."""
    return next((one for one in (*named, *FIELD) if sizes <= _frame_sizes(*one)), None)


def _frame_sizes(width: int, height: int) -> set[int]:
    """Bytes of an NV12 frame as Venus lays it out: its planes alone, and its whole buffer."""
    stride = _up(width, 128)
    planes = stride * (_up(height, 32) + _up(height // 2, 16))
    padded = _up(planes + 4096 + max(16384, 8 * stride), 4096)
    return {planes, _up(padded + 512 * _up(width, 512), 4096)}


def _up(value: int, multiple: int) -> int:
    return (value + multiple - 1) // multiple * multiple


def contradiction(where: str, sizes: set[int], own: Camera | None) -> str:
    """What is wrong where a name or a key and the frames do not agree."""
    took = f"those of {spelled(own)}" if own else "of no camera known here"
    counts = ", ".join(f"{size:,}" for size in sorted(sizes)[:4])
    return f"inconsistent camera: {where}, its frames of {counts} bytes are {took}"
