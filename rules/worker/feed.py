"""Made-up inputs for an artifact, fed as a runtime feeds them, and digests of what comes out.

The same seed gives the same inputs on every machine: numpy's legacy generator is frozen.
"""

import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tinygrad import Tensor

Arrays = list["np.ndarray[Any, Any]"]

FRAMES = 32  # that differ; a replay takes fewer
SHIFT = 4099  # bytes from one frame to the next in their pool: a prime, so that rows do not line up


@dataclass(frozen=True)
class Exchange:
    """What one network was given in a step, in its ONNX file's order, and what it gave."""

    inputs: Arrays
    outputs: Arrays


@dataclass(frozen=True)
class Step:
    """What one step of a replay left behind: the outputs, the queues they were made with, and what passed
    through each network, by role."""

    label: str
    outputs: Arrays
    state: Arrays
    networks: Mapping[str, Exchange]


@dataclass(frozen=True)
class Scene:
    """What a runtime is fed from outside in one step: camera frames, warp matrices by the names of the warp's
    arguments, and the networks' other inputs by name."""

    label: str
    frames: tuple[Any, ...]
    matrices: Mapping[str, Any]
    values: Mapping[str, Any]


class Noise:
    """Camera frames of noise, each another: uint8 (size,) by number, cut from one pool, since drawing them
    would take as long as driving them."""

    def __init__(self, random: np.random.RandomState, size: int) -> None:
        self._size = size
        self._pool = random.randint(0, 256, size + FRAMES * SHIFT, dtype=np.uint8)

    def __call__(self, index: int) -> Any:
        """Frame `index`, below 32."""
        start = index * SHIFT
        return self._pool[start : start + self._size]


def matrix(random: np.random.RandomState, source: tuple[int, int], output: tuple[int, int]) -> Any:
    """A plausible warp: output pixels spread over the source, slightly turned; float32 (3, 3)."""
    base = np.array([[source[0] / output[0], 0, 0], [0, source[1] / output[1], 0], [0, 0, 1]])
    bend = random.uniform(-1, 1, (3, 3)) * np.array([[0.05, 0.05, 8], [0.05, 0.05, 8], [1e-5, 1e-5, 0]])
    return (base + bend).astype(np.float32)


def on_host(array: Any) -> Tensor:
    """A tensor that the runtime refills in place from numpy: device NPY."""
    return Tensor(array, device="NPY").realize()


def on_device(array: Any, device: str) -> Tensor:
    """A realized copy of an array on a device; a single number has a buffer, too, which a JIT insists on."""
    flat = Tensor(np.atleast_1d(array), device="NPY").to(device).realize()
    return flat if np.ndim(array) else flat.reshape(())


def digest(arrays: Arrays) -> str:
    """One sha256 over shapes, dtypes and bytes of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def save(arrays: Mapping[str, Any], path: Path) -> str:
    """Write arrays by name as an `.npz` whose bytes depend on nothing else; returns its sha256."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(arrays):
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(arrays[name], order="C"), allow_pickle=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
