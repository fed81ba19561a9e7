"""Made-up inputs for an artifact, fed as a runtime feeds them, and digests of what comes out.

The same seed gives the same inputs on every machine: numpy's legacy generator is frozen.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinygrad import Tensor

Arrays = list["np.ndarray[Any, Any]"]


@dataclass(frozen=True)
class Step:
    """What one step of a replay left behind: the outputs, and the queues they were made with."""

    label: str
    outputs: Arrays
    state: Arrays


def matrix(random: np.random.RandomState, source: tuple[int, int], output: tuple[int, int]) -> Any:
    """A plausible warp: output pixels spread over the source, slightly turned; float32 (3, 3)."""
    base = np.array([[source[0] / output[0], 0, 0], [0, source[1] / output[1], 0], [0, 0, 1]])
    bend = random.uniform(-1, 1, (3, 3)) * np.array([[0.05, 0.05, 8], [0.05, 0.05, 8], [1e-5, 1e-5, 0]])
    return (base + bend).astype(np.float32)


def frame(random: np.random.RandomState, size: int) -> Any:
    """One camera frame's bytes, uint8 (size,)."""
    return random.randint(0, 256, size, dtype=np.uint8)


def on_host(array: Any) -> Tensor:
    """A tensor that the runtime refills in place from numpy: device NPY."""
    return Tensor(array, device="NPY").realize()


def on_device(array: Any, device: str) -> Tensor:
    """A realized copy of an array on a device."""
    return Tensor(array, device="NPY").to(device).realize()


def digest(arrays: Arrays) -> str:
    """One sha256 over shapes, dtypes and bytes of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()
