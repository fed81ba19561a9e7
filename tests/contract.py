"""Small projects to build in tests: a catalog, a dodo.py, models with the real contract, doit as a child."""

import base64
import contextlib
import io
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATH = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")  # of which `env -i` leaves nothing
WIDTH = 4
OPERATORS = "MODELYARD_TEST_OPERATORS"
COMPILING = ("", "candidate", "pkl", "monitoring", "parts", "manifest", "release")
DODO = """
from rules.tasks import Yard
yard = Yard("models.toml")
DOIT_CONFIG = yard.config
task_graph = yard.tasks
"""
HEAD = """\
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


# Python in a process whose system calls a list `rules` of (code, jump if true, jump if false, value) filters;
# exit code 77 where the system takes none. See seccomp(2).
FILTERED = """
import ctypes, os, struct, sys
code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
buffer = ctypes.create_string_buffer(code)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
program = Program(len(rules), ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit(77)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def generated(architecture: str, *, seed: int = 1, width: int = WIDTH) -> str:
    """A source line of the catalog."""
    options = f'kind = "generated", architecture = "{architecture}", seed = {seed}, width = {width}'
    return f"source = {{ {options} }}\n"


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


@contextlib.contextmanager
def known_operators(workspace: Path) -> Iterator[None]:
    """Nodes that another workspace of this test run has held are known in a new one, as in a copy of it.

    Only what passed is kept there, under all that decides. `OPERATORS` names the folder; without it every
    workspace holds its own.
    """
    shared, own = os.environ.get(OPERATORS), workspace / ".store" / "operators"
    if not shared or workspace.is_symlink() or own.parent.is_symlink():
        yield
        return
    if not own.exists():
        _add(Path(shared), own)
    yield
    _add(own, Path(shared))


def _add(source: Path, target: Path) -> None:
    with contextlib.suppress(OSError):  # a test's disk may be full, or read-only
        for path in sorted(source.rglob("*.json")):
            final = target / path.relative_to(source)
            if not final.exists():
                final.parent.mkdir(parents=True, exist_ok=True)
                temporary = final.with_name(f"{final.name}.{os.getpid()}")
                shutil.copyfile(path, temporary)
                temporary.replace(final)


class Project:
    """A folder with models.toml and dodo.py, and its workspace, in `artifacts/` unless told otherwise."""

    def __init__(self, folder: Path, catalog: str = "", workspace: Path | None = None) -> None:
        self.folder = folder
        self.workspace = workspace or folder / "artifacts"
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
    def environment(self) -> dict[str, str]:
        """What doit runs in."""
        elsewhere = self.workspace != self.folder / "artifacts"
        chosen = {"MODELS_WORKSPACE": str(self.workspace)} if elsewhere else {}
        return {"PATH": PATH, "HOME": str(self.folder), "PYTHONPATH": str(ROOT), **chosen}

    def path(self, relative: str) -> Path:
        """A workspace path."""
        return self.workspace / relative

    def doit(
        self, *arguments: str, fails: bool = False, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run doit in the folder; asserts that it ended well, or ill when `fails`."""
        done = self.doit_any(*arguments, env=env)
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done

    def doit_any(
        self, *arguments: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run doit in the folder, however it ends."""
        first = arguments[0].partition(":")[0] if arguments else ""
        compiles = first in COMPILING or arguments[:2] == ("-n", "2")
        with known_operators(self.workspace) if compiles else contextlib.nullcontext():
            return self._run(arguments, env)

    def _run(
        self, arguments: Sequence[str], env: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "doit", *arguments],
            cwd=self.folder,
            env={**self.environment, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )

    @contextlib.contextmanager
    def standing_still(self, task: str, *arguments: str) -> Iterator[int]:
        """A run that was stopped when it began a task, so that it holds the workspace; its process."""
        child = subprocess.Popen(
            [sys.executable, "-m", "doit", *arguments],
            cwd=self.folder,
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert child.stdout is not None
        try:
            assert any(f"…  {task}" in line for line in child.stdout)
            os.killpg(child.pid, signal.SIGSTOP)
            yield child.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()

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


class OnlySlices(pickle.Unpickler):
    """Admits what `output_slices` may hold."""

    def find_class(self, module: str, name: str) -> Any:
        """`builtins.slice`, and nothing else."""
        assert (module, name) == ("builtins", "slice")
        return slice


def interface(path: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, slice]]:
    """Input shapes of an ONNX file in its order, and its output slices."""
    import onnx

    network = onnx.load(path)
    shapes = {
        one.name: tuple(d.dim_value for d in one.type.tensor_type.shape.dim) for one in network.graph.input
    }
    (text,) = (entry.value for entry in network.metadata_props if entry.key == "output_slices")
    return shapes, OnlySlices(io.BytesIO(base64.b64decode(text))).load()


def with_tinygrad(script: Path, *arguments: object, options: tuple[str, ...] = (), **variables: str) -> str:
    """Run a script in a fresh process on the CPU, as a runtime would; returns what it printed."""
    flags = {"DEV": "CPU:X86", "CC": "echo", "IMAGE": "0", "NUM_CPU_THREADS": "1", "PARALLEL": "0"}
    done = subprocess.run(
        [sys.executable, *options, str(script), *map(str, arguments)],
        env={"PATH": PATH, "HOME": os.environ.get("HOME", "/"), "CACHELEVEL": "0", **flags, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def as_client(client: str, folder: Path, artifact: Path) -> tuple[dict[str, Any], Any]:
    """Let a runtime of tests/clients/ drive an artifact: what it told, and its outputs by name.

    Nothing but tinygrad, numpy and the made-up frames can be imported there.
    """
    import numpy as np

    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    own = Path(np.__file__).parents[1]
    for name in ("tinygrad", "numpy", "numpy.libs"):
        if (own / name).exists() and not (site / name).exists():
            (site / name).symlink_to(own / name)
    (site / "contract.py").write_bytes(Path(__file__).read_bytes())
    out = folder / f"{artifact.stem}.npz"
    script = ROOT / "tests/clients" / f"{client}.py"
    told = json.loads(with_tinygrad(script, artifact, out, options=("-S",), PYTHONPATH=str(site)))
    assert not [name for name in told["modules"] if name.partition(".")[0] in ("rules", "onnx")]
    return told, np.load(out)


# ---- what a runtime feeds, from a seed: the same numbers in the test and in the child that it starts


def frame(step: int, wide: bool, size: int) -> Any:
    """One NV12 frame of noise, uint8 (size,): any pixel taken from the wrong place shows."""
    import numpy as np

    return np.random.RandomState(2 * step + wide).randint(0, 256, size, dtype=np.uint8)


def matrix(step: int, wide: bool, camera: tuple[int, int], output: tuple[int, int]) -> Any:
    """A warp with perspective that leaves the frame on every side, float32 (3, 3).

    That of step 2 is exact, and puts luma columns and chroma lines halfway between two pixels.
    """
    import numpy as np

    if step == 2:
        return np.array([[2, 0, 0.5], [0, 2, 1], [0, 0, 1]], np.float32)
    random = np.random.RandomState(1000 + 2 * step + wide)
    scale = np.diag([1.1 * camera[0] / output[0], 1.1 * camera[1] / output[1], 1])
    shift = np.array([[0, 0, -0.05 * camera[0]], [0, 0, -0.05 * camera[1]], [0, 0, 0]])
    bend = random.uniform(-1, 1, (3, 3)) * np.array([[0.1, 0.1, 20], [0.1, 0.1, 20], [2e-4, 2e-4, 0]])
    return (scale + shift + bend).astype(np.float32)


def desire(step: int) -> Any:
    """The desire of one frame, float32 (8,): a pulse that lasts a single frame, now and then."""
    import numpy as np

    pulse = np.zeros(8, np.float32)
    pulse[step % 8] = step % 3 == 1
    return pulse


def packed_part(step: int, name: str, shape: tuple[int, ...]) -> Any:
    """One other policy input of one frame, float32 of `shape`."""
    import zlib

    import numpy as np

    return (
        np.random.RandomState(zlib.crc32(f"{name}{step}".encode())).uniform(-1, 1, shape).astype(np.float32)
    )
