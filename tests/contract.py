"""Small projects to build in tests: a catalog, a dodo.py, models with the real contract, and doit as a child."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATH = "/usr/local/bin:/usr/bin:/bin"
WIDTH = 4
DODO = """
from rules.tasks import Yard
yard = Yard("models.toml")
DOIT_CONFIG = yard.config
task_graph = yard.tasks
"""
HEAD = """
[defaults]
flags = "cpu"
model_size = "512x256"
cameras = ["1928x1208", "1344x760"]
frame_skip = 4
[toolchains.default]
tinygrad = "0.14.0"
[flags.cpu]
DEV = "CPU:X86"
CC = "echo"
FLOAT16 = 1
IMAGE = 0
NUM_CPU_THREADS = 1
PARALLEL = 0
"""
# What a compile must not inherit; the same names that have shipped wrong artifacts.
HOSTILE = {
    "DEV": "CUDA",
    "WARP_DEV": "QCOM",
    "IMAGE": "2",
    "FLOAT16": "0",
    "NOLOCALS": "1",
    "OPENPILOT_HACKS": "1",
    "DEBUG": "7",
    "BEAM": "2",
    "NOOPT": "1",
    "NUM_CPU_THREADS": "7",
    "PARALLEL": "3",
    "PYTHONHASHSEED": "77",
    "CC": "/nonexistent/cc",
    "CACHEDB": "/nonexistent/cache.db",
    "LC_ALL": "C",
}


def generated(architecture: str, *, seed: int = 1, width: int = WIDTH) -> str:
    """A source line of the catalog."""
    return (
        f'source = {{ kind = "generated", architecture = "{architecture}", seed = {seed}, width = {width} }}\n'
    )


def model(model_id: str, source: str, *extra: str, name: str | None = None) -> str:
    """One model's table; `source` and `extra` are lines of TOML."""
    lines = [
        f"[models.{model_id}]",
        f'name = "{name or model_id.title()}"',
        'version = "v11"',
        'series = "Trees"',
        'released = "2026-03-02"',
        *extra,
        source,
    ]
    return "\n".join(lines) + "\n"


class Project:
    """A folder with models.toml and dodo.py, and its workspace in `artifacts/`."""

    def __init__(self, folder: Path, catalog: str = "") -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dodo.py").write_text(DODO)
        if catalog:
            self.catalog = catalog

    @property
    def catalog(self) -> str:
        """models.toml after its head of flags and defaults."""
        return (self.folder / "models.toml").read_text().removeprefix(HEAD)

    @catalog.setter
    def catalog(self, text: str) -> None:
        (self.folder / "models.toml").write_text(HEAD + text)

    def edit(self, old: str, new: str) -> None:
        """Replace the one place in models.toml that reads `old`."""
        path = self.folder / "models.toml"
        text = path.read_text()
        assert text.count(old) == 1, (old, text)
        path.write_text(text.replace(old, new))

    @property
    def workspace(self) -> Path:
        """Where everything is built."""
        return self.folder / "artifacts"

    def path(self, relative: str) -> Path:
        """A workspace path."""
        return self.workspace / relative

    def doit(
        self, *arguments: str, fails: bool = False, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run doit in the folder; asserts that it ended well, or ill when `fails`."""
        done = subprocess.run(
            [sys.executable, "-m", "doit", *arguments],
            cwd=self.folder,
            env={"PATH": PATH, "HOME": str(self.folder), **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done

    def made(self, *arguments: str, **options: Any) -> list[str]:
        """Run doit; the tasks that it carried out, sorted."""
        lines = self.doit(*arguments, **options).stdout.splitlines()
        return sorted(line.split()[1] for line in lines if line.startswith("✓"))

    def record(self, name: str) -> dict[str, Any]:
        """One record of `results/`."""
        found: dict[str, Any] = json.loads(self.path(f"results/{name}.json").read_text())
        return found

    def files(self, folder: str = "") -> dict[str, bytes]:
        """Every visible file under a workspace folder: path within it → bytes."""
        top = self.path(folder)
        paths = (path for path in sorted(top.rglob("*")) if path.is_file())
        named = {path.relative_to(top).as_posix(): path for path in paths}
        return {name: path.read_bytes() for name, path in named.items() if not name.startswith(".store")}

    def copy(self, folder: Path) -> "Project":
        """A copy, workspace and store included, that shares no inode with this one."""
        shutil.copytree(self.folder, folder)
        return Project(folder)


def copied_rules(folder: Path) -> dict[str, str]:
    """A copy of the package that a test may edit; the environment that makes doit import it."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "rules", folder / "rules", ignore=ignored)
    shutil.copytree(ROOT / "schemas", folder / "schemas", ignore=ignored)
    return {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}


def with_tinygrad(script: Path, *arguments: object) -> str:
    """Run a script in a fresh process on the CPU, as a runtime would; returns what it printed."""
    flags = {"DEV": "CPU:X86", "CC": "echo", "IMAGE": "0", "NUM_CPU_THREADS": "1", "PARALLEL": "0"}
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={"PATH": PATH, "HOME": os.environ.get("HOME", "/"), "CACHELEVEL": "0", **flags},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
