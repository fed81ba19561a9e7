"""Nothing to do, one model touched, and `outdated`, with 10, 100 and 1000 models, against a bare doit.

    .venv/bin/python bench/idle.py [MODELS ...]

The bare graph has as many tasks as ours, each with one real file as dependency and one as target. All models
share one source, so that the workspace is made by one compile and a thousand restores.
"""

import re
import statistics
import sys
import tempfile
from pathlib import Path

from timing import HEADER, Command, compared, environment

ROOT = Path(__file__).resolve().parent.parent
DOIT = str(Path(sys.executable).with_name("doit"))
RUNS = 7
STEPS = 4
BARE = """
N = {tasks}
def task_all():
    for i in range(N):
        source, target = "in/%d" % i, "out/%d" % i
        yield {{"name": str(i), "actions": ["touch " + target], "file_dep": [source], "targets": [target]}}
"""


def catalog(models: int) -> str:
    """So many models of one source, in two releases."""
    head = (ROOT / "models.toml").read_text().partition("# ---- models")[0]
    tables = [
        f'[models.m{i:04d}]\nname = "Model {i}"\nversion = "v11"\nseries = "Bench"\nreleased = "2026-01-01"\n'
        'since = "v22"\n'
        'source = { kind = "generated", architecture = "vision-conv+attention", seed = 1, width = 4 }\n'
        for i in range(models)
    ]
    return head + "".join(tables) + '[release.v22]\ncontract = "warp"\n'


def ours(folder: Path, models: int) -> Path:
    """A project of ours, built."""
    folder.mkdir(parents=True)
    (folder / "models.toml").write_text(catalog(models))
    (folder / "dodo.py").write_text((ROOT / "dodo.py").read_text())
    Command("build", [DOIT, "-n", "2"], folder, environment(folder)).seconds()
    return folder


def bare(folder: Path, models: int) -> Path:
    """A bare doit graph of the same size, built."""
    for name in ("in", "out"):
        (folder / name).mkdir(parents=True)
    tasks = STEPS * models + 2
    for i in range(tasks):
        (folder / "in" / str(i)).write_text(str(i))
    (folder / "dodo.py").write_text(BARE.format(tasks=tasks))
    Command("build", [DOIT], folder, environment(folder)).seconds()
    return folder


def touched(folder: Path) -> float:
    """Seconds to rebuild after one model's display name changed, among all the others."""
    path = folder / "models.toml"
    text, edits = re.subn(r'"Model 5(\+*)"', r'"Model 5\1+"', path.read_text())
    assert edits == 1
    path.write_text(text)
    return Command("touched", [DOIT], folder, environment(folder)).seconds()


def main(sizes: list[int]) -> None:
    """Print one table."""
    print(HEADER)
    with tempfile.TemporaryDirectory() as temporary:
        for models in sizes:
            mine = ours(Path(temporary) / f"ours{models}", models)
            plain = bare(Path(temporary) / f"bare{models}", models)
            idle = Command(f"doit, nothing to do, {models} models", [DOIT], mine, environment(mine))
            outdated = Command(f"doit outdated, {models} models", [DOIT, "outdated"], mine, environment(mine))
            other = Command("bare doit", [DOIT], plain, environment(plain))
            print(compared(idle, other, runs=RUNS), flush=True)
            print(compared(outdated, other, runs=RUNS), flush=True)
            seconds = statistics.median(touched(mine) for _ in range(3))
            print(f"| doit, one name edited among {models} models | {seconds:.3f} s | | | | |", flush=True)


main([int(word) for word in sys.argv[1:]] or [10, 100, 1000])
