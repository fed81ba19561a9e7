"""Network outputs as numbers with a meaning: slices cut, mixtures and probabilities resolved.

Slices and widths come from the model's metadata, so a head that a model lacks is absent here too.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Heads = dict[str, Array]

POINTS = 33
PLAN_COLUMNS = 15
LINE_COLUMNS = 2
LEADS = 3
LEAD_TIMES = 6
LEAD_COLUMNS = 4
DESIRES = 8
EXPONENT_LIMIT = 11.0  # e^11 is the last whole exponent that float16 holds

TIMES = 10.0 * (np.arange(POINTS) / (POINTS - 1)) ** 2  # seconds ahead of each point of a plan
DISTANCES = 192.0 * (np.arange(POINTS) / (POINTS - 1)) ** 2  # metres ahead of each point of a line

POSITION, VELOCITY, ACCELERATION, EULER, RATE = (slice(first, first + 3) for first in range(0, 15, 3))

MIXTURES = {
    "lane_lines": (POINTS, LINE_COLUMNS),
    "road_edges": (POINTS, LINE_COLUMNS),
    "pose": (),
    "wide_from_device_euler": (),
    "road_transform": (),
    "sim_pose": (),
    "desired_curvature": (),
    "action": (),
    "face_descs": (),
}
RAW_WIDTHS = {"action": 2, "desired_curvature": 1}  # of models that say no deviation
HYPOTHESES = {
    "plan": ((POINTS, PLAN_COLUMNS), 1),
    "planplus": ((POINTS, PLAN_COLUMNS), 1),
    "lead": ((LEADS, LEAD_TIMES, LEAD_COLUMNS), LEADS),
}
PROBABILITIES = ("meta", "wheel_on_right")
CATEGORIES = ("desire_pred", "desire_state")
SEATS = ("_lhd", "_rhd")
UNREAD = "pad"


def exponential(values: Array) -> Array:
    """e^x, with the exponent clipped at 11; not a number stays not a number."""
    clipped: Array = np.exp(np.minimum(values, EXPONENT_LIMIT))
    return clipped


def sigmoid(values: Array) -> Array:
    """1 / (1 + e^-x), by the clipped exponential."""
    probabilities: Array = 1.0 / (1.0 + exponential(-values))
    return probabilities


def softmax(values: Array, axis: int = -1) -> Array:
    """e^x over its own sum along `axis`."""
    raised = np.exp(values - values.max(axis=axis, keepdims=True))
    shares: Array = raised / raised.sum(axis=axis, keepdims=True)
    return shares


def cut(output: Array, slices: Mapping[str, slice]) -> Heads:
    """The parts of one output vector (N,) by name; slices may be open, negative or overlapping.

    Raises ValueError for a slice that is empty or leaves the vector, which numpy would shorten silently.
    """
    parts = {}
    for name, span in slices.items():
        bounds = [end for end in (span.start, span.stop) if end is not None]
        part = output[span]
        if not part.size or any(not -output.size <= end <= output.size for end in bounds):
            raise ValueError(
                f"{name}: slice [{span.start}:{span.stop}], expected columns of the {output.size} there are"
            )
        parts[name] = part
    return parts


def decode(output: Array, slices: Mapping[str, slice]) -> Heads:
    """All heads of one output vector (N,), float32, by their names in the metadata.

    A mixture `x` gives `x` and `x_stds` of one shape: plan and planplus (33, 15), lane_lines and road_edges
    (n, 33, 2), lead (3, 6, 4), others (n,); an action or curvature without deviations is as it is. Of several
    hypotheses these are the likeliest, and `x_weights`, `x_hypotheses`, `x_stds_hypotheses` hold all: the
    heaviest first where one is chosen, in the model's order where each choice has weights. Probabilities are
    sigmoids (n,); desire_state is a softmax (8,), desire_pred (n, 8). What is not known stays as it is. Units
    are metres, seconds and radians.
    Raises ValueError for a head of a width that its shape cannot have.
    """
    heads: Heads = {}
    for name, values in cut(output, slices).items():
        if name != UNREAD:
            heads |= _head(name, values)
    return heads


def kind_of(name: str) -> str:
    """The name without the seat of a driver-monitoring head."""
    for seat in SEATS:
        name = name.removesuffix(seat)
    return name


def _head(name: str, values: Array) -> Heads:
    kind = kind_of(name)
    if kind in HYPOTHESES:
        return _hypotheses(name, values, *HYPOTHESES[kind])
    if kind in MIXTURES and values.size != RAW_WIDTHS.get(kind):
        return _mixture(name, values, MIXTURES[kind])
    if kind in CATEGORIES:
        _check(name, values, values.size % DESIRES == 0, f"a multiple of {DESIRES}")
        shares = softmax(values.reshape(-1, DESIRES))
        return {name: shares[0] if kind == "desire_state" else shares}
    if kind in PROBABILITIES or kind.endswith("_prob"):
        return {name: sigmoid(values)}
    return {name: values}


def _check(name: str, values: Array, fits: bool, expected: str) -> None:
    if not fits:
        raise ValueError(f"{name}: {values.size} columns, expected {expected}")


def _mixture(name: str, values: Array, cell: tuple[int, ...]) -> Heads:
    """Mu, then log-std, each as many cells as there is room for."""
    columns = 2 * math.prod(cell)
    _check(name, values, values.size % columns == 0, f"a multiple of {columns}")
    mu, log_std = values.reshape(2, -1, *cell)
    return {name: mu, f"{name}_stds": exponential(log_std)}


def _hypotheses(name: str, values: Array, shape: tuple[int, ...], selections: int) -> Heads:
    """One mixture of `shape`, or several hypotheses, each followed by its weight for each selection.

    Several hypotheses are of one selection's shape; each selection takes the one that weighs most for it.
    """
    whole = 2 * math.prod(shape)
    if values.size == whole:
        mu, log_std = values.reshape(2, *shape)
        return {name: mu, f"{name}_stds": exponential(log_std)}
    cell = shape if selections == 1 else shape[1:]
    size = math.prod(cell)
    each = 2 * size + selections
    _check(name, values, values.size % each == 0, f"{whole}, or a multiple of {each}")
    rows = values.reshape(-1, each)
    weights = softmax(rows[:, 2 * size :], axis=0)
    if selections == 1:
        order = np.argsort(weights[:, 0])[::-1]
        rows, weights = rows[order], weights[order]
    mu = rows[:, :size].reshape(-1, *cell)
    stds = exponential(rows[:, size : 2 * size]).reshape(-1, *cell)
    best = weights.argmax(axis=0)
    return {
        name: mu[best].reshape(shape),
        f"{name}_stds": stds[best].reshape(shape),
        f"{name}_weights": weights,
        f"{name}_hypotheses": mu,
        f"{name}_stds_hypotheses": stds,
    }
