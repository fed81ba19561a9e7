"""Random pickles of tinygrad's classes, mostly right, now and then wrong; and real ones edited by opcode."""

import pickle
import pickletools
import random
import struct
from collections.abc import Callable
from typing import Any

from assembler import Call, New, emitted, text

DEVICES = ["CPU", "CPU", "CPU", "NPY", "PYTHON", "NULL", "QCOM", "CUDA", "cpu", "NULL:1"]
BAD = [
    "DISK:/tmp/fuzz-touch",
    "disk:/tmp/fuzz-touch",
    "TINYFS:x",
    "CPU:/tmp/fuzz",
    "../CPU",
    "DISK",
    "",
    "RDMA",
    "DSP",
]
NAMES = [
    "x",
    "uop",
    "device",
    "__class__",
    "__setstate__",
    "__dict__",
    "bufs",
    "src",
    "lib",
    "graph",
    "append",
    *BAD,
]
HOSTILE = [
    ("os", "system"),
    ("builtins", "open"),
    ("builtins", "getattr"),
    ("tinygrad.tensor", "Tensor.from_url"),
    ("tinygrad.helpers", "fetch"),
    ("tinygrad.nn.state", "safe_load"),
    ("tinygrad.runtime.ops_disk", "DiskDevice"),
    ("functools", "partial"),
    ("pathlib", "Path"),
]


class Grower:
    """Grows values for `emitted`; `slips` is how likely each part of one is to be wrong."""

    def __init__(self, chance: random.Random, slips: float) -> None:
        self.chance, self.slips = chance, slips
        self.kinds: list[Callable[[int], Any]] = [
            self.node,
            self.node,
            self.tensor,
            self.buffer,
            self.parameter,
            self.program,
            self.kernel,
            self.jit,
            self.several,
            self.array,
            self.scalar,
            self.container,
            self.junk,
        ]

    def value(self, left: int) -> Any:
        """Anything at all, `left` levels deep."""
        return self.chance.choice(self.kinds)(left - 1) if left > 0 else self.scalar(0)

    def or_wrong(self, left: int, right: Any) -> Any:
        """`right`, or something else now and then."""
        return self.junk(left) if self.chance.random() < self.slips else right

    def device(self) -> Any:
        """A device, or something that names one."""
        return self.chance.choice(BAD if self.chance.random() < self.slips else DEVICES)

    def dtype(self, left: int = 1) -> Any:
        """A type of numbers."""
        made = Call("tinygrad.dtype.DType", 14, 32, "float", "f")
        byte = Call("tinygrad.dtype.DType", 2, 8, "unsigned char", "B")
        return self.or_wrong(left, self.chance.choice([made, byte]))

    def enumeration(self, left: int = 1) -> Any:
        """An operation, or another enumeration."""
        name = self.chance.choice(["uop.Ops", "uop.Ops", "renderer.isa.x86.X86Ops", "dtype.AddrSpace"])
        return self.or_wrong(left, Call(f"tinygrad.{name}", self.chance.randint(1, 90)))

    def node(self, left: int) -> Any:
        """A graph node."""
        sources = tuple(self.node(left - 1) for _ in range(self.chance.randint(0, 2))) if left > 0 else ()
        argument = self.chance.choice(
            [None, 1, 2.5, "graph", (1, 2), self.parameter, self.device, self.value]
        )
        argument = (
            argument(*([left - 1] if argument != self.device else [])) if callable(argument) else argument
        )
        held = [self.buffer(left)] if self.chance.random() < 0.2 else []
        operation = Call("tinygrad.uop.Ops", 2) if held else self.enumeration()
        rest = self.or_wrong(left, None), self.or_wrong(left, None)
        return Call(
            "tinygrad.uop.ops.UOp",
            operation,
            self.dtype(),
            self.or_wrong(left, sources),
            argument,
            *rest,
            *held,
        )

    def tensor(self, left: int) -> Any:
        """A tensor, sometimes by its constructor."""
        if self.chance.random() < self.slips:
            return Call("tinygrad.tensor.Tensor", self.value(left), self.device())
        fields = {"uop": self.or_wrong(left, self.node(left)), "is_param": True, "grad": None}
        return New("tinygrad.tensor.Tensor", state=(None, self.or_wrong(left, fields)))

    def buffer(self, left: int) -> Any:
        """A buffer with content, without, or as a view of another."""
        size = self.or_wrong(left, self.chance.choice([1, 4, 16]))
        options = self.chance.choice([None, New("tinygrad.device.BufferSpec", state={"external_ptr": None})])
        dtype, device = self.dtype(left), self.device()
        if left > 0 and self.chance.random() < 0.2:
            base = Call("tinygrad.device.Buffer", device, 64, dtype, None, None, None, 0)
            preallocate = self.chance.random() < 0.5
            return Call(
                "tinygrad.device.Buffer", device, size, dtype, None, None, None, 0, base, 4, preallocate
            )
        held = self.chance.choice([None, bytes(64), Call("builtins.bytearray", bytes(16)), bytes(4)])
        return Call(
            "tinygrad.device.Buffer", device, size, dtype, self.or_wrong(left, None), options, held, 1
        )

    def parameter(self, left: int) -> Any:
        """A parameter's description."""
        fields = {"slot": 1, "dtype": self.dtype(left), "vmin_vmax": None, "multiple_of": None, "name": None}
        fields |= {"addrspace": Call("tinygrad.dtype.AddrSpace", 1), "axis": None, "volatile": False}
        several = (self.device(), self.device())
        fields["device"] = self.or_wrong(left, self.chance.choice([None, self.device(), several]))
        return New("tinygrad.uop.ops.ParamArg", state=self.spoilt(left, fields))

    def spoilt(self, left: int, fields: dict[str, Any]) -> Any:
        """`fields`, now and then with one that is strange."""
        if self.chance.random() < self.slips:
            fields[self.chance.choice([*NAMES, *fields])] = self.value(left)
        return self.or_wrong(left, fields)

    def program(self, left: int) -> Any:
        """A program's description, in the newer or the older form."""
        if self.chance.random() < 0.3:
            return Call("tinygrad.engine.realize.CompiledRunner", self.value(left))
        target = dict.fromkeys(("renderer", "arch", "interface", "indices"), "") | {"device": self.device()}
        made = New("tinygrad.helpers.Target", state=self.spoilt(left, target))
        fields = {
            "name": "k",
            "global_size": (1, 1, 1),
            "local_size": None,
            "vars": (),
            "globals": (),
            "outs": (),
        }
        return New(
            "tinygrad.uop.ops.ProgramInfo", state=self.spoilt(left, {**fields, "ins": (), "target": made})
        )

    def kernel(self, left: int) -> Any:
        """What a call or a kernel carries."""
        if self.chance.random() < 0.5:
            return Call(
                "tinygrad.uop.ops.CallInfo", self.or_wrong(left, None), "n", False, False, self.value(left)
            )
        fields = {"name": "k", "axis_types": (), "dont_use_locals": False, "applied_opts": ()}
        return New("tinygrad.uop.ops.KernelInfo", state=self.spoilt(left, fields))

    def several(self, left: int) -> Any:
        """A buffer over devices."""
        buffers = [self.or_wrong(left, self.buffer(left)) for _ in range(2)]
        return New("tinygrad.device.MultiBuffer", state=self.spoilt(left, {"bufs": buffers}))

    def jit(self, left: int) -> Any:
        """A captured JIT."""
        info = [(self.node(left), (), self.dtype(), self.device())]
        returned = (self.tensor(left),)
        captured = Call(
            "tinygrad.engine.jit.CapturedJit", returned, self.or_wrong(left, self.node(left)), ["x"], info
        )
        return Call("tinygrad.engine.jit._TinyJit", self.or_wrong(left, None), captured)

    def array(self, left: int) -> Any:
        """A numpy array or type, as numpy pickles it."""
        spelled = self.chance.choice(["f4", "<i8", "O8", "V4", "f4,i4"])
        dtype = Call("numpy.dtype", spelled, False, True)
        return self.chance.choice([dtype, Call("numpy._core.multiarray.scalar", dtype, bytes(8))])

    def scalar(self, _: int) -> Any:
        """A plain value."""
        return self.chance.choice([None, True, 0, 1, 2**70, -1, 1.5, b"raw", *NAMES[:6], *DEVICES[:2]])

    def container(self, left: int) -> Any:
        """A list, tuple or dict."""
        held = [self.value(left) for _ in range(self.chance.randint(0, 3))]
        keyed = {self.chance.choice(NAMES): value for value in held}
        return self.chance.choice([held, tuple(held), keyed])

    def junk(self, left: int) -> Any:
        """What stands nowhere, or at least not here."""
        if self.chance.random() < 0.3:
            return Call(".".join(self.chance.choice(HOSTILE)), self.scalar(0))
        return self.chance.choice([self.scalar(0), [], {}, self.value(left - 1)])


TAILS = (
    b"",
    b"",
    b"",
    text("k") + b"Ns",
    b"Na",
    b"(NNu",
    b"}b",
    b")R",
    b"N\x86}b",
    b"(N\x90",
    b"20",
    b"q\x050h\x05",
)


def grown(chance: random.Random) -> bytes:
    """A pickle of a random value, followed by something done to it."""
    grower = Grower(chance, chance.choice([0.0, 0.02, 0.1]))
    head = b"\x80" + bytes([chance.choice([2, 4, 4, 5])])
    return head + emitted(grower.value(chance.randint(1, 4))) + chance.choice(TAILS) + b"."


def opcodes_of(content: bytes) -> list[bytes]:
    """The opcodes of a sound pickle, without its frames, each with its argument."""
    found = list(pickletools.genops(content))
    ends = [at for _, _, at in found[1:]] + [len(content)]
    return [
        content[at or 0 : end] for (one, _, at), end in zip(found, ends, strict=True) if one.name != "FRAME"
    ]


def edited(opcodes: list[bytes], others: list[bytes], chance: random.Random) -> bytes:
    """`opcodes` with one to four of them changed, left out, doubled, exchanged, or others put in."""
    new = list(opcodes)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(1, len(new) - 1)
        match chance.randrange(8):
            case 0:
                del new[at]
            case 1:
                new.insert(at, new[at])
            case 2:
                other = chance.randrange(1, len(new) - 1)
                new[at], new[other] = new[other], new[at]
            case 3:
                new.insert(at, chance.choice(others))
            case 4:
                start = chance.randrange(1, len(others) - 1)
                new[at:at] = others[start : start + chance.randint(1, 12)]
            case 5:
                new[at] = _changed(new[at], chance)
            case 6:
                texts = [place for place, one in enumerate(new) if one[:1] in b"X\x8c"]
                new[chance.choice(texts)] = text(chance.choice([*NAMES, *DEVICES]))
            case 7:
                new.insert(at, chance.choice([b"s", b"a", b"R", b"\x81", b"b", b"u", b"e", b"(", b"0", b"2"]))
    return b"".join(new)


def _changed(opcode: bytes, chance: random.Random) -> bytes:
    if opcode[:1] in b"KMJ":
        return pickle.dumps(chance.choice([0, 1, 7, 255, -1, 2**31, 2**62]), 2)[2:-1]
    if opcode[:1] in b"hj":
        return b"j" + struct.pack("<I", chance.randrange(300))
    return opcode[:1] + bytes(chance.randrange(256) for _ in opcode[1:])
