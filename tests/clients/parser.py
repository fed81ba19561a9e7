"""What a client's parser makes of network outputs, from the documents alone: every head by name, finite."""

from typing import Any

import numpy as np

SIGHT = {  # of a vision network: name → how it is read, and how many numbers that gives
    "meta": ("sigmoid", 55),
    "desire_pred": ("softmax", 32),
    "pose": ("mixture", 6),
    "wide_from_device_euler": ("mixture", 3),
    "road_transform": ("mixture", 6),
    "lane_lines": ("mixture", 264),
    "lane_lines_prob": ("sigmoid", 8),
    "road_edges": ("mixture", 132),
    "lead": ("mixture", 72),
    "lead_prob": ("sigmoid", 3),
}
DECISION = {"plan": ("mixture", 495), "desire_state": ("softmax", 8)}
OPTIONAL = {"desired_curvature": ("mixture", 1), "action": ("mixture", 2), "sim_pose": ("mixture", 6)}
SEAT = ("face_prob", "left_eye_prob", "right_eye_prob", "sunglasses_prob", "left_blink_prob")
SEAT = (*SEAT, "right_blink_prob", "using_phone_prob", "sleep_prob")
CABIN = {
    **{f"face_descs_{side}": ("mixture", 6) for side in ("lhd", "rhd")},
    **{f"{name}_{side}": ("sigmoid", 1) for side in ("lhd", "rhd") for name in SEAT},
    "wheel_on_right": ("sigmoid", 1),
}
OLD = {"plan": (5, 495, 1), "lead": (2, 24, 3)}  # hypotheses, means of each, weights of each


def read(table: dict[str, tuple[str, int]], output: Any, slices: dict[str, slice]) -> dict[str, Any]:
    """The heads of `table` out of one output (1, N). Raises KeyError for a head that is not there."""
    row = output.reshape(-1)
    heads = {name: HOW[how](name, row[slices[name]], size) for name, (how, size) in table.items()}
    for name, (how, size) in OPTIONAL.items():
        if name in slices:
            heads[name] = HOW[how](name, row[slices[name]], size)
    for name, values in heads.items():
        assert np.isfinite(values).all(), name
    return heads


def mixture(name: str, values: Any, size: int) -> Any:
    """Means, then deviations."""
    if values.size != 2 * size:
        count, each, weights = OLD[name]
        values = values.reshape(count, 2 * each + weights)[:, : 2 * each].T.reshape(2, -1)
    means, logs = values.reshape(2, -1)
    return np.stack([means, np.exp(np.clip(logs, None, 11))])


def sigmoid(name: str, values: Any, size: int) -> Any:
    """Probabilities."""
    assert values.size == size, name
    return 1 / (1 + np.exp(np.clip(-values, None, 11)))


def softmax(name: str, values: Any, size: int) -> Any:
    """Shares of eight."""
    assert values.size == size, name
    raised = np.exp(values.reshape(-1, 8) - values.max())
    return raised / raised.sum(axis=-1, keepdims=True)


HOW = {"mixture": mixture, "sigmoid": sigmoid, "softmax": softmax}
