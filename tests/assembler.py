"""A pickle assembler, for objects of classes that are not here."""

import pickle
import struct
from typing import Any


class Call:
    """What a pickle makes by calling `module.name`; `state` is set on it."""

    how = b"R"

    def __init__(self, name: str, *arguments: Any, state: Any = None) -> None:
        self.name, self.arguments, self.state = name, arguments, state


class New(Call):
    """What a pickle makes of the class `module.name` without calling it."""

    how = b"\x81"


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def emitted(value: Any) -> bytes:
    if isinstance(value, Call):
        module, _, name = value.name.rpartition(".")
        built = text(module) + text(name) + b"\x93" + emitted(value.arguments) + value.how
        return built + (emitted(value.state) + b"b" if value.state is not None else b"")
    if isinstance(value, tuple | list):
        inner = b"".join(emitted(one) for one in value)
        return b"(" + inner + b"t" if isinstance(value, tuple) else b"](" + inner + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(emitted(k) + emitted(v) for k, v in value.items()) + b"u"
    if isinstance(value, str):
        return text(value)
    return pickle.dumps(value, 3)[2:-1]


def assembled(value: Any) -> bytes:
    return b"\x80\x04" + emitted(value) + b"."


NODE = "tinygrad.uop.ops.UOp"
DTYPE = Call("tinygrad.dtype.DType", 14, 32, "float", "f")


def number(value: int) -> Any:
    return Call(NODE, Call("tinygrad.uop.Ops", 60), DTYPE, (), value, None, None)


def jit(names: list[str], device: str, kernels: int = 2, frame: int = 0) -> Call:
    """A TinyJit as 0.14.0 pickles it, with one buffer of 16 bytes on `device`.

    Inputs whose name has "frame" in it, or is 0, are of `frame` bytes, if any.
    """
    dtype, node = DTYPE, NODE
    void = Call(node, Call("tinygrad.uop.Ops", 3), dtype, (), None, None, None)
    shape = Call(node, Call("tinygrad.uop.Ops", 15), dtype, (number(3), number(5)), None, None, None)
    view = Call(node, Call("tinygrad.uop.Ops", 71), dtype, (void, shape), None, None, None)
    buffer = Call("tinygrad.device.Buffer", device, 4, dtype, None, None, bytes(16), 1)
    held = Call(node, Call("tinygrad.uop.Ops", 2), dtype, (), None, None, None, buffer)
    programs = tuple(
        Call(node, Call("tinygrad.uop.Ops", 8), dtype, (), New("tinygrad.uop.ops.ProgramInfo"), None, None)
        for _ in range(kernels)
    )
    linear = Call(node, Call("tinygrad.uop.Ops", 9), dtype, (held, *programs), None, None, None)
    byte = Call("tinygrad.dtype.DType", 2, 8, "unsigned char", "B")
    whole = Call(node, Call("tinygrad.uop.Ops", 71), byte, (void,), (frame,), None, None)
    info = [
        (whole, (), byte, device) if frame and ("frame" in name or name == "0") else (view, (), dtype, device)
        for name in names
    ]
    tensor = New("tinygrad.tensor.Tensor", state=(None, {"uop": void, "is_param": True, "grad": None}))
    captured = Call("tinygrad.engine.jit.CapturedJit", (tensor,), linear, names, info)
    return Call("tinygrad.engine.jit._TinyJit", None, captured)
