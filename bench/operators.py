"""Holding each operator on its own: what the gate before a compile takes, over the default catalog.

    .venv/bin/python bench/operators.py

Each model in the catalog's order, with all that earlier ones made known; then each again, all nodes known.
Processor seconds are of this process and its children: they drift less than wall seconds.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path

from compile import DOIT, ROOT
from timing import Command, environment

from rules.catalog import load
from rules.graph import Graph, Unit
from rules.workspace import Workspace

HEADER = "| model | nodes | run now | wall | processor | all known |\n|---|---|---|---|---|---|"


def processor() -> float:
    """Processor seconds so far, of this process and of children that have ended."""
    return sum(os.times()[:4])


def held(graph: Graph, unit: Unit) -> tuple[int, int, float, float]:
    """Hold one model's operators: nodes, how many ran, wall and processor seconds."""
    source, candidate = (graph.steps[task] for task in unit.tasks[:2])
    request = graph._request("compile", unit, source, {})
    content, scratch = graph.judge.content(candidate), graph.workspace.store.scratch()
    wall, used = time.perf_counter(), processor()
    found = graph._hold_operators(unit, request, content, scratch)
    assert found is not None
    return found.nodes, found.ran, time.perf_counter() - wall, processor() - used


def main() -> None:
    """Print one table."""
    print(HEADER)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project"
        folder.mkdir()
        for name in ("models.toml", "models.lock.json", "dodo.py"):
            shutil.copy(ROOT / name, folder / name)
        Command("onnx", [DOIT, "onnx"], folder, environment(folder)).seconds()
        graph = Graph(load(folder / "models.toml"), Workspace(folder / "artifacts"))
        units = [Unit.of(model) for model in graph.catalog.models.values()] + [graph._monitoring()]
        for unit in units:
            nodes, ran, wall, used = held(graph, unit)
            known = held(graph, unit)[2]
            print(
                f"| {unit.id} | {nodes} | {ran} | {wall:.1f} s | {used:.1f} s | {known:.3f} s |", flush=True
            )


if __name__ == "__main__":
    main()
