"""Really loads pickles, each in a child of its own, and tells what the loading touched.

`python sandbox.py make FILE` writes a small captured JIT to FILE. `python sandbox.py serve` imports tinygrad
once, then reads paths from its standard input and answers each with a line of JSON. The children cannot write
files, have no network where the kernel lets them give it up, and little memory and time.
"""

import ctypes
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

# Events of Python's audit hook that building data raises; every other one is told.
HARMLESS = frozenset(
    {
        "array.__new__",
        "builtins.id",
        "code.__new__",
        "compile",
        "ctypes.PyObj_FromPtr",
        "ctypes.addressof",
        "ctypes.addressof/1",
        "ctypes.cdata",
        "ctypes.cdata/buffer",
        "ctypes.create_string_buffer",
        "ctypes.dlopen",
        "ctypes.dlsym",
        "ctypes.string_at",
        "exec",
        "gc.get_objects",
        "marshal.loads",
        "mmap.__new__",
        "object.__delattr__",
        "object.__getattr__",
        "object.__setattr__",
        "os.listdir",
        "os.scandir",
        "pickle.find_class",
        "sys._getframe",
        "sys.excepthook",
        "sys.unraisablehook",
    }
)
NODES = ("/dev/kgsl", "/dev/kfd", "/dev/dri", "/dev/nvidia", "/dev/ion", "/dev/null")
KNOWN = (
    "tinygrad",
    "numpy",
    "_codecs",
    "encodings",
    "ctypes",
    "collections",
    "builtins",
    "copyreg",
    "functools",
)
MEMORY, SECONDS = 8 << 30, 20


def touch(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What an audit event says that data has no business doing; None for building data."""
    if event == "open":
        path, mode, flags = arguments
        writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (flags or 0) & (
            os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
        )
        if not writes or isinstance(path, int) or str(path).startswith(NODES):
            return None
        return f"writes {path}"
    if event == "import":
        home = str(arguments[0]).split(".")[0]
        return None if home in KNOWN or home in sys.stdlib_module_names else f"imports {arguments[0]}"
    if event == "pickle.find_class" and not str(arguments[0]).startswith(KNOWN):
        return f"names {arguments[0]}.{arguments[1]}"
    if event == "subprocess.Popen" and arguments[0] == ENVIRONMENT["CC"]:
        return None  # opening a CPU starts the compiler that the loader's own environment names
    return None if event in HARMLESS else f"{event} {arguments!r}"[:200]


def _confine() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ctypes.CDLL(None).unshare(0x40000000 | 0x10000000)  # a network and users of its own, if it may


def _load(path: str, answer: int) -> None:
    """Load in this process and write what that touched to `answer`. Never returns."""
    touched: list[str] = []
    _confine()
    content = Path(path).read_bytes()
    end = "loaded"
    watching = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watching and (told := touch(event, arguments)) and len(touched) < 10:
            touched.append(told)

    sys.addaudithook(hook)
    try:
        loaded = pickle.loads(content)
        del loaded
    except BaseException as error:
        end = type(error).__name__
    watching = False
    os.write(answer, json.dumps({"end": end, "touched": touched}).encode())
    os._exit(0)


def _answer(path: str) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _load(path, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(told) if told else {"end": f"status {status}", "touched": []}


def serve() -> None:
    """Answer each path on standard input."""
    import numpy
    from tinygrad import Device, Tensor

    Tensor([1.0]).to("CPU").realize()
    assert Device["NPY"] and Device["PYTHON"] and Device["NULL"] and numpy
    for line in sys.stdin:
        print(json.dumps(_answer(line.rstrip("\n"))), flush=True)


def make(path: str) -> None:
    """Capture a small JIT with a weight and an input, and pickle it."""
    from tinygrad import Tensor, TinyJit

    weight = Tensor([1.0, 2.0, 3.0, 4.0]).realize()

    @TinyJit
    def run(x: Any) -> Any:
        return ((x + weight).relu().sum() * 2).realize()

    for value in (1.0, 2.0, 3.0):
        run(x=Tensor([value] * 4).realize())
    Path(path).write_bytes(pickle.dumps(run))


class Sandbox:
    """The serving process; use it as a context."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=ENVIRONMENT,
        )

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def load(self, path: Path) -> dict[str, Any]:
        """How loading `path` ended, and what it touched."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "DEV": "CPU:X86",
    "CC": "echo",
    "CACHELEVEL": "0",
    "PYTHONHASHSEED": "0",
    "HOME": "/nonexistent",
}


def made(path: Path) -> None:
    """Have a child write a small captured JIT to `path`."""
    subprocess.run([sys.executable, __file__, "make", str(path)], check=True, env=ENVIRONMENT)


if __name__ == "__main__":
    make(sys.argv[2]) if sys.argv[1] == "make" else serve()
