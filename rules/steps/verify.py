"""candidate → verified: a fresh process loaded the artifact from disk, and it behaved.

The compile itself is no witness: a capture can be right in the process that made it and wrong once pickled.
"""

from collections.abc import Mapping
from typing import Any

from rules.errors import ArtifactError

HOST_DEVICE = "NPY"


def judge(
    model_id: str, made: Mapping[str, Any], seen: Mapping[str, Any], devices: Mapping[str, tuple[str, ...]]
) -> None:
    """Hold what a fresh process saw against what the compile made; raises ArtifactError naming every fault.

    `devices` lists, by capture label, the devices that the flag set promises.
    """
    faults = [
        *_replays(made["replay"], seen["replay"]),
        *_numbers(seen),
        *_devices(seen["captures"], devices),
    ]
    same = {step["outputs"] for step in seen["replay"]} & {step["outputs"] for step in seen["other"]}
    if same:
        faults.append("other frames give the same outputs")
    if faults:
        raise ArtifactError(
            f"{model_id}: the compiled artifact misbehaves: {'; '.join(faults)}",
            fix=f"read its log, then doit candidate:{model_id}; the last good artifact is untouched",
        )


def _replays(made: list[dict[str, Any]], seen: list[dict[str, Any]]) -> list[str]:
    pairs = enumerate(zip(made, seen, strict=True))
    return [
        f"step {index} ({after['label']}): {what} differ from the compile's own"
        for index, (before, after) in pairs
        for what in ("outputs", "state")
        if before[what] != after[what]
    ]


def _numbers(seen: Mapping[str, Any]) -> list[str]:
    faults = []
    for index, step in enumerate([*seen["replay"], *seen["other"]]):
        if not step["finite"]:
            faults.append(f"step {index} ({step['label']}): an output is not finite")
        if not step["varies"]:
            faults.append(f"step {index} ({step['label']}): every output is one and the same number")
    return faults


def _devices(captures: Mapping[str, Any], promised: Mapping[str, tuple[str, ...]]) -> list[str]:
    faults = []
    for label, one in captures.items():
        expected = promised[label]
        strange = sorted(set(one["devices"]) - {*expected, HOST_DEVICE})
        missing = sorted(set(expected[:1]) - set(one["devices"]))
        if strange or missing:
            faults.append(
                f"{label} was captured on {', '.join(one['devices'])}, expected {', '.join(expected)}"
            )
    return faults
