"""What an honest artifact imports and calls; everything else is named.

A pickle runs whatever it can name, so the list holds names, not modules: `tinygrad.helpers` also has `os`
inside it, and a dotted name would reach it. Trust ends at loading: an artifact holds machine code, which
whoever replays it runs.
"""

import re
from typing import Any

CALLABLE = frozenset(
    {
        "_codecs.encode",
        "builtins.bytearray",
        "builtins.bytes",
        "builtins.complex",
        "builtins.frozenset",
        "builtins.range",
        "builtins.set",
        "builtins.slice",
        "collections.OrderedDict",
        "collections.defaultdict",
        "collections.deque",
        "copyreg.__newobj__",
        "copyreg._reconstructor",
        "functools.partial",
        "numpy.core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy.core.numeric._frombuffer",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "numpy._core.numeric._frombuffer",
        "numpy.dtype",
        "numpy.ndarray",
    }
)
# Fine as a class to name (of a defaultdict, say); called from a pickle they turn a few bytes into gigabytes.
NAMED = frozenset(
    f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "object", "str", "tuple")
)
CHECKED = NAMED | {
    "builtins.bytearray",
    "builtins.bytes",
    "builtins.set",
    "builtins.frozenset",
    "_codecs.encode",
}
CHECKED |= {"collections.deque", "collections.OrderedDict", "functools.partial", "copyreg._reconstructor"}

# tinygrad's own data classes, in whatever version: a class name in a module that holds the graph. Its
# runtime, its servers and its file readers are no part of a captured JIT.
_MODULES = re.compile(
    r"tinygrad\.(codegen|device|dtype|engine\.(jit|memory|realize|schedule)|function|helpers|lazy|multi|ops|renderer"
    r"|schedule|shape|tensor|uop)(\.\w+)*"
)
_CLASS = re.compile(r"_?[A-Z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")
_NOT_DATA = frozenset(
    {
        "Any",
        "Callable",
        "CPUProgram",
        "Path",
        "PatternMatcher",
        "Process",
        "Profiling",
        "ThreadPoolExecutor",
        "UPat",
    }
)

BUFFER = "Buffer"
DEVICES = 64  # of one buffer, as many as anyone has
DEVICE = re.compile(
    r"(AMD|CL|CLANG|CPU|CUDA|DSP|GPU|HIP|HSA|LLVM|METAL|NPY|NULL|NV|PYTHON|QCOM|RHIP|TINYGPU|USB|WEBGPU)"
    r"(:[A-Za-z0-9]{1,16}){0,2}"
)


def import_fault(module: str, short: str) -> str | None:
    """Why importing `module.short` is suspicious; None when it is not."""
    name = f"{module}.{short}"
    if name in CALLABLE or name in NAMED:
        return None
    if _MODULES.fullmatch(module) and _CLASS.fullmatch(short) and short not in _NOT_DATA:
        return None
    return f"suspicious global {name[:200]}"


def is_checked(module: str, short: str) -> bool:
    """Whether calls of `module.short` go to `call_fault`."""
    return f"{module}.{short}" in CHECKED or short == BUFFER


def call_fault(name: str, arguments: Any) -> str | None:
    """Why calling `name`, an `is_checked` one, with `arguments` is suspicious; None when it is not."""
    given = arguments if isinstance(arguments, tuple) else (arguments,)
    first = given[0] if given else None
    if name.endswith(f".{BUFFER}"):
        return device_fault(first)
    if name in NAMED:
        return f"suspicious call of {name}"
    if name == "functools.partial":
        honest = type(first).__name__ == "Global"
    elif name == "_codecs.encode":
        honest = len(given) == 2 and given[1] in ("latin1", "latin-1")
    elif name == "copyreg._reconstructor":
        honest = type(first).__name__ == "Global"
    else:
        # A number here means "this many zero bytes", and a range or another call can be just as long.
        honest = (
            not given or isinstance(first, list | tuple | str) or type(first).__name__ in ("Payload", "Made")
        )
        honest = honest and not (type(first).__name__ == "Made" and _is_range(first))
    return None if honest else f"suspicious call of {name}"


def device_fault(device: Any) -> str | None:
    """Why a buffer on `device` is suspicious: loading one on DISK opens the file that its name holds."""
    names = device if isinstance(device, tuple) else (device,)
    for name in names if len(names) <= DEVICES else ("too many",):
        if not isinstance(name, str) or not DEVICE.fullmatch(name.upper()):
            return f"suspicious device {str(name)[:80]!r}"
    return None


def state_fault(name: str, fields: list[Any]) -> str | None:
    """Why setting `fields` (names and values in turn) on a `name` is suspicious; None when it is not."""
    if not name.endswith(".BufferSpec"):
        return None
    if len(fields) > 2 * DEVICES:
        return "suspicious BufferSpec of too many fields"
    pointers = [value for key, value in zip(fields[::2], fields[1::2], strict=False) if key == "external_ptr"]
    return "suspicious BufferSpec with an external pointer" if any(p is not None for p in pointers) else None


def _is_range(made: Any) -> bool:
    return getattr(made.of, "name", None) == "builtins.range"
