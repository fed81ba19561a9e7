"""Gates on what an artifact does: what it did where it was compiled, and something that its input decides."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from rules.gates.evidence import Evidence, Finding
from rules.gates.promise import written


def replay(evidence: Evidence) -> Iterator[Finding]:
    """Every step gives what the compile's own first run gave, bit for bit, with the queues carried on."""
    made, seen = evidence.made["replay"], evidence.seen["replay"]
    if evidence.seen["stopped"]:
        value = f"after {len(seen)} of {len(made)}: {evidence.seen['stopped']}"
        yield Finding("replay", "all steps", value, f"{len(made)} steps", False)
        return
    counts: Counter[str] = Counter()
    wrong: dict[str, list[str]] = {step["label"]: [] for step in made}
    for before, after in zip_longest(made, seen):
        label = (before or after)["label"]
        for what in ("outputs", "state"):
            if not (before and after and before[what] == after[what]):
                wrong.setdefault(label, []).append(f"{what} of step {counts[label]}")
        counts[label] += 1
    for label, faults in wrong.items():
        value = f"{', '.join(faults)} differ from the compile's own" if faults else "the same"
        limit = f"outputs and state of the compile's own {counts[label]} steps"
        yield Finding("replay", label, value, limit, not faults)


def client(evidence: Evidence) -> Iterator[Finding]:
    """The layout's client, which goes by what the artifact says of itself, gets what the replay gave."""
    found, replayed = evidence.seen["client"], evidence.seen["replay"]
    labels = list(dict.fromkeys(step["label"] for step in replayed)) if found else []
    for label in labels:
        given = [step["outputs"] for step in found["steps"] if step["label"] == label]
        wanted = [step["outputs"] for step in replayed if step["label"] == label]
        late = [str(at) for at, pair in enumerate(zip(given, wanted, strict=False)) if pair[0] != pair[1]]
        value = f"outputs of step {', '.join(late)} differ" if late else "the same"
        if len(given) < len(wanted):
            value = f"it stops after {len(given)}: {found['stopped']}"
        limit = f"outputs of {len(wanted)} replayed steps"
        yield Finding("client", label, value, limit, given == wanted)


def inputs(evidence: Evidence) -> Iterator[Finding]:
    """Each capture leaves what it is given alone, but for the queues of its contract."""
    found = evidence.seen["client"]
    allowed = written(evidence.request)
    for label, names in found.get("written", {}).items():
        wrong = sorted(set(names) - set(allowed.get(label, ())))
        value = f"writes to {', '.join(wrong)}" if wrong else "all as they were"
        yield Finding("inputs", label, value, "arguments left as they were", not wrong)
    for label in found.get("again", []):
        yield Finding("inputs", label, "other outputs", "the same outputs from the same buffers again", False)


def seed(evidence: Evidence) -> Iterator[Finding]:
    """Other frames give other outputs, of each network."""
    first = {step["label"]: step for step in reversed(evidence.seen["replay"])}
    for other in evidence.seen["other"]:
        label = other["label"]
        for role, network in other["networks"].items():
            same = network["outputs"] == first[label]["networks"][role]["outputs"]
            value = "the same outputs" if same else "other outputs"
            yield Finding("seed", f"{label} {role}", value, "other outputs for other frames", not same)


def finite(evidence: Evidence) -> Iterator[Finding]:
    """Every number is one."""
    for subject, steps in _by_network(evidence).items():
        worst = max(step["not_finite"] for step in steps)
        yield Finding("finite", subject, f"{worst} numbers not finite", "0 in every step", not worst)


def zero(evidence: Evidence) -> Iterator[Finding]:
    """No output is zero all over."""
    for subject, steps in _by_network(evidence).items():
        least = min(step["largest"] for step in steps)
        yield Finding("zero", subject, f"{least:.3g} as the largest", "more than 0 in every step", least > 0)


def constant(evidence: Evidence) -> Iterator[Finding]:
    """No output is one and the same number all over (all zeros are the other gate's)."""
    for subject, steps in _by_network(evidence).items():
        spreads = [s["spread"] for s in steps if s["largest"] > 0 and s["spread"] is not None]
        least = min(spreads, default=None)
        value = "single numbers" if least is None else f"a spread of {least:.3g}"
        yield Finding("constant", subject, value, "more than 0 in every step", least is None or least > 0)


def _by_network(evidence: Evidence) -> dict[str, list[Mapping[str, Any]]]:
    """What was measured in each step of either replay, by camera and network."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for step in [*evidence.seen["replay"], *evidence.seen["other"]]:
        for role, network in step["networks"].items():
            found.setdefault(f"{step['label']} {role}", []).append(network)
    return found
