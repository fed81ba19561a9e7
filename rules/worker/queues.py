"""The histories a driving model looks back on: how deep they are, and how a step moves them on."""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from tinygrad import Tensor

Queue = TypeVar("Queue", Tensor, "np.ndarray[Any, Any]")  # on a device, or a runtime's own

FRAMES_PER_IMAGE = 2
DESIRES = 8
FEATURES = 512


@dataclass(frozen=True)
class History:
    """How many entries each queue of one model keeps; see FACTS §2 of the project's design notes.

    `frame_skip` is model rate over context rate (20 Hz / 5 Hz = 4, or 1 for models fed at full rate).
    """

    frame_skip: int
    feature_steps: int
    desire_steps: int
    feeds_back: bool  # a supercombo sees only features of earlier frames, so its queue is one skip deeper

    @property
    def image_depth(self) -> int:
        """Entries of an image queue: the newest frame and the one `frame_skip` before it."""
        return self.frame_skip * (FRAMES_PER_IMAGE - 1) + 1

    @property
    def feature_depth(self) -> int:
        """Entries of the feature queue."""
        if self.feeds_back:
            return self.frame_skip * self.feature_steps
        return self.frame_skip * (self.feature_steps - 1) + 1

    @property
    def desire_depth(self) -> int:
        """Entries of the desire queue."""
        return self.frame_skip * self.desire_steps


def push(queue: Tensor, entry: Tensor) -> Tensor:
    """Drop the oldest entry of `queue` (N, …), append `entry` (1, …), in place; returns the queue."""
    return queue.assign(queue[1:].cat(entry.cast(queue.dtype)).contiguous())


def image_stack(queue: Tensor, frame_skip: int) -> Tensor:
    """The network's image input from (depth, 6, h, w): every `frame_skip`-th frame, as (1, 12, h, w)."""
    return queue[::frame_skip].reshape(1, -1, *queue.shape[2:])


def features(queue: Queue, frame_skip: int) -> Queue:
    """The features buffer (1, N, 512) from the queue (depth, 1, 512), oldest first."""
    return queue[::frame_skip].reshape(1, -1, queue.shape[-1])


def desires(queue: Queue, frame_skip: int) -> Queue:
    """The desire input (1, N, 8) from (frame_skip*N, 1, 8): a pulse within a group is never lost."""
    grouped: Queue = queue.reshape(1, -1, frame_skip, queue.shape[-1]).max(axis=2)
    return grouped
