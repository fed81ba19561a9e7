"""onnx → candidate: what a compile is asked for. The compile itself runs wherever a builder puts it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rules.errors import SourceError
from rules.networks import indices
from rules.networks.onnxfile import shown
from rules.steps.preflight import Preflight, infer_model_type

ROLE_NAMES = {
    "driving_vision": "vision",
    "driving_policy": "policy",
    "driving_on_policy": "on_policy",
    "driving_off_policy": "off_policy",
    "driving_supercombo": "model",
}
FULL_RATE_STEPS = 99  # a features buffer this long is fed at model rate, so nothing is skipped
FEATURES = "features_buffer"
DRIVING = ("vision_policy", "vision_multi_policy", "supercombo")


def role_names(roles: Iterable[str]) -> list[str]:
    """The roles of files by the names the runtimes use."""
    return [ROLE_NAMES.get(role, role) for role in roles]


def networks(files: Mapping[str, Path], found: Mapping[str, Preflight]) -> dict[str, Any]:
    """The request's networks by the names the runtimes use, in a fixed order."""
    ordered = [role for role in ROLE_NAMES if role in found] + sorted(found.keys() - ROLE_NAMES.keys())
    return {
        ROLE_NAMES.get(role, role): {"path": str(files[role]), **found[role].request()} for role in ordered
    }


def feed(
    model_id: str, path: Path, found: Preflight, declared: Mapping[str, Sequence[float]]
) -> dict[str, list[float]]:
    """Between which numbers an input without a contract is fed, ends included, where that is not left to the
    worker: as the catalog declares, and indices within what they index.

    Raises SourceError when the catalog declares what no input can take, or must and does not.
    """
    tables = indices.sizes(path)
    ranges = {name: [0.0, size - 1.0] for name, size in tables.items() if size}
    for name, (low, high) in declared.items():
        least, most = ranges.get(name, (low, high))
        fix = f"correct models.{model_id}.feed in models.toml"
        if name not in found.summary.inputs:
            inputs = ", ".join(found.summary.inputs)
            raise SourceError(f"{model_id}: feed.{name}: no such input, expected one of {inputs}", fix=fix)
        if not least <= low <= high <= most:
            expected = (
                f"from {least:g} to {most:g}, which it indexes" if name in ranges else "the lower first"
            )
            raise SourceError(
                f"{model_id}: feed.{name}: found {low:g} to {high:g}, expected {expected}", fix=fix
            )
        ranges[name] = [low, high]
    for name in tables.keys() - ranges.keys():
        raise SourceError(
            f"{model_id}: the input {shown(name)} indexes a table, and {path.name} does not say its size",
            fix=f"state between which numbers it lies: feed = {{ {name} = [0, 9] }} in models.{model_id}",
        )
    return ranges


def frame_skip(found: Mapping[str, Preflight], explicit: int | None, default: int) -> int:
    """Model rate over context rate: the catalog's, else 1 for a features buffer of 99 steps or more."""
    if explicit is not None:
        return explicit
    shapes = [one.summary.inputs[FEATURES].shape for one in found.values() if FEATURES in one.summary.inputs]
    steps = [shape[1] for shape in shapes if isinstance(shape[1], int)]
    return 1 if steps and max(steps) >= FULL_RATE_STEPS else default


def kind(found: Mapping[str, Preflight], explicit: str | None) -> str:
    """The model type: what the catalog says, else what the files make."""
    return explicit or infer_model_type(set(found))


def request(
    operation: str,
    model_type: str,
    named: Mapping[str, Any],
    settings: Mapping[str, Any],
    outputs: Mapping[str, Path],
) -> dict[str, Any]:
    """The worker's request; `settings` are the key's own values, so that a key cannot say one thing and the
    compile do another."""
    return {
        "operation": operation,
        "kind": model_type,
        "networks": dict(named),
        **settings,
        "outputs": {name: str(path) for name, path in outputs.items()},
    }
