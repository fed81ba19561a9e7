"""A model compiled in a fork of a worker that made another of its architecture has a cold compile's bytes.

So has one whose kernels were lowered one by one, on a single core.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import Project, generated, model

from rules import catalog
from rules.build import build
from rules.builders.warm import Warm
from rules.graph import MONITORING, Graph
from rules.workspace import Workspace

POLICY = 'contract = "policy"'
GPU = "uses_external_gpu = true"
SPLIT, SUPERCOMBO = 'layout = "openpilot-split"', 'layout = "iqpilot-supercombo"'
TYPES = {
    "vision_policy": ("vision-conv+attention", ()),
    "vision_policy, images in the policy": ("vision-mixer+gru", (POLICY,)),
    "vision_multi_policy, split, external GPU": ("multi-policy", (SPLIT, GPU, 'flags = "beside"')),
    "supercombo, full rate": ("supercombo-99", ()),
    "supercombo, iqpilot": ("supercombo-24", (SUPERCOMBO,)),
    "generic": ("generic-mlp", ('type = "generic"',)),
    "dmonitoring": ("dmonitoring", ()),
}
BESIDE = '[flags.beside]\nextends = "cpu"\nWARP_DEV = "CPU"\nFRAME_DEV = "CPU"\n'


@pytest.fixture
def warm() -> Iterator[Warm]:
    residents = Warm()
    yield residents
    residents.close()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """What is started here has a single processor, where there is a way to say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def compiled(folder: Path, kind: str, *, seed: int, warm: Warm | None) -> dict[str, str]:
    """Compile the model of a kind whose weights are of `seed`; the sha256 of every file of it."""
    architecture, settings = TYPES[kind]
    source = generated(architecture, seed=seed)
    unit = MONITORING if kind == "dmonitoring" else "m"
    table = f"[models]\n[{unit}]\n{source}" if unit == MONITORING else model(unit, source, *settings)
    Project(folder, BESIDE + table)
    graph = Graph(catalog.load(folder / "models.toml"), Workspace(folder / "artifacts"))
    graph.cold = warm is None
    graph.warm = warm or graph.warm
    for step in graph.needed([f"candidate:{unit}"]):
        made = build(step, graph.judge, graph.workspace)
    return {output.name: output.sha256 for output in made.outputs}


@pytest.mark.parametrize("kind", TYPES)
def test_warm_is_cold_to_the_byte(kind: str, warm: Warm, tmp_path: Path) -> None:
    first = compiled(tmp_path / "first", kind, seed=1, warm=warm)
    (resident,) = warm._residents.values()  # whether it served both is the question here
    forked = compiled(tmp_path / "forked", kind, seed=2, warm=warm)
    assert list(warm._residents.values()) == [resident]
    assert resident.primed
    with one_core() if kind == "vision_policy" else contextlib.nullcontext():
        cold = compiled(tmp_path / "cold", kind, seed=2, warm=None)
    assert forked == cold
    weights = [name for name in forked if "metadata" not in name and "warp" not in name]
    assert weights
    assert all(forked[name] != first[name] for name in weights)


def test_a_worker_that_an_interrupt_ended_is_not_replaced(warm: Warm, tmp_path: Path) -> None:
    warm.close()
    with pytest.raises(KeyboardInterrupt):
        compiled(tmp_path, "generic", seed=1, warm=warm)
    assert not (tmp_path / "artifacts/results/m_failure.json").exists()
