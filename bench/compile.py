"""Compiling, against the plain procedure of the field (bench/plain.py), under the same flags.

    .venv/bin/python bench/compile.py pair [WIDTH]     one driving pair, both cameras
    .venv/bin/python bench/compile.py again [WIDTH]    the same architecture with other weights
    .venv/bin/python bench/compile.py catalog [WIDTH]  eight models of two architectures, doit -n 2

Ours is the wall time of `doit` in a workspace that holds nothing but the fetched sources, as the plain
procedure has them: a copy of tinygrad, compile, and all of the verification in a fresh process. The plain
procedure is timed twice: as the field has it, with two replays for its only check, and with our checks made.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

from timing import HEADER, Command, Took, environment, row

from rules.catalog import load
from rules.graph import Graph, Unit
from rules.workspace import Workspace

ROOT = Path(__file__).resolve().parent.parent
DOIT = str(Path(sys.executable).with_name("doit"))
ARCHITECTURES = ("vision-conv+attention", "vision-mixer+gru")
RUNS = 3


def catalog(folder: Path, models: int, width: int, architectures: tuple[str, ...]) -> None:
    """A project of so many models; their weights all differ."""
    folder.mkdir(parents=True)
    head = (ROOT / "models.toml").read_text().partition("# ---- models")[0]
    tables = [
        f'[models.m{i}]\nname = "Model {i}"\nversion = "v11"\nseries = "Bench"\nreleased = "2026-01-01"\n'
        'source = { kind = "generated", architecture = "'
        f'{architectures[i % len(architectures)]}", seed = {i}, width = {width} }}\n'
        for i in range(models)
    ]
    (folder / "models.toml").write_text(head + "".join(tables))
    (folder / "dodo.py").write_text((ROOT / "dodo.py").read_text())


def plain(folder: Path, *checked: str) -> Took:
    """Seconds of the plain procedure for every model of a project whose sources are fetched, one by one."""
    graph = Graph(load(folder / "models.toml"), Workspace(folder / "artifacts"))
    took = []
    for model in graph.catalog.models.values():
        unit = Unit.of(model)
        outputs = {"artifact": folder / f"{model.id}.pkl"}
        request = graph._request("compile", unit, graph.steps[f"onnx:{model.id}"], outputs)
        path = folder / f"{model.id}.json"
        path.write_text(json.dumps(request))
        flags = {**environment(folder), "CACHELEVEL": "0", "PYTHONHASHSEED": "0", **unit.flags.values}
        words = [sys.executable, str(Path(__file__).with_name("plain.py")), str(path), *checked]
        took.append(Command("plain", words, folder, flags).took())
    return Took(*map(sum, zip(*took, strict=True)))


def ours(folder: Path, *words: str) -> Took:
    """Seconds of a whole doit run from nothing."""
    return Command("ours", [DOIT, *words], folder, environment(folder)).took()


def alternate(name: str, models: int, width: int, architectures: tuple[str, ...], *words: str) -> str:
    """Ours and the plain procedure in turn, over the same models: two rows."""
    mine, theirs, checked = [], [], []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "project"
            catalog(folder, models, width, architectures)
            ours(folder, "onnx")
            mine.append(ours(folder, *words))
            theirs.append(plain(folder))
            checked.append(plain(folder, "checked"))
    bare = row(name, mine, "the plain procedure", theirs)
    return bare + "\n" + row("the same", mine, "plain, with our checks", checked)


def again(width: int) -> str:
    """A compile on a resident worker that has made one model of the architecture, against a cold one."""
    warm, cold = [], []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "project"
            catalog(folder, 2, width, ARCHITECTURES[:1])
            ours(folder)
            cold.append(seconds(folder, "m0"))
            warm.append(seconds(folder, "m1"))
    ratio = statistics.median(a / b for a, b in zip(warm, cold, strict=True))
    medians = statistics.median(warm), statistics.median(cold)
    return f"| compile, same architecture | {medians[0]:.2f} s | cold | {medians[1]:.2f} s | {ratio:.2f} | |"


def seconds(folder: Path, model_id: str) -> float:
    """The compile's own time, as the worker measured it."""
    record = json.loads((folder / f"artifacts/results/{model_id}_artifact.json").read_text())
    return float(record["facts"]["seconds"])


def main(what: str, width: int) -> None:
    """Print one table."""
    print(HEADER)
    if what == "pair":
        print(alternate("doit, one driving pair", 1, width, ARCHITECTURES[:1]))
    elif what == "again":
        print(again(width))
    else:
        print(alternate("doit -n 2, 8 models of 2 architectures", 8, width, ARCHITECTURES, "-n", "2"))


if __name__ == "__main__":
    main(sys.argv[1], int((sys.argv[2:] or ["32"])[0]))
