"""Gates on what the outputs say: close to the ONNX reference head by head, and a pose that a car can have."""

from collections.abc import Iterator

from rules.gates.evidence import Evidence, Finding

FLOAT_TOLERANCE = 1e-4
# Measured over the generated models, DEV=CPU with float16 weights: drifts up to 6e-3 (see models.toml).
HALF_TOLERANCE = 2e-2


def reference(evidence: Evidence) -> Iterator[Finding]:
    """Each head is close to onnxruntime's in float32, measured against the head's own largest value.

    The flag set states tolerances; where it does not, what float32 can hold, or float16 if the ONNX files
    or the flag set use it.
    """
    found = evidence.reference
    if found is None:
        return
    half = found["half"] or evidence.flags.values.get("FLOAT16") == "1"
    stated = evidence.flags.tolerance
    default = stated.get("default", HALF_TOLERANCE if half else FLOAT_TOLERANCE)
    for head, drift in found["heads"].items():
        limit = stated.get(head.partition(".")[2], default)
        good = drift is not None and drift <= limit
        value = "numbers where the reference has none, or none where it has" if drift is None else drift
        yield Finding("reference", head, value, limit, good)


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
