"""What loading does: with which arguments and fields each known class only builds data.

Read from tinygrad 0.13.0 and 0.14.0 and from artifacts of the field; what is not written here is not known to
be harmless. Three traps: calling `Tensor` reads files, making one empty does not; a `CompiledRunner` without
machine code starts a compiler; a `Buffer` opens its device and allocates what its numbers say.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from rules.inspection.values import Global, Made, Mapping, Nodes, Payload, Plain

Check = Callable[[Any], bool]

DEVICES = 64  # of one buffer, as many as anyone has
FIELDS = 32  # of one object; no class has more
MEMBERS = 4096  # of one list that an object is given; the longest seen has 180
DEEP = 8  # containers within containers that a capture returns
ELEMENTS = 1 << 34  # of one buffer

DEVICE = re.compile(
    r"(AMD|CL|CLANG|CPU|CUDA|DSP|GPU|HIP|HSA|LLVM|METAL|NPY|NULL|NV|PYTHON|QCOM|WEBGPU)(:[A-Za-z0-9]{1,16}){0,2}"
)
# Devices that are files or other machines: no text of an artifact begins so, wherever it stands.
ELSEWHERE = re.compile(r"\s*(DISK|TINYFS|RDMA|REMOTE|CLOUD)\s*:", re.IGNORECASE)
_NUMERIC = re.compile(r"[<>|=]?[biufc?]\d{0,2}")


# ---- single values


def anything(value: Any) -> bool:
    """Whether `value` is data, of which tuples, texts and known objects consist."""
    kind = type(value)
    if kind is Made:
        return value.kind in DATA
    return kind in SCALARS or kind in DATA_TUPLES or (kind is tuple and not value)


SCALARS = frozenset({int, float, bool, str, type(None), Payload})
DATA_TUPLES = frozenset({Plain, Nodes})


def tuple_of(values: list[Any]) -> tuple[Any, ...]:
    """`values` as the narrowest kind of tuple that they make."""
    if not values:
        return ()
    if all(type(value) is Made and value.kind == "UOp" for value in values):
        return Nodes(values)
    return Plain(values) if all(map(anything, values)) else tuple(values)


def number(value: Any) -> bool:
    """Whether `value` is a whole number."""
    return type(value) is int


def flag(value: Any) -> bool:
    """Whether `value` is True or False."""
    return type(value) is bool


def text(value: Any) -> bool:
    """Whether `value` is a text, perhaps a long one."""
    return type(value) is str or (type(value) is Payload and value.what == "text")


def nothing(value: Any) -> bool:
    """Whether `value` is None."""
    return value is None


def content(value: Any) -> bool:
    """Whether `value` is bytes, in whatever protocol they were pickled."""
    if type(value) is Payload:
        return value.what in ("bytes", "bytearray")
    return type(value) is Made and value.kind in ("bytes", "bytearray", "encode")


def device(value: Any) -> bool:
    """Whether `value` names a computing device: a buffer on DISK opens the file that its name holds."""
    return type(value) is str and _is_device(value)


@lru_cache(1024)
def _is_device(name: str) -> bool:
    return name.isascii() and len(name) < 64 and DEVICE.fullmatch(name.upper()) is not None


def devices(value: Any) -> bool:
    """Whether `value` is None, a device, or a tuple of devices."""
    if isinstance(value, tuple):
        return len(value) <= DEVICES and all(map(device, value))
    return value is None or device(value)


def nodes(value: Any) -> bool:
    """Whether `value` is a tuple of graph nodes."""
    return type(value) is Nodes or (type(value) is tuple and not value)


def of(*kinds: str) -> Check:
    """A check that a value is an object of one of `kinds`."""
    return lambda value: type(value) is Made and value.kind in kinds


def optional(check: Check) -> Check:
    """A check that a value is None or passes `check`."""
    return lambda value: value is None or check(value)


def each(check: Check) -> Check:
    """A check that a value is a short list of what passes `check`."""
    return lambda value: type(value) is list and len(value) <= MEMBERS and all(map(check, value))


def table(value: Any) -> bool:
    """Whether `value` is a short dict of data."""
    return type(value) is Mapping and len(value.flat) <= MEMBERS and all(map(anything, value.flat))


def loose(value: Any) -> bool:
    """Whether `value` is data, or a short list or dict of data."""
    return anything(value) or each(anything)(value) or table(value)


def result(value: Any, left: int = DEEP) -> bool:
    """Whether `value` is what a captured function may return: tensors, in containers or not."""
    if value is None or (type(value) is Made and value.kind in ("Tensor", "UOp")):
        return True
    if type(value) is Mapping:
        keys, values = value.flat[::2], value.flat[1::2]
        return len(keys) <= MEMBERS and all(map(anything, keys)) and _results(values, left)
    return type(value) in (tuple, Nodes, list, Plain) and _results(value, left)


def _results(values: Any, left: int) -> bool:
    return left > 0 and len(values) <= DEVICES and all(result(value, left - 1) for value in values)


def expected_input(value: Any) -> bool:
    """Whether `value` is (view, variables, dtype, device)."""
    if not isinstance(value, tuple) or len(value) != 4:
        return False
    return anything(value[0]) and nodes(value[1]) and of("DType")(value[2]) and devices(value[3])


def compiled(value: Any) -> bool:
    """Whether `value` is a program that holds its machine code: one without is compiled as it is loaded."""
    if type(value) is not Made or value.kind != "ProgramSpec" or type(value.state) is not Mapping:
        return False
    flat = value.state.flat
    return any(k == "lib" and content(v) for k, v in zip(flat[::2], flat[1::2], strict=False))


# ---- whole calls


def buffer(arguments: Any) -> bool:
    """Whether a Buffer made of `arguments` allocates no more than it holds, on a computing device."""
    where, size, _, opaque, _, held = arguments[:6]
    if not 0 < size <= ELEMENTS or (opaque is not None and (where.upper() != "NPY" or held is not None)):
        return False
    return held is None or size <= _size(held)


def _size(held: Any) -> int:
    while type(held) is Made:
        held = held.arguments[0] if isinstance(held.arguments, tuple) and held.arguments else None
    return held.size if type(held) is Payload else len(held) if isinstance(held, str) else 0


def latin(arguments: Any) -> bool:
    """Whether the second of `arguments` is an encoding that maps each character to one byte."""
    return len(arguments) < 2 or arguments[1] in ("latin1", "latin-1")


def reconstructed(arguments: Any) -> bool:
    """Whether `arguments` make numpy's empty array, whose content is set afterwards."""
    return type(arguments[0]) is Global and arguments[0].short == "ndarray" and tuple(arguments[1]) == (0,)


def numeric(value: Any) -> bool:
    """Whether `value` is numpy's text for a type of numbers."""
    return type(value) is str and _NUMERIC.fullmatch(value) is not None


def dtype_state(state: Any) -> bool:
    """Whether `state` is that of a numpy type without fields."""
    return isinstance(state, tuple) and len(state) in (8, 9) and all(part is None for part in state[2:5])


def array_state(state: Any) -> bool:
    """Whether `state` is that of a numpy array of numbers."""
    if not isinstance(state, tuple) or len(state) != 5:
        return False
    return shape(state[1]) and of("dtype")(state[2]) and flag(state[3]) and content(state[4])


def shape(value: Any) -> bool:
    """Whether `value` is a tuple of a few whole numbers."""
    return isinstance(value, tuple) and len(value) <= DEVICES and all(map(number, value))


def factory(value: Any) -> bool:
    """Whether `value` is a class that makes an empty value."""
    return type(value) is Global and value.name in NAMED


class Effect(NamedTuple):
    """How a class may be loaded.

    `call` (REDUCE) and `new` (NEWOBJ) check each argument, of which `least` must be there, `whole` all of a
    call's together; `fields` and `state` check what BUILD sets; `holds` says what may be added: "items" of a
    dict or "members" of a list.
    """

    call: tuple[Check, ...] | None = None
    least: int | None = None
    new: tuple[Check, ...] | None = None
    fields: dict[str, Check] | None = None
    state: Check | None = None
    whole: Check | None = None
    holds: str = ""


# Fine as a class to name (of a defaultdict, say); called from a pickle they turn a few bytes into gigabytes.
NAMED = frozenset(
    {f"builtins.{name}" for name in ("bool", "dict", "float", "int", "list", "object", "str", "tuple")}
    | {"numpy.ndarray"}
)


def fields(**checks: Check) -> Effect:
    """A data class that is made empty and then given `checks`' fields."""
    return Effect(new=(), fields=checks)


def called(*checks: Check, least: int | None = None, whole: Check | None = None) -> Effect:
    """A class that is called with what passes `checks`."""
    return Effect(call=checks, least=least, whole=whole)


_ENUM = called(number)
_TEXT, _ANY, _LIST = optional(text), anything, each(anything)
_INDEX = optional(number)
_NODE, _TYPE = of("UOp"), of("DType", "PtrDType", "ImageDType")
_NAMES = each(lambda value: type(value) in (str, int))
_INPUTS = each(expected_input)
_OPERATION = of("Ops", "X86Ops")
_RANGE = called(number, number, number, least=1)
_ARRAY = Effect(
    call=(lambda value: type(value) is Global, shape, _ANY), state=array_state, whole=reconstructed
)
_SCALAR = called(of("dtype"), content)
_FROM_BUFFER = called(content, of("dtype"), shape, text)
_JIT = called(nothing, of("CapturedJit"))


def _capture(arguments: Any) -> bool:
    """0.13.0 and later have a linear program; before, steps with what goes where."""
    return len(arguments) == 4 or (len(arguments) == 6 and type(arguments[1]) is list)


_CAPTURED = Effect(
    call=(
        result,
        lambda value: _NODE(value) or each(of("ExecItem"))(value),
        lambda value: _NAMES(value) or table(value),
        lambda value: _INPUTS(value) or _LIST(value),
        _NAMES,
        _INPUTS,
    ),
    least=4,
    whole=_capture,
)

EFFECTS: dict[str, Effect] = {
    "_codecs.encode": called(text, text, whole=latin),
    "builtins.bytearray": called(lambda v: text(v) or content(v), text, least=0, whole=latin),
    "builtins.bytes": called(),
    "builtins.complex": called(lambda v: type(v) in (int, float), lambda v: type(v) in (int, float)),
    "builtins.frozenset": called(_LIST, least=0),
    "builtins.range": _RANGE,
    "builtins.set": called(_LIST, least=0),
    "builtins.slice": called(_INDEX, _INDEX, _INDEX, least=1),
    "collections.OrderedDict": Effect(call=(), holds="items"),
    "collections.defaultdict": Effect(call=(factory,), holds="items"),
    "collections.deque": Effect(call=(lambda v: v in ([], ()), _INDEX), least=0, holds="members"),
    "numpy.dtype": Effect(call=(numeric, _ANY, _ANY), state=dtype_state),
    "tinygrad.codegen.opt.Opt": fields(op=of("OptOps"), axis=_INDEX, arg=_ANY),
    "tinygrad.codegen.opt.OptOps": _ENUM,
    "tinygrad.device.Buffer": called(
        device,
        number,
        of("DType"),
        optional(of("ndarray")),
        optional(of("BufferSpec")),
        optional(content),
        number,
        optional(of("Buffer")),
        number,
        flag,
        least=7,
        whole=buffer,
    ),
    # An external pointer is an address of this process, which loading would write to.
    "tinygrad.device.BufferSpec": fields(
        uncached=flag,
        cpu_access=flag,
        host=flag,
        nolru=flag,
        zero=flag,
        external_ptr=nothing,
        image=optional(_TYPE),
    ),
    "tinygrad.device.MultiBuffer": fields(bufs=each(of("Buffer"))),
    "tinygrad.dtype.AddrSpace": _ENUM,
    "tinygrad.dtype.ConstFloat": Effect(new=(lambda v: type(v) is float,), fields={"bits": number}),
    "tinygrad.dtype.DType": called(number, number, text, _TEXT, number, optional(_TYPE), least=4),
    "tinygrad.dtype.ImageDType": called(number, number, text, *8 * (_ANY,), least=8),
    "tinygrad.dtype.PtrDType": called(number, number, text, *7 * (_ANY,), least=8),
    "tinygrad.dtype.InvalidType": called(),
    "tinygrad.engine.jit.CapturedJit": _CAPTURED,
    "tinygrad.engine.jit.TinyJit": _JIT,
    "tinygrad.engine.jit._TinyJit": _JIT,
    "tinygrad.engine.realize.BufferCopy": fields(
        first_run=flag, display_name=text, device=device, estimates=of("Estimates")
    ),
    "tinygrad.engine.realize.CompiledRunner": called(compiled),
    "tinygrad.engine.realize.ExecItem": fields(
        ast=_NODE,
        bufs=each(optional(of("Buffer", "MultiBuffer"))),
        metadata=_ANY,
        fixedvars=table,
        prg=of("CompiledRunner", "BufferCopy"),
    ),
    "tinygrad.helpers.Metadata": fields(name=text, caller=text, backward=flag),
    "tinygrad.helpers.Target": fields(
        device=lambda v: v == "" or device(v), renderer=text, arch=text, interface=text, indices=text
    ),
    "tinygrad.renderer.Estimates": fields(ops=_ANY, lds=_ANY, mem=_ANY),
    "tinygrad.renderer.ProgramSpec": fields(
        name=text,
        src=text,
        device=device,
        ast=_NODE,
        uops=each(_NODE),
        lib=optional(content),
        aux=loose,
        global_size=loose,
        local_size=loose,
        vars=each(_NODE),
        globals=_LIST,
        outs=_LIST,
        ins=_LIST,
        function_name=text,
        runtimevars=table,
        estimates=of("Estimates"),
    ),
    "tinygrad.renderer.isa.Register": fields(name=text, index=number, size=number, _cons=_ANY),
    "tinygrad.renderer.isa.x86.X86Ops": _ENUM,
    "tinygrad.tensor.Tensor": fields(
        uop=_NODE, is_param=_ANY, requires_grad=_ANY, grad=optional(of("Tensor"))
    ),
    "tinygrad.uop.Ops": _ENUM,
    "tinygrad.uop.ops.AxisType": _ENUM,
    "tinygrad.uop.ops.CallInfo": called(nothing, *5 * (_ANY,), least=5),
    "tinygrad.uop.ops.KernelInfo": fields(
        name=text,
        axis_types=_ANY,
        dont_use_locals=flag,
        applied_opts=_ANY,
        opts_to_apply=_ANY,
        estimates=optional(of("Estimates")),
        beam=number,
    ),
    "tinygrad.uop.ops.ParamArg": fields(
        slot=number,
        dtype=_TYPE,
        vmin_vmax=_ANY,
        multiple_of=_INDEX,
        name=_TEXT,
        addrspace=optional(of("AddrSpace")),
        axis=_INDEX,
        device=devices,
        volatile=flag,
    ),
    "tinygrad.uop.ops.ProgramInfo": fields(
        name=text,
        global_size=_ANY,
        local_size=_ANY,
        vars=nodes,
        globals=_ANY,
        outs=_ANY,
        ins=_ANY,
        target=of("Target"),
        aux=_ANY,
    ),
    "tinygrad.uop.ops.UOp": called(
        _OPERATION, _TYPE, nodes, _ANY, _ANY, _ANY, optional(of("Buffer", "MultiBuffer")), least=6
    ),
}
for _home in ("numpy.core", "numpy._core"):
    EFFECTS[f"{_home}.multiarray._reconstruct"] = _ARRAY
    EFFECTS[f"{_home}.multiarray.scalar"] = _SCALAR
    EFFECTS[f"{_home}.numeric._frombuffer"] = _FROM_BUFFER

KINDS = {name: name.rpartition(".")[2] for name in EFFECTS} | {
    f"{home}.{name}": "ndarray"
    for home in ("numpy.core", "numpy._core")
    for name in ("multiarray._reconstruct", "numeric._frombuffer")
}
# What may stand as data in another object. Tensors, buffers and arrays may not: their places are named above.
DATA = frozenset(KINDS.values()) - {
    "Tensor",
    "Buffer",
    "MultiBuffer",
    "CapturedJit",
    "TinyJit",
    "_TinyJit",
    "ExecItem",
    "CompiledRunner",
    "BufferCopy",
    "ndarray",
    "OrderedDict",
    "defaultdict",
    "deque",
}
