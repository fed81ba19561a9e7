"""Reading tinygrad's objects from a described pickle: what each JIT was captured on, takes and runs.

Class shapes differ between tinygrad versions, and operations are bare numbers whose meaning moves, so an
operation is known by what it carries: a compiled kernel by its ProgramInfo, an input by its slot.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from rules.counting import counted
from rules.inspection.effects import DEVICE
from rules.inspection.values import Frozen, Global, Made, Mapping, Members, Nodes, Payload, Plain, name_of
from rules.inspection.whole import Damage

TINYGRAD = "0.14.0"
JITS = ("TinyJit", "_TinyJit")
CAPTURED = "CapturedJit"
DTYPES = {
    "bool": "bool",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "uint8",
    "short": "int16",
    "unsigned short": "uint16",
    "int": "int32",
    "unsigned int": "uint32",
    "long": "int64",
    "unsigned long": "uint64",
    "half": "float16",
    "__bf16": "bfloat16",
    "float": "float32",
    "double": "float64",
}
SIZE = 1 << 40  # of one dimension; a larger one is no shape
ARGUMENTS = 16  # of a constructor that are looked at; no version takes more
NODES = 20_000  # of one kernel's graph that are looked at
KINDS = 500  # how many class shapes are told apart

# How 0.14.0 pickles its classes: numbers of constructor arguments, and the fields that are set afterwards.
SHAPES: dict[str, tuple[set[int], str]] = {
    "_TinyJit": ({2}, ""),
    "CapturedJit": ({4}, ""),
    "UOp": ({6, 7}, ""),
    "Ops": ({1}, ""),
    "DType": ({4}, ""),
    "Buffer": ({7, 10}, ""),
    "BufferSpec": ({0}, "uncached cpu_access host nolru zero external_ptr"),
    "MultiBuffer": ({0}, "bufs"),
    "Tensor": ({0}, "uop is_param grad"),
    "CallInfo": ({5}, ""),
    "ParamArg": ({0}, "slot dtype vmin_vmax multiple_of name addrspace axis device volatile"),
    "ProgramInfo": ({0}, "name global_size local_size vars globals outs ins target"),
    "KernelInfo": ({0}, "name axis_types dont_use_locals applied_opts opts_to_apply estimates beam"),
    "Target": ({0}, "device renderer arch interface indices"),
    "Estimates": ({0}, "ops lds mem"),
    "Opt": ({0}, "op axis arg"),
    "OptOps": ({1}, ""),
    "AxisType": ({1}, ""),
    "AddrSpace": ({1}, ""),
    "ConstFloat": ({1}, "bits"),
    "InvalidType": ({0}, ""),
    "Metadata": ({0}, "name caller backward"),
    "Register": ({0}, "name index size _cons"),
    "X86Ops": ({1}, ""),
}


@dataclass(frozen=True)
class Input:
    """One input of a JIT; `shape` is None where the artifact does not say it."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str
    device: str


@dataclass(frozen=True)
class Jit:
    """One captured JIT: where its buffers live, how it is called, how many different kernels it has.

    `objects` counts what its description holds.
    """

    label: str
    devices: tuple[str, ...]
    arguments: tuple[str, ...]
    inputs: tuple[Input, ...]
    kernels: int
    weights_bytes: int
    objects: int

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


def entries(value: Any) -> list[tuple[Any, Any]]:
    """Keys and values of a dict."""
    flat = value.flat if isinstance(value, Mapping) else []
    return list(zip(flat[::2], flat[1::2], strict=False))


def at(value: Any, key: str) -> Any:
    """What a dict holds under a text; None when nothing."""
    return value.texts.get(key) if isinstance(value, Mapping) else None


def state_of(value: Any) -> Any:
    """The fields set on an object: a dict, also of a class with slots."""
    state = value.state if isinstance(value, Made) else None
    if isinstance(state, tuple) and len(state) == 2:
        state = state[1] if isinstance(state[1], Mapping) else state[0]
    return state


def inside(root: Any) -> Iterator[Made]:
    """Every object reachable from `root`, each once, without recursion."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kind = type(value)
        if kind is Made:
            yield value
            held: Any = (value.of, value.arguments, value.state, value.items)
        else:
            held = value.flat if kind is Mapping else value if kind in HOLDERS else ()
        todo += [one for one in held if type(one) in HOLDERS]


HOLDERS = frozenset({Made, Mapping, list, tuple, Plain, Nodes, Members, Frozen})


def arguments_of(value: Any) -> tuple[Any, ...]:
    """The first constructor arguments, none where they are not a tuple."""
    given = value.arguments if isinstance(value, Made) else ()
    return given[:ARGUMENTS] if isinstance(given, tuple) else ()


def jit_of(label: str, jit: Any, most: int) -> Jit | None:
    """What the described TinyJit `jit` captured; None when it is no TinyJit or has no capture.

    Raises Damage when it reaches more than `most` objects.
    """
    captured = next((one for one in arguments_of(jit) if name_of(one) == CAPTURED), None)
    if name_of(jit) not in JITS or captured is None:
        return None
    made = list(islice(inside(captured.arguments), most + 1))
    if len(made) > most:
        raise Damage("bomb", f"pickle bomb: {label} shares its objects with too many other JITs")
    names = _names(captured)
    inputs = tuple(_inputs(captured, names, made))
    devices = {device for one in made for device in devices_of(one)} | {one.device for one in inputs}
    return Jit(
        label=label,
        devices=tuple(sorted(devices)),
        arguments=names,
        inputs=inputs,
        kernels=_kernels(made),
        weights_bytes=sum(buffer_bytes(one) for one in made),
        objects=len(made),
    )


def _names(captured: Made) -> tuple[str, ...]:
    """The argument names: the last list of texts and numbers among the constructor's arguments."""
    lists = [one for one in arguments_of(captured) if isinstance(one, list)]
    found = [one for one in lists if one and all(type(name) in (str, int) for name in one)]
    return tuple(str(name) for name in found[-1][:256]) if found else ()


def devices_of(made: Made) -> list[str]:
    """The devices that one object names."""
    given = arguments_of(made)
    name = name_of(made)
    found: Any = None
    if name == "Buffer":
        found = given[0] if given else None
    elif name == "ParamArg":
        found = at(state_of(made), "device")
    elif name == "UOp" and len(given) > 3:
        # Before 0.14 a device was an operation of its own; since then a copy carries where it copies to.
        found = given[3] if isinstance(given[3], str) and DEVICE.fullmatch(given[3]) else None
    several = found if isinstance(found, tuple) else (found,)
    return [one for one in several[:ARGUMENTS] if isinstance(one, str)]


def _kernels(made: list[Made]) -> int:
    """Different programs; before 0.14, steps that run one."""
    programs = sum(any(name_of(part) == "ProgramInfo" for part in arguments_of(one)) for one in made)
    steps = (at(state_of(one), "prg") for one in made if name_of(one) == "ExecItem")
    return programs or sum(name_of(program) == "CompiledRunner" for program in steps)


def buffer_bytes(made: Made) -> int:
    """How many bytes of content a Buffer carries."""
    given = arguments_of(made)
    if name_of(made) != "Buffer" or len(given) < 6:
        return 0
    content = given[5]
    if name_of(content) in ("bytearray", "bytes", "PickleBuffer"):
        content = next(iter(arguments_of(content)), None)
    return content.size if isinstance(content, Payload) else 0


def _inputs(captured: Made, names: tuple[str, ...], made: list[Made]) -> Iterator[Input]:
    info = _info(captured)
    sizes = _sizes(info, made) | _older_sizes(captured)
    for index, (view, _, dtype, device) in enumerate(info):
        name = names[index] if len(names) == len(info) else str(index)
        shape = shape_of(view) or sizes.get(index)
        yield Input(name, shape, dtype_of(dtype), device if isinstance(device, str) else "?")


def _info(captured: Made) -> list[tuple[Any, Any, Any, Any]]:
    """(view, variables, dtype, device) of each input."""
    for one in reversed(arguments_of(captured)):
        if isinstance(one, list) and one and all(isinstance(i, tuple) and len(i) == 4 for i in one):
            return one[:256]
    return []


def dtype_of(dtype: Any) -> str:
    """numpy's name of a dtype."""
    spelled = next((one for one in arguments_of(dtype) if isinstance(one, str)), "?")
    return DTYPES.get(spelled, spelled[:40])


def shape_of(view: Any) -> tuple[int, ...] | None:
    """The shape of a view of an input; None when the view is the whole buffer, whose size is elsewhere."""
    given = arguments_of(view)
    if len(given) < 4 or not isinstance(given[2], tuple):
        return None
    sources, argument = given[2], given[3]
    if argument and _all_numbers(argument):
        return tuple(argument)
    return _vector(sources[1]) if len(sources) == 2 else None


def _vector(node: Any) -> tuple[int, ...] | None:
    """The numbers of a vector: in its argument (one for all lanes, or a tuple), or one in each source."""
    given = arguments_of(node)
    if len(given) < 4:
        return None
    if type(given[3]) is int:
        lanes = arguments_of(given[1])[4:5]
        return (given[3],) * (lanes[0] if lanes and type(lanes[0]) is int and 0 < lanes[0] < 16 else 1)
    if given[3] and _all_numbers(given[3]):
        return tuple(given[3])
    sources = given[2] if isinstance(given[2], tuple) else ()
    numbers = tuple(arguments_of(one)[3:4] for one in sources[:16])
    flat = tuple(one[0] for one in numbers if one)
    return flat if flat and len(flat) == len(sources) and _all_numbers(flat) else None


def _all_numbers(values: Any) -> bool:
    few = isinstance(values, tuple) and len(values) <= 16
    return few and all(type(one) is int and abs(one) < SIZE for one in values)


def _sizes(info: list[tuple[Any, Any, Any, Any]], made: list[Made]) -> dict[int, tuple[int, ...]]:
    """Shapes by index of the inputs whose parameter carries them.

    Buffers carry slots too. Parameters are the operation that has a slot, on the right device, for the most
    inputs; those inside a kernel count its own arguments, so only what calls are given is looked at.
    """
    found: dict[int, dict[int, tuple[int, ...]]] = {}
    for one in _call_arguments(made):
        operation, slot, device, shape = _parameter(one)
        if shape and 0 <= slot < len(info) and device == info[slot][3]:
            found.setdefault(operation, {})[slot] = shape
    return max(found.values(), key=len) if found else {}


def _older_sizes(captured: Made) -> dict[int, tuple[int, ...]]:
    """Sizes by index of the inputs of 2025's captures: those of the kernel arguments that they become.

    Such a capture holds steps, and a dict from (step, argument) to input.
    """
    given = arguments_of(captured)
    if len(given) != 6 or not isinstance(given[1], list) or not isinstance(given[2], Mapping):
        return {}
    found: dict[int, tuple[int, ...]] = {}
    for place, index in entries(given[2])[:256]:
        if isinstance(place, tuple) and _all_numbers(place) and len(place) == 2 and type(index) is int:
            size = _argument_size(given[1], *place)
            if size:
                found[index] = (size,)
    return found


def _argument_size(steps: list[Any], step: int, argument: int) -> int | None:
    """How many elements the kernel of `step` takes as its `argument`; None where it is a copy."""
    program = at(state_of(steps[step]), "prg") if 0 <= step < len(steps) else None
    spec = next(iter(arguments_of(program)), None)
    slots = at(state_of(spec), "globals")
    if not isinstance(slots, list) or not 0 <= argument < len(slots):
        return None
    for node in islice(inside(at(state_of(spec), "ast")), NODES):
        given = arguments_of(node)
        pointer = (
            given[1] if len(given) > 3 and name_of(node) == "UOp" and given[3] == slots[argument] else None
        )
        sized = arguments_of(pointer) if name_of(pointer) == "PtrDType" else ()
        if len(sized) > 9 and type(sized[9]) is int and 0 < sized[9] < SIZE:
            return sized[9]
    return None


def _call_arguments(made: list[Made]) -> Iterator[Made]:
    """Every operation that a captured call is given, or a view of it is taken of."""
    given: dict[int, Any] = {}
    for one in made:
        parts = arguments_of(one)
        if len(parts) > 3 and name_of(parts[3]) == "CallInfo" and isinstance(parts[2], tuple):
            given[id(parts[2])] = parts[2]
    return inside([one for sources in given.values() for one in sources[1:]])


def _parameter(made: Made) -> tuple[int, int, Any, tuple[int, ...] | None]:
    """(operation, slot, device, shape) of an operation with a ParamArg; a slot of -1 for any other."""
    given = arguments_of(made)
    if len(given) > 3 and name_of(given[3]) == "ParamArg" and isinstance(given[2], tuple) and given[2]:
        state, operation = state_of(given[3]), next(iter(arguments_of(given[0])), None)
        slot = at(state, "slot")
        if type(slot) is int and type(operation) is int:
            return operation, slot, at(state, "device"), _vector(given[2][0])
    return -1, -1, None, None


def class_shapes(made: Iterable[Made]) -> dict[str, set[tuple[int, str]]]:
    """For each tinygrad class: numbers of constructor arguments and the fields set, as seen."""
    seen: dict[str, set[tuple[int, str]]] = {}
    for one in made:
        if isinstance(one.of, Global) and one.of.module.startswith("tinygrad."):
            shapes = seen.setdefault(one.of.short, set()) if len(seen) < KINDS else set()
            if len(shapes) < KINDS:
                count = len(one.arguments) if isinstance(one.arguments, tuple) else 0
                shapes.add((count, _fields(one) if one.state is not None else ""))
    return seen


def _fields(made: Made) -> str:
    state = state_of(made)
    keys = islice(state.texts, 64) if isinstance(state, Mapping) else ()
    return " ".join(sorted(key[:40] for key in keys))


def differences(seen: dict[str, set[tuple[int, str]]]) -> list[str]:
    """How the class shapes seen differ from those of 0.14.0, in words."""
    found = []
    for name in sorted(seen):
        if name not in SHAPES:
            found.append(f"{TINYGRAD} pickles no {name[:80]}")
            continue
        counts, fields = SHAPES[name]
        for count, set_fields in sorted(seen[name]):
            if count not in counts:
                known = " or ".join(map(str, sorted(counts)))
                found.append(f"{name} takes {counted(count, 'argument')}, {TINYGRAD}'s takes {known}")
            elif set(set_fields.split()) != set(fields.split()):
                found.append(f"{name} has {_changed(set(set_fields.split()), set(fields.split()))}")
    return found


def _changed(seen: set[str], known: set[str]) -> str:
    more = [f"also {name}" for name in sorted(seen - known)]
    return ", ".join([*more, *(f"no {name}" for name in sorted(known - seen))]) + f", unlike {TINYGRAD}'s"
