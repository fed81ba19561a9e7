"""First runs of `doit -n 2` with a store, again and again: what threads share fails at random, or never.

    python bench/parallel.py --seconds 3600 --rounds 100000

Each round fetches and checks four models from nothing, into a workspace and a store of its own. The exit code
is 1 when any round failed; its output is then printed.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rules.sources.generated import generate

ROOT = Path(__file__).resolve().parent.parent
HEAD = """
[store]
remote = "file://{store}"
[defaults]
flags = "cpu"
model_size = "512x256"
cameras = ["1928x1208"]
frame_skip = 4
[toolchains.default]
tinygrad = "0.14.0"
[flags.cpu]
DEV = "CPU:X86"
CC = "echo"
NUM_CPU_THREADS = 1
PARALLEL = 0
"""
MODEL = """
[models.mlp{seed}]
name = "{seed}"
version = "v0"
series = "S"
released = "2026-01-01"
type = "generic"
source = {{ kind = "file", path = "onnx/{seed}", format = "generic" }}
"""
DODO = """
from rules.tasks import Yard
yard = Yard("models.toml")
DOIT_CONFIG, task_graph = yard.config, yard.tasks
"""
SEEDS = range(1, 5)


def attempt(task: str) -> str:
    """One first run; what it printed when it failed, nothing when it did not."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(folder)
        done = subprocess.run(
            [sys.executable, "-m", "doit", "-n", "2", "--continue", task],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    return done.stdout + done.stderr if done.returncode else ""


def lay_out(folder: Path) -> None:
    """Models whose files lie there: fetching takes no time, and their checks begin together."""
    for seed in SEEDS:
        (folder / f"onnx/{seed}").mkdir(parents=True)
        content = generate("generic-mlp", seed=seed, width=4)["model"]
        (folder / f"onnx/{seed}/model.onnx").write_bytes(content)
    models = "".join(MODEL.format(seed=seed) for seed in SEEDS)
    (folder / "models.toml").write_text(HEAD.format(store=folder / "store") + models)
    (folder / "dodo.py").write_text(DODO)


def main() -> int:
    """Rounds until their number or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--task", default="onnx", help="what each round makes: onnx, candidate, pkl")
    asked = parser.parse_args()
    until, done, failed = time.monotonic() + asked.seconds, 0, 0
    while done < asked.rounds and time.monotonic() < until:
        if told := attempt(asked.task):
            failed += 1
            print(told, flush=True)
        done += 1
    print(f"{failed} of {done} rounds failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
