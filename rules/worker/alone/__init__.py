"""Single nodes run through tinygrad, each as a network of its own; the host judges what they give."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
from tinygrad import Device, Tensor

from ..feed import on_device, save
from ..network import DtypeNotes
from ..runner import Runner

MESSAGE_CHARACTERS = 300


def hold(request: dict[str, Any]) -> dict[str, Any]:
    """Run every case of a request; outputs go to `request["given"]` by `DIGEST/PASS/OUTPUT`.

    Returns that file's sha256, and by digest what tinygrad raised over a node.
    """
    given: dict[str, Any] = {}
    failed: dict[str, str] = {}
    with DtypeNotes():
        for number, case in enumerate(request["cases"], 1):
            print(f"{number} of {len(request['cases'])}: {case['node']}", flush=True)
            try:
                given |= _outputs(case)
            except Exception as error:
                traceback.print_exc()
                cause = error.__cause__ or error  # the runner's own words name the node, which is known here
                failed[case["digest"]] = f"{type(cause).__name__}: {cause}"[:MESSAGE_CHARACTERS]
    return {"sha256": save(given, Path(request["given"])), "failed": failed}


def _outputs(case: dict[str, Any]) -> dict[str, Any]:
    runner = Runner(case["model"])
    if stored := runner.stored:
        Tensor.realize(*stored)
    found: dict[str, Any] = {}
    with np.load(case["fed"], allow_pickle=False) as fed:
        for at in range(case["passes"]):
            names = [name for name in fed.files if name.startswith(f"{at}/")]
            inputs = {name.partition("/")[2]: on_device(fed[name], Device.DEFAULT) for name in names}
            outputs = list(runner(inputs).values())
            for number, output in enumerate(outputs):
                whole = output.contiguous().numpy() if isinstance(output, Tensor) else np.asarray(output)
                found[f"{case['digest']}/{at}/{number}"] = whole
    return found
