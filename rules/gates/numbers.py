"""Gates on what the outputs say: close to the ONNX reference head by head, and a pose that a car can have."""

from collections.abc import Iterator, Mapping
from typing import Any

from rules.gates.evidence import Evidence, Finding

FLOAT_TOLERANCE = 1e-4
# Measured over the generated models (bench/drift.py), errors of float16 are up to 9e-3.
HALF_TOLERANCE = 2e-2
# How far a group's numbers may be from following the expected ones, in tolerances of their own spread: where
# they just have to follow (drift.FOLLOWED), that spread is small beside the numbers, whose noise it has.
FOLLOWING = 10


def reference(evidence: Evidence) -> Iterator[Finding]:
    """Each head is close to onnxruntime's in float32, in every group of numbers that are read together.

    A group's error is a share of how far its own numbers reach, and what varies in it must correlate with
    what is expected; see `rules/networks/drift.py`. The flag set states tolerances, by head, of `float32`
    for a model without float16, and by `default`; where it does not, what float32 can hold, or float16 if the
    ONNX files or the flag set use it.
    """
    told = evidence.reference
    if told is None:
        return
    half = told["half"] or evidence.flags.values.get("FLOAT16") == "1"
    stated = evidence.flags.tolerance
    default = stated.get("default", HALF_TOLERANCE if half else FLOAT_TOLERANCE)
    if not told["half"]:
        default = stated.get("float32", default)
    for head, verdict in told["heads"].items():
        yield from _drifted(head, verdict, stated.get(head.partition(".")[2], default))


def _drifted(head: str, verdict: Mapping[str, Any], tolerance: float) -> Iterator[Finding]:
    error, correlation = verdict["error"], verdict["correlation"]
    good = error is not None and error <= tolerance
    value = "numbers where the reference has none, or none where it has" if error is None else error
    yield Finding("reference", head, value, tolerance, good, verdict["group"] or None)
    if correlation is not None:
        least = least_correlation(tolerance)
        good = correlation >= least
        yield Finding("reference", f"{head} correlation", correlation, least, good, verdict["correlated"])


def least_correlation(tolerance: float) -> float:
    """That of numbers which are off by `FOLLOWING` tolerances of their own spread, at random."""
    return 1 - (FOLLOWING * tolerance) ** 2 / 2


def pose(evidence: Evidence) -> Iterator[Finding]:
    """Translation, rotation and their standard deviations are such as a car can have."""
    limits = evidence.limits
    most = {
        "translation": limits.translation,
        "rotation": limits.rotation,
        "translation_std": limits.std_factor * limits.translation,
        "rotation_std": limits.std_factor * limits.rotation,
    }
    for network, found in (evidence.reference or {"poses": {}})["poses"].items():
        for name, bound in most.items():
            good = found[name] is not None and found[name] <= bound
            yield Finding("pose", f"{network} {name}", found[name], f"at most {bound:g}", good)
        least, bound = found["least_std"], limits.least_std
        good = least is not None and least > bound
        yield Finding("pose", f"{network} least_std", least, f"more than {bound:g}", good)
