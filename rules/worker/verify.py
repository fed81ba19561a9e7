"""Loading artifacts from disk in a fresh process, driving them, and telling what happened; the host judges.

Networks are fed what a runtime would feed them, eight frames of each camera with the histories carried on:
once as the compile fed them, once as their client does, which knows only what they say of themselves.
"""

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from . import abi, artifact, clients
from .feed import Arrays, Step, digest, save

SEED, OTHER_SEED = 0, 1
STEPS = 8  # of each camera: replays have differed from the first run on their second or a later step only
MESSAGE_CHARACTERS = 2000


def verify(unit: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Load `request["outputs"]` and replay them; what passed through the networks goes to the file
    `request["observed"]`. Whatever stops the work is a fact too, so that the host can say what led to it."""
    facts: dict[str, Any] = {
        "about": {},
        "captures": {},
        "other": [],
        "replay": [],
        "stopped": None,
        "client": {},
    }
    try:
        _verify(unit, request, facts)
    except Exception as error:
        traceback.print_exc()
        facts["stopped"] = f"{type(error).__name__}: {error}"[:MESSAGE_CHARACTERS]
    return facts


def _verify(unit: Any, request: dict[str, Any], facts: dict[str, Any]) -> None:
    files = {name: artifact.read(Path(path)) for name, path in request["outputs"].items()}
    facts["about"] = {name: abi.about(content) for name, content in files.items()}
    facts["captures"] = abi.captured(unit.captures(files))
    # Another seed goes first: what it leaves behind in an artifact would show in the replay.
    facts["other"] += replayed(chain.from_iterable(unit.drives(files, seed=OTHER_SEED, steps=1)))
    observed: dict[str, Any] = {}
    steps = chain.from_iterable(unit.drives(files, seed=SEED, steps=STEPS))
    facts["replay"] += replayed(_watched(steps, observed))
    facts["observed"] = save(observed, Path(request["observed"]))
    facts["client"] = clients.drive(request["layout"], files, unit.scenes(seed=SEED, steps=STEPS))


def replayed(steps: Iterable[Step]) -> Iterator[dict[str, Any]]:
    """What the host compares of each step of a replay."""
    for step in steps:
        yield {
            "label": step.label,
            "outputs": digest(step.outputs),
            "state": digest(step.state),
            "networks": {role: measured(passed.outputs) for role, passed in step.networks.items()},
        }


def measured(outputs: Arrays) -> dict[str, Any]:
    """One network's outputs: their digest, dtypes and shapes, how many numbers are not finite, the largest
    number of the weakest output, and how far the numbers of the flattest are apart (None where each output is
    a single number)."""
    finite = [array[np.isfinite(array)] for array in outputs]
    largest = [float(np.abs(array).max()) for array in finite if array.size]
    spread = [float(np.ptp(array)) for array in finite if array.size > 1]
    return {
        "outputs": digest(outputs),
        "given": [[array.dtype.name, list(array.shape)] for array in outputs],
        "not_finite": sum(array.size for array in outputs) - sum(array.size for array in finite),
        "largest": min(largest, default=0.0),
        "spread": min(spread, default=None),
    }


def _watched(steps: Iterable[Step], observed: dict[str, Any]) -> Iterator[Step]:
    """Pass steps on; keep every input and output in `observed`, by the names
    `LABEL/STEP/ROLE/in|out/NUMBER`."""
    counts: Counter[str] = Counter()
    for step in steps:
        number = counts[step.label]
        counts[step.label] += 1
        for role, passed in step.networks.items():
            for side, arrays in (("in", passed.inputs), ("out", passed.outputs)):
                named = {f"{step.label}/{number}/{role}/{side}/{i}": one for i, one in enumerate(arrays)}
                observed |= named
        yield step
