"""candidate → verified: a fresh process loaded the artifact from disk, and it behaved.

The compile itself is no witness: a capture can be right in the process that made it and wrong once pickled.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from rules.catalog import FlagSet, Limits
from rules.errors import ArtifactError
from rules.flags import device
from rules.gates import behaviour, form, numbers
from rules.gates.evidence import Evidence, Finding, Gate
from rules.keeping.digests import Digests
from rules.keeping.records import Record
from rules.keys import Content, key_of
from rules.networks import reference
from rules.operators import holding

PACKAGE = Path(__file__).parent.parent

# A stage is judged when everything before it is well: what follows from a fault is no news.
STAGES: tuple[Mapping[str, Gate], ...] = (
    {"container": form.container},
    {"format": form.form},
    {
        "devices": form.devices,
        "arguments": form.arguments,
        "shapes": form.shapes,
        "depth": form.depth,
        "slices": form.slices,
        "size": form.size,
    },
    {
        "replay": behaviour.replay,
        "seed": behaviour.seed,
        "finite": behaviour.finite,
        "zero": behaviour.zero,
        "constant": behaviour.constant,
        "reference": numbers.reference,
        "pose": numbers.pose,
    },
    {"client": behaviour.client, "inputs": behaviour.inputs},
)
WITHOUT_REFERENCE = tuple(takewhile(lambda stage: "reference" not in stage, STAGES))
GATES = (holding.GATE, *(name for stage in STAGES for name in stage))
SKIPPABLE = (  # what an odd network may rightly fail
    "size", "seed", "zero", "constant", "reference", "pose", holding.GATE,
)  # fmt: skip
VERIFIED_ON = ("device", "machine", "renderer", "arch")
TOLD = 6  # faults in a message; the log of gates is as long as it must be

Run = Callable[[dict[str, Any]], dict[str, Any]]
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """What is to be verified: the worker's request for it, and the record that the compile left."""

    id: str
    request: dict[str, Any]
    compiled: Record
    flags: FlagSet
    limits: Limits
    skip: tuple[str, ...] = ()
    most_bytes: int | None = None  # of memory that the reference may take
    held: holding.Held | None = None  # what is known of its operators, each on its own


def digest(digests: Digests) -> str:
    """One sha256 over the sources of the gates: what one of them begins to refuse is verified again."""
    judges = [PACKAGE / "networks" / name for name in ("reference.py", "whole.py", "drift.py", "groups.py")]
    sources = [*sorted((PACKAGE / "gates").glob("*.py")), *judges, Path(__file__)]
    found = {path.name: digests.of(path).sha256 for path in sources if not path.name.startswith("._")}
    return key_of({**found, holding.GATE: holding.code(digests)})


def settings(sources: str, flags: FlagSet, limits: Limits, skip: tuple[str, ...]) -> Content:
    """What a key holds of the gates; `sources` is their digest."""
    return {
        "sources": sources,
        "tolerance": flags.tolerance,
        "limits": asdict(limits),
        "skipped": sorted(skip),
    }


def verify(case: Case, source: Record, scratch: Path, run: Run) -> dict[str, Any]:
    """Load and drive the artifacts by `run`, ask the reference, judge; returns the facts for the record.

    Raises ArtifactError naming every fault, or what kept one of the processes from its work.
    """

    def evidence(seen: Facts, told: Facts | None = None) -> Evidence:
        return Evidence(
            request=case.request,
            made=case.compiled.facts,
            seen=seen,
            flags=case.flags,
            limits=case.limits,
            sizes={output.name: output.size for output in case.compiled.outputs},
            weights=sum(one["weights_bytes"] for one in source.facts.values()),
            reference=told,
        )

    def check(seen: Facts) -> None:
        judge(case.id, evidence(seen), case.skip, WITHOUT_REFERENCE)

    whole = evidence(*observe(case, scratch, run, check))
    findings = [*_operators(case.held), *judge(case.id, whole, case.skip)]
    return facts(whole, findings, case.skip)


def _operators(held: holding.Held | None) -> list[Finding]:
    """What was found before the compile; a model with a wrong operator has no candidate to verify."""
    if held is None:
        return []
    whole = Finding(holding.GATE, f"{held.nodes} nodes", held.used, 1, True)
    rest = [Finding(holding.GATE, why, "not held", "held where it can be", True) for why in held.not_held]
    return [whole, *rest]


def observe(
    case: Case, scratch: Path, run: Run, check: Callable[[Facts], None]
) -> tuple[Facts, Facts | None]:
    """What the fresh process saw, and what the reference says to it; it loads its networks meanwhile.

    `check` comes between: onnxruntime cannot run what declares another type than it gives, nor does it say so
    of the artifact.
    """
    observed = scratch / "observed.npz"
    asked = {**case.request, "observed": str(observed)}
    if {"reference", "pose"} <= set(case.skip):
        return run(asked), None
    log = scratch / "reference.log"
    with reference.prepared(case.request["networks"], log, case.id, case.most_bytes) as child:
        seen = run(asked)
        if "observed" not in seen:
            return seen, None
        if observed.is_symlink() or not observed.is_file():  # what was loaded may have left it
            raise ArtifactError(f"{case.id}: verify left no file of what it observed", fix="read its log")
        check(seen)
        return seen, child.compare(observed, seen["observed"])


def judge(
    model_id: str,
    evidence: Evidence,
    skip: Collection[str] = (),
    stages: tuple[Mapping[str, Gate], ...] = STAGES,
) -> list[Finding]:
    """Hold the evidence against every gate of `stages` that is not in `skip`; returns what they found.

    Raises ArtifactError naming every fault of the first stage that has any.
    """
    findings: list[Finding] = []
    for stage in stages:
        found = [one for name, gate in stage.items() if name not in skip for one in gate(evidence)]
        findings += found
        if faults := [str(one) for one in found if not one.passed]:
            more = f"; and {len(faults) - TOLD} more" if len(faults) > TOLD else ""
            raise ArtifactError(
                f"{model_id}: verify refuses the artifact: {'; '.join(faults[:TOLD])}{more}",
                fix=f"read its log, then doit candidate:{model_id}; the last good artifact is untouched",
            )
    return findings


def facts(evidence: Evidence, findings: list[Finding], skip: Collection[str]) -> dict[str, Any]:
    """What the record tells: every gate with value and limit, and on what the artifact was verified."""
    seen, told = evidence.seen, evidence.reference or {}
    return {
        **{name: seen[name] for name in ("captures", "replay", "other", "seconds")},
        "peak_bytes": seen["peak_bytes"] + told.get("peak_bytes", 0),
        "verified_on": {name: seen[name] for name in VERIFIED_ON},
        "reference": told.get("version"),
        "skipped": sorted(skip),
        "gates": [one.as_json() for one in findings],
    }


def check_released(model_id: str, verified: Facts, flags: FlagSet) -> None:
    """Raise ArtifactError unless the artifact was verified on the kind of device that will run it."""
    found = (verified.get("verified_on") or {}).get("device", "no device")
    if device(found) != flags.expected_device:
        raise ArtifactError(
            f"{model_id}: no release takes it: expected it to be verified on {flags.expected_device}, got"
            f" {found}",
            fix=f"doit -a pkl:{model_id} where there is such a device",
        )
