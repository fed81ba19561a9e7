"""Which numbers of a head are read together: each group is judged on its own scale.

Metres and radians lie side by side in one head, and so do means and log-stds. A head's groups follow from its
name and its width, as a driving model's parser reads it. Of any other head each column is a group, and of an
output that is not cut into heads each slab of each axis.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

POINTS = 33
PLAN = tuple(
    f"{name}.{axis}"
    for name in ("position", "velocity", "acceleration", "euler", "rate")
    for axis in ("x", "y", "z")
)
LINE = ("y", "z")
LEADS, LEAD_TIMES = 3, 6
LEAD = ("x", "y", "v", "a")
AXES = 3
DESIRES = 8
CHANNELS = 16
SEATS = ("_lhd", "_rhd")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Partition:
    """Groups of equal size: a name for each, and its numbers' places in the flat head, (groups, numbers)."""

    names: tuple[str, ...]
    places: Array

    @property
    def is_single(self) -> bool:
        """Whether each group is one number, whose own size may be small by chance."""
        return int(self.places.shape[1]) == 1


Reader = Callable[[Array], Iterator[Partition] | None]


def of_head(name: str, width: int) -> list[Partition]:
    """The groups of a head that was cut from a flat output; every place of it is in exactly one of them."""
    for seat in SEATS:
        name = name.removesuffix(seat)
    places = np.arange(width)
    read = READERS[name](places) if width and name in READERS else None
    return list(_columns(places) if read is None else read)


def of_output(shape: Sequence[int]) -> list[Partition]:
    """The groups of an output that no slice cuts: along each axis longer than 1, all that has the same index.

    Which axis holds the channels is not said anywhere (NCHW, NHWC, tokens first or last), so that each is
    taken for it. Of a vector that leaves each number by itself.
    """
    places = np.arange(math.prod(shape)).reshape(shape)
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    if not axes:
        return [Partition(("all",), places.reshape(1, -1))] if places.size else []
    return [
        Partition(
            tuple(f"index {number} of axis {axis}" for number in range(shape[axis])),
            np.moveaxis(places, axis, 0).reshape(shape[axis], -1),
        )
        for axis in axes
    ]


def _columns(places: Array) -> Iterator[Partition]:
    if places.size:
        yield Partition(tuple(f"column {place}" for place in places.tolist()), places.reshape(-1, 1))


def _cells(places: Array, labels: Sequence[Sequence[str]], prefix: str = "") -> Partition:
    """A group for each choice of labels; `places` has an axis for each sequence of them, and one more."""
    names = tuple(prefix + ".".join(chosen) for chosen in itertools.product(*labels))
    return Partition(names, places.reshape(len(names), -1))


def _mixture(places: Array, labels: Sequence[Sequence[str]], prefix: str = "") -> Iterator[Partition]:
    """Means, then log-stds, of one shape."""
    for half, kind in zip(places, ("", "std "), strict=True):
        yield _cells(half, labels, prefix + kind)


def _plan(places: Array) -> Iterator[Partition] | None:
    """Each column over the 33 points, of one plan or of each hypothesis; a weight closes each hypothesis."""
    size = POINTS * len(PLAN)
    if places.size == 2 * size:
        return _mixture(_by_column(places, 2), [PLAN])
    if places.size == size:
        return iter([_cells(_by_column(places, 1)[0], [PLAN])])
    if places.size % (2 * size + 1) == 0:
        return _hypotheses(places.reshape(-1, 2 * size + 1), 2 * size, lambda row: _by_column(row, 2), PLAN)
    return None


def _by_column(places: Array, parts: int) -> Array:
    """(parts, columns, points) of a plan."""
    return places.reshape(parts, POINTS, len(PLAN)).swapaxes(1, 2)


def _lead(places: Array) -> Iterator[Partition] | None:
    """Each value over its six times, of three leads, or of each hypothesis and then its three weights."""
    size = LEAD_TIMES * len(LEAD)
    if places.size == 2 * LEADS * size:
        cells = places.reshape(2, LEADS, LEAD_TIMES, len(LEAD)).swapaxes(2, 3)
        return _mixture(cells, [[str(lead) for lead in range(LEADS)], LEAD])
    if places.size % (2 * size + LEADS) == 0:
        rows = places.reshape(-1, 2 * size + LEADS)
        return _hypotheses(
            rows, 2 * size, lambda row: row.reshape(2, LEAD_TIMES, len(LEAD)).swapaxes(1, 2), LEAD
        )
    return None


def _hypotheses(
    rows: Array, size: int, cells: Callable[[Array], Array], labels: Sequence[str]
) -> Iterator[Partition]:
    for number, row in enumerate(rows):
        yield from _mixture(cells(row[:size]), [labels], f"hypothesis {number} ")
    yield Partition(("weights",), rows[:, size:].reshape(1, -1))


def _lines(places: Array) -> Iterator[Partition] | None:
    """Each line's y and z over its 33 points."""
    if places.size % (2 * POINTS * len(LINE)):
        return None
    cells = places.reshape(2, -1, POINTS, len(LINE)).swapaxes(2, 3)
    return _mixture(cells, [[str(line) for line in range(cells.shape[1])], LINE])


def _triples(*names: str) -> Reader:
    def read(places: Array) -> Iterator[Partition] | None:
        if places.size != 2 * len(names) * AXES:
            return None
        return _mixture(places.reshape(2, len(names), AXES), [names])

    return read


def _desires(places: Array) -> Iterator[Partition] | None:
    """The eight desires of each time."""
    if places.size % DESIRES:
        return None
    rows = places.reshape(-1, DESIRES)
    return iter([_cells(rows, [[f"time {number}" for number in range(len(rows))]])])


def _channels(places: Array) -> Iterator[Partition]:
    """Sixteen at a time of what no parser tells apart; the few that are over go with the last."""
    ends = range(CHANNELS, max(places.size - CHANNELS, 0) + 1, CHANNELS)
    for part in np.split(places, ends):
        yield Partition((f"channels {part[0]} to {part[-1]}",), part.reshape(1, -1))


READERS: dict[str, Reader] = {
    "hidden_state": _channels,
    "features": _channels,
    "pad": _channels,
    "plan": _plan,
    "planplus": _plan,
    "lane_lines": _lines,
    "road_edges": _lines,
    "lead": _lead,
    "pose": _triples("trans", "rot"),
    "sim_pose": _triples("trans", "rot"),
    "road_transform": _triples("trans", "rot"),
    "wide_from_device_euler": _triples("rot"),
    "face_descs": _triples("orientation", "position"),
    "desire_pred": _desires,
    "desire_state": _desires,
}
