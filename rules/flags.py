"""Which flags a toolchain reads, the kind of value each takes, and what a set comes to with its ancestors.

The table is our own: some flags are read by compile scripts or by later tinygrads, and a misspelt flag is
silently ignored by all of them. Nothing here reads the environment.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

Table = Mapping[str, Any]

DEVICES = ("AMD", "CL", "CPU", "CUDA", "DSP", "HIP", "METAL", "NULL", "NV", "PYTHON", "QCOM", "WEBGPU")
SETTINGS = ("absent", "extends", "requires", "tolerance", "unchecked")  # keys of a set that are no flags
ON_BOARD = ("QCOM",)  # what a device has without any external GPU; a PC may stand for one that has
CPU_PINS = ("NUM_CPU_THREADS", "PARALLEL")
TARGET = re.compile(
    r"(?:[A-Z][A-Z0-9]*(?::[0-9,-]*)?\+)?([A-Z][A-Z0-9]*)(?::[A-Z0-9_]*(?::[\w,.+=-]*)?)?", re.ASCII
)
WORD = re.compile(r"[^\s,\x00-\x1f\x7f]+")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Kind(NamedTuple):
    """What a flag takes: `expected` in words, and the test of a TOML value."""

    expected: str
    accepts: Callable[[object], bool]


class Fault(NamedTuple):
    """One thing wrong with one flag; `near` is the value or name that was probably meant."""

    name: str
    found: object
    expected: str
    near: str | None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _real(value: object) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


def _switch(value: object) -> bool:
    return isinstance(value, int) and value in (0, 1)


def _word(value: object) -> bool:
    return isinstance(value, str) and WORD.fullmatch(value) is not None


def _target(value: object) -> bool:
    return isinstance(value, str) and all(_one_target(part) for part in value.split(";"))


def _one_target(text: str) -> bool:
    match = TARGET.fullmatch(text)
    return match is not None and match[1] in DEVICES


def _words(value: object) -> bool:
    parts = value if isinstance(value, list) else value.split(",") if isinstance(value, str) else [None]
    return all(_word(part) for part in parts)


def _anything(value: object) -> bool:
    text = isinstance(value, str) and CONTROL.search(value) is None
    return text or isinstance(value, bool) or _real(value) or (isinstance(value, list) and _words(value))


SWITCH = Kind("0 or 1", _switch)
INTEGER = Kind("a whole number", _whole)
NUMBER = Kind("a number", _real)
NAME = Kind("one word", _word)
DEVICE = Kind(f'a device target such as "CPU:X86" or "USB+AMD:LLVM" (devices: {", ".join(DEVICES)})', _target)
LIST = Kind("a list of words, or words separated by commas", _words)
UNCHECKED = Kind("a number, true, false, a list of words, or text without control characters", _anything)

_SWITCHES = """
AMD_DISABLE_SDMA ALIGNED ALLOW_DEVICE_USAGE ALLOW_HALF8 ALLOW_TF32 ALLREDUCE_CAST ASSERT_COMPILE BEAM_ESTIMATE
BEAM_PADTO BEAM_STRICT_MODE CAPTURE_PROCESS_REPLAY CAPTURING CCACHE DISABLE_FAST_IDIV DISALLOW_BROADCAST
EXPAND_SSA FLOAT16 FUSE_OPTIM GMMU GRAPH_ONE_KERNEL IGNORE_BEAM_CACHE IGNORE_JIT_FIRST_BEAM LATE_ALLREDUCE LRU
MV NOLOCALS NOOPT NO_COLOR NO_HIPCC NO_MEMORY_PLANNER NULL_ALLOW_COPYOUT OPENPILOT_HACKS SCACHE SPLIT_REDUCEOP
TRAINING TUPLE_ORDER UNSAFE_ALLOW_JIT_BUFFER UPAT_COMPILE USE_ATOMICS VALIDATE_WITH_CPU VFIO WINO
"""
_INTEGERS = """
ALL2ALL AMD_AQL AMD_KFD_QUEUE_PRIORITY AMD_SDMA_BIND AM_DEBUG AM_RESET ASYNC_COPY_WORKERS BEAM BEAM_DEBUG
BEAM_DEV_TIMEOUT BEAM_LOCAL_MAX BEAM_MAX_TASKS_PER_CHILD BEAM_TIMEOUT_SEC BEAM_UOPS_MAX BEAM_UPCAST_MAX
CACHELEVEL CHECK_OOB DEBUG DEBUG_RANGEIFY HCQDEV_WAIT_TIMEOUT_MS HCQ_NUM_SDMA IMAGE JIT JITBEAM JIT_BATCH_SIZE
LLVMOPT MAX_BUFFER_SIZE MAX_KERNEL_BUFFERS MV_BLOCKSIZE MV_ROWS_PER_THREAD MV_THREADS_PER_ROW NUM_CPU_THREADS
NV_DEBUG OCCUPANCY_FLOOR PARALLEL PCONTIG PMA PMC PROFILE QCOM_PRIORITY REDUCEOP_SPLIT_SIZE
REDUCEOP_SPLIT_THRESHOLD REWRITE_STACK_LIMIT RING RING_ALLREDUCE_THRESHOLD SPEC SQTT SQTT_ITRACE_SE_MASK
SQTT_LIMIT_SE SQTT_SIMD_SEL SQTT_TOKEN_EXCLUDE TC TC_OPT TC_SELECT THREADS TRACEMETA TRACK_MATCH_STATS
TRANSCENDENTAL VIZ
"""
TINYGRAD: dict[str, dict[str, Kind]] = {
    "0.14.0": {
        "DEV": DEVICE,
        "HCQ_RUNTIME_DEV": DEVICE,
        "EMULATED_DTYPES": LIST,
        "HCQ_VISIBLE_DEVICES": LIST,
        **dict.fromkeys(_SWITCHES.split(), SWITCH),
        **dict.fromkeys(_INTEGERS.split(), INTEGER),
        **dict.fromkeys(("AM_POWER_LIMIT", "BEAM_MIN_PROGRESS"), NUMBER),
        **dict.fromkeys(("CC", "DEFAULT_FLOAT", "DEFAULT_INT", "EMULATE", "OPTIM_DTYPE", "SUM_DTYPE"), NAME),
    }
}
SCRIPTS = {"WARP_DEV": DEVICE, "FRAME_DEV": DEVICE, "TC_MIN_GLOBALS": INTEGER, "QCOM_PRIORITY": INTEGER}


def known(pins: Iterable[str | None]) -> dict[str, Kind]:
    """Every flag that the tinygrads of `pins`, or the compile scripts, read.

    A pin that the table lacks (None is a directory or a git commit) counts as the newest that it holds.
    """
    newest = TINYGRAD[max(TINYGRAD, key=_release)]
    tables = [TINYGRAD.get(pin, newest) if pin else newest for pin in pins] or [newest]
    return {name: kind for table in [*tables, SCRIPTS] for name, kind in table.items()}


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The one of `names` that `word` is most likely a slip for, or None."""
    import difflib

    folded = {name.casefold(): name for name in sorted(names, reverse=True)}
    close = difflib.get_close_matches(word.casefold(), sorted(folded), n=1)
    return folded[close[0]] if close else None


def own(table: Table) -> dict[str, Any]:
    """The flags that one set's own table gives, without what it extends."""
    return {name: value for name, value in table.items() if name not in SETTINGS}


def check(values: Table, table: Mapping[str, Kind], unchecked: Collection[str]) -> list[Fault]:
    """Unknown names and values of the wrong kind in `values`, a flag set's own TOML values.

    `table` is what `known` gives; a name in `unchecked` may be unknown to it.
    """
    faults = []
    for name, value in values.items():
        kind = table.get(name, UNCHECKED if name in unchecked else None)
        if kind is None:
            faults.append(_unknown(name, table))
        elif not kind.accepts(value):
            faults.append(Fault(name, value, kind.expected, _meant(value, kind)))
    return faults


def _unknown(name: str, table: Mapping[str, Kind]) -> Fault:
    expected = f'a flag that the toolchain reads, or unchecked = ["{name}"] beside it'
    return Fault(name, None, expected, nearest(name, table))


def _meant(value: object, kind: Kind) -> str | None:
    """The accepted value that a refused one spells: a quoted number, a device in lower case."""
    if isinstance(value, bool):
        return str(int(value)) if kind.accepts(int(value)) else None
    if not isinstance(value, str):
        return None
    if re.fullmatch(r"-?[0-9]{1,18}", value) and kind.accepts(int(value)):
        return str(int(value))
    if kind is not DEVICE:
        return None
    device = nearest(value, DEVICES)
    return next((text for text in (value.upper(), device) if text and kind.accepts(text)), None)


def lineage(tables: Mapping[str, Table], name: str, key: str) -> list[str]:
    """`name`, then the name that its `key` holds, and so on to the root.

    Ends before a name that `tables` lacks. In a cycle, the last name is one that already stands in the list.
    """
    trail = [name]
    while (parent := tables[trail[-1]].get(key)) is not None and isinstance(parent, str) and parent in tables:
        trail.append(parent)
        if parent in trail[:-1]:
            break
    return trail


def inherited(tables: Mapping[str, Table], name: str, parent: str, key: str) -> str | None:
    """The text under `key` of the table `name`, else of the nearest one up its chain of `parent`."""
    found = (tables[ancestor].get(key) for ancestor in lineage(tables, name, parent))
    return next((value for value in found if isinstance(value, str)), None)


def gathered(tables: Mapping[str, Table], name: str, key: str) -> set[str]:
    """The names listed under `key` (`unchecked`, `absent`) by a set or by any set that it builds on."""
    lists = (tables[ancestor].get(key) for ancestor in lineage(tables, name, "extends"))
    return {entry for names in lists if isinstance(names, list) for entry in names if isinstance(entry, str)}


def resolve(tables: Mapping[str, Table], name: str) -> tuple[dict[str, str], str | None]:
    """The environment a set stands for, sorted by name, and what it `requires` of a builder.

    The nearest table wins; a name under `absent` is taken out. The sets must hold no cycle.
    """
    values: dict[str, Any] = {}
    for ancestor in reversed(lineage(tables, name, "extends")):
        values |= own(tables[ancestor])
    requires = inherited(tables, name, "extends", "requires")
    absent = gathered(tables, name, "absent")
    return {flag: text(values[flag]) for flag in sorted(values) if flag not in absent}, requires


def tolerance(tables: Mapping[str, Table], name: str) -> dict[str, float]:
    """The tolerances of a set by head, its ancestors' included; the nearest table wins."""
    found: dict[str, float] = {}
    for ancestor in reversed(lineage(tables, name, "extends")):
        found |= tables[ancestor].get("tolerance", {})
    return found


def text(value: object) -> str:
    """A TOML value as the environment holds it."""
    if isinstance(value, list):
        return ",".join(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def device(target: str) -> str:
    """The device that a target names: "CPU:X86" is CPU, "USB+AMD:LLVM" is AMD; of several, the first."""
    return target.split(";", 1)[0].rpartition("+")[2].split(":", 1)[0]


def is_external(target: str) -> bool:
    """Whether a target is a GPU on a bus of its own beside the device: "USB+AMD:LLVM"."""
    return target.split(";", 1)[0].partition(":")[0].startswith("USB+")


def missing_pins(values: Table) -> list[str]:
    """The pins that a resolved set lacks: none unless it compiles something for the CPU."""
    devices = {device(str(values.get(name, ""))) for name in ("DEV", "WARP_DEV")}
    return [name for name in CPU_PINS if name not in values] if "CPU" in devices else []
