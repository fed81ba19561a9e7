"""The heads of a network as its client's parser reads them, written from the field's documents alone.

Kept apart from `runtime/decode.py`, which draws and publishes: what both got wrong, neither would show.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = Any

VISION = (
    "meta",
    "desire_pred",
    "pose",
    "wide_from_device_euler",
    "road_transform",
    "lane_lines",
    "lane_lines_prob",
    "road_edges",
    "lead",
    "lead_prob",
    "hidden_state",
)
POLICY = ("plan", "desire_state")
SEAT = ("face_descs", "face_prob", "left_eye_prob", "right_eye_prob", "left_blink_prob", "right_blink_prob")
DRIVER = (*(f"{name}_{side}" for side in ("lhd", "rhd") for name in SEAT), "wheel_on_right")
# A client lets an off policy lack anything: it fills in what no other network says.
READ = {
    "vision": VISION,
    "model": (*VISION, *POLICY),
    "policy": POLICY,
    "on_policy": POLICY,
    "off_policy": (),
    "driver": DRIVER,
}
ACTING = ("v14", "v15", "v16")  # behaviours that steer by the head `action`

# Means of one hypothesis, hypotheses and weights of each where there are several.
MIXTURES = {
    "plan": (33 * 15, 5, 1),
    "lead": (6 * 4, 2, 3),
    "lane_lines": (4 * 33 * 2, 1, 0),
    "road_edges": (2 * 33 * 2, 1, 0),
    "pose": (6, 1, 0),
    "wide_from_device_euler": (3, 1, 0),
    "road_transform": (6, 1, 0),
    "sim_pose": (6, 1, 0),
    "desired_curvature": (1, 1, 0),
    "action": (2, 1, 0),
    "face_descs": (6, 1, 0),
}
PLAIN = {"lead": 3 * 6 * 4}  # means of a plain mixture where its hypotheses hold fewer
SHARES = ("desire_state", "desire_pred")
LARGEST_EXPONENT = 11.0


def parsed(role: str, row: Array, slices: Mapping[str, slice]) -> dict[str, Array]:
    """Every head of one network's output (N,) by name: means then deviations, probabilities, shares.

    Raises ValueError for a head that the role's parser reads and that is not there, that has a width the
    parser cannot take, or that holds a number which is not finite.
    """
    if missing := [name for name in READ[role] if name not in slices]:
        raise ValueError(f"the parser of {role} reads {', '.join(missing)}, which it has not")
    heads = {name: _head(name, row[cut]) for name, cut in slices.items() if name != "pad"}
    for name, values in heads.items():
        if not values.size or not np.isfinite(values).all():
            raise ValueError(f"{role}.{name}: numbers that are not finite, or none")
    return heads


def _head(name: str, values: Array) -> Array:
    kind = name.removesuffix("_lhd").removesuffix("_rhd")
    if kind in MIXTURES:
        return _mixture(kind, values)
    if kind in SHARES:
        raised = np.exp(values.reshape(-1, 8) - values.reshape(-1, 8).max(axis=1, keepdims=True))
        return raised / raised.sum(axis=1, keepdims=True)
    if kind.endswith("_prob") or kind in ("meta", "wheel_on_right"):
        return 1 / (1 + np.exp(np.minimum(-values, LARGEST_EXPONENT)))
    return values


def _mixture(kind: str, values: Array) -> Array:
    count, hypotheses, weights = MIXTURES[kind]
    if kind == "action" and values.size == count:  # raw, without deviations
        return values
    plain = PLAIN.get(kind, count)
    if values.size == 2 * plain:
        rows = values.reshape(1, -1)
    elif hypotheses > 1 and values.size == hypotheses * (2 * count + weights):
        rows = values.reshape(hypotheses, -1)[:, : 2 * count]
    else:
        raise ValueError(f"{kind}: {values.size} columns, which no parser takes")
    means, logs = np.split(rows, 2, axis=1)
    return np.concatenate([means, np.exp(np.minimum(logs, LARGEST_EXPONENT))], axis=1)
