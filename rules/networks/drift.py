"""How far a head is from what it should be: group by group, each on its own scale, over all frames.

Two measures, since either alone lets something pass. The error is the largest difference, as a share of how
far the group's own numbers reach. The correlation is that of the group's numbers with the expected ones, once
as they are, and once each about its own mean over the frames, which shows whether they follow the input.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rules.networks.groups import Partition

Array = np.ndarray[Any, Any]

# Of a group's largest number. Rounding a result to float16 is off by 2^-11 of the number itself, however
# little a group varies: with a tolerance of 2e-2 this leaves four times as much, 2e-3.
OFFSET = 0.1
# Below this a number says more about cancellation than about precision: float16 has steps of 6e-8 there.
SMALLEST_SCALE = 1e-3
# The spread, as a share of the size, from which a group must correlate. Measured (bench/drift.py), float16
# noise is up to 2e-3 of it.
FOLLOWED = 0.02
# A single number may be small by chance, while its noise is that of the terms it was summed from, which are
# as large as those of its neighbours: it is judged on no smaller scale than the smallest quarter of them.
QUARTER = 0.25


@dataclass(frozen=True)
class Verdict:
    """The worst of one head: an error with its group, and a correlation with its own.

    `error` is None where one side is a number and the other is not, or the shapes differ; `correlation` is
    None where no group varies by more than noise.
    """

    error: float | None
    group: str
    correlation: float | None
    correlated: str

    def as_json(self) -> dict[str, Any]:
        """The verdict as the gate reads it."""
        return {
            "error": self.error,
            "group": self.group,
            "correlation": self.correlation,
            "correlated": self.correlated,
        }


class Drift:
    """One head, frame by frame; holds sums for each number of it, and no frame."""

    def __init__(self, partitions: Sequence[Partition], size: int) -> None:
        self.partitions = partitions
        self.comparable = True
        self.frames = 0
        self.worst = np.zeros(size)
        self.low, self.high = np.full(size, np.inf), np.full(size, -np.inf)
        self.sums = np.zeros((5, size))  # of expected, found, their squares, and their product

    def take(self, found: Array, expected: Array) -> None:
        """Take in one frame of the head. What is no number on both sides alike counts as zero."""
        found, expected = np.asarray(found), np.asarray(expected)
        self.comparable = self.comparable and _comparable(found, expected)
        if not self.comparable:
            return
        finite = np.isfinite(expected)
        e = np.where(finite, expected, 0).astype(np.float64).ravel()
        f = np.where(finite, found, 0).astype(np.float64).ravel()
        self.frames += 1
        np.maximum(self.worst, np.abs(f - e), out=self.worst)
        np.minimum(self.low, e, out=self.low)
        np.maximum(self.high, e, out=self.high)
        for total, values in zip(self.sums, (e, f, e * e, f * f, e * f), strict=True):
            total += values

    @property
    def verdict(self) -> Verdict:
        """What all frames so far amount to."""
        if not self.comparable or not self.frames:
            return Verdict(None, "", None, "")
        error, group = max(((0.0, ""), *map(self._error, self.partitions)), key=lambda pair: pair[0])
        worst = min(((math.inf, ""), *map(self._correlation, self.partitions)), key=lambda pair: pair[0])
        correlation = None if worst[0] == math.inf else worst[0]
        return Verdict(error, group, correlation, worst[1])

    def _sizes(self, partition: Partition) -> tuple[Array, Array]:
        """Of each group, half of how far apart its expected numbers are, and the largest of them."""
        low, high = self.low[partition.places].min(axis=1), self.high[partition.places].max(axis=1)
        reach, largest = (high - low) / 2, np.maximum(np.abs(low), np.abs(high))
        if partition.is_single:
            reach, largest = (np.maximum(one, _lower_quarter(one)) for one in (reach, largest))
        return reach, np.maximum(largest, SMALLEST_SCALE)

    def _error(self, partition: Partition) -> tuple[float, str]:
        reach, largest = self._sizes(partition)
        scale = np.maximum(np.maximum(reach, OFFSET * largest), SMALLEST_SCALE)
        errors = self.worst[partition.places].max(axis=1) / scale
        at = int(errors.argmax())
        return float(errors[at]), partition.names[at]

    def _correlation(self, partition: Partition) -> tuple[float, str]:
        _, largest = self._sizes(partition)
        least = self.frames * partition.places.shape[1] * (FOLLOWED * largest) ** 2
        about_frames = _moments(self.sums, self.frames)[:, partition.places].sum(axis=2)
        about_group = _moments(
            self.sums[:, partition.places].sum(axis=2), self.frames * partition.places.shape[1]
        )
        found = np.minimum(_correlations(about_frames, least), _correlations(about_group, least))
        at = int(found.argmin())
        return float(found[at]), partition.names[at]


def _comparable(found: Array, expected: Array) -> bool:
    """Whether both have one shape, and are no numbers in the same places and the same way."""
    if found.shape != expected.shape:
        return False
    finite = np.isfinite(expected)
    if finite.all() and np.isfinite(found).all():
        return True
    return np.array_equal(np.isfinite(found), finite) and np.array_equal(
        found[~finite], expected[~finite], equal_nan=True
    )


def _lower_quarter(values: Array) -> Any:
    return np.sort(values)[int(QUARTER * (values.size - 1))]


def _moments(sums: Array, count: int) -> Array:
    """Sums of squares about the mean, of expected and of found, and of their product: (3, …)."""
    e, f, ee, ff, ef = sums
    return np.stack([ee - e * e / count, ff - f * f / count, ef - e * f / count])


def _correlations(moments: Array, least: Array) -> Array:
    """Of each group; infinite where the expected numbers vary by less than `least`, a sum of squares."""
    expected, found, both = moments
    norm = np.sqrt(np.maximum(expected, 0) * np.maximum(found, 0))
    correlation = np.divide(both, norm, out=np.zeros_like(both), where=norm > 0)
    return np.where(expected >= np.maximum(least, np.finfo(np.float64).tiny), correlation, np.inf)
