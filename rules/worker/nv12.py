"""Where the planes of a camera's NV12 frame lie in memory (Qualcomm Venus layout)."""

from dataclasses import dataclass


def align(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Nv12:
    """One frame of `width` x `height` pixels; all offsets and sizes in bytes.

    Luma rows come first, `stride` bytes apart; interleaved U,V rows of half height start at `uv_offset`.
    """

    width: int
    height: int
    stride: int
    uv_offset: int
    size: int

    @classmethod
    def of(cls, width: int, height: int) -> "Nv12":
        """The layout that the Venus encoder gives a camera of this size."""
        stride = align(width, 128)
        y_height = align(height, 32)
        uv_height = align(height // 2, 16)
        planes = stride * y_height + stride * uv_height
        extra = max(16384, 8 * stride)
        size = align(planes + 4096 + extra, 4096)
        size = align(size + align(width, 512) * 512, 4096)
        return cls(width, height, stride, stride * y_height, size)
