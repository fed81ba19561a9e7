"""A pickle's opcodes run by a machine that builds light descriptions, imports nothing and calls nothing.

The order of opcodes and what each does to the stack follow CPython's `pickletools`; bytes of payloads are
passed over, never held. Every limit is a refusal: a pickle that loads may still be too strange to describe.
"""

import struct
from collections.abc import Callable
from typing import Any

from rules.counting import counted
from rules.inspection.effects import EFFECTS, KINDS, tuple_of
from rules.inspection.trust import (
    call_fault,
    import_fault,
    items_fault,
    members_fault,
    new_fault,
    set_fault,
    state_fault,
    text_fault,
)
from rules.inspection.values import Frozen, Global, Made, Mapping, Members, Payload, described
from rules.inspection.whole import Damage, Tape

OPCODES = 8_000_000
VALUES = 1_500_000  # containers, texts and objects
ITEMS = 3_000_000  # of all containers together
MEMO = 3_000_000
DEPTH = 1_000_000  # values on the stack
MARKS = 200_000
IMPORTS = 10_000
LINE = 4096  # bytes of a text opcode
NUMBER = 64  # bytes of an integer that is kept
TEXT = 4096  # bytes of a text that is kept
TEXTS = 48 * 1024 * 1024  # bytes of all texts kept
STRANGE = "not an artifact of the field"


class Machine:
    """Runs one pickle from `tape`. `buffers` are the sizes of its out-of-band buffers; None when in-band.

    After `run`: `root` is the value the pickle would return, `globals` what it would import in order,
    `oddities` what an honest pickle of data never does, `payload` the bytes of its bytes objects.
    """

    def __init__(self, tape: Tape, buffers: list[int] | None = None) -> None:
        self.tape = tape
        self.buffers = buffers
        self.buffers_used = 0
        self.protocol = 0
        self.opcodes = 0
        self.globals: dict[str, Global] = {}
        self.oddities: list[str] = []
        self.payload = 0
        self.root: Any = None
        self._values = 0
        self._items = 0
        self._texts = 0
        self._known: dict[bytes, str] = {}
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []
        self._memoized = 0
        self._code_at = 0

    def run(self) -> None:
        """Read opcodes up to STOP. Raises Damage with kind truncated, malformed or bomb."""
        tape, table = self.tape, TABLE
        while True:
            code = tape.byte()
            self.opcodes += 1
            act = table.get(code)
            if act is None:
                raise self.malformed(f"0x{code:02x} is no pickle opcode", back=1)
            act(self)
            if act is stop:
                return
            if self.opcodes > OPCODES:
                raise self.bomb("opcodes", OPCODES)

    def malformed(self, what: str, back: int = 0) -> Damage:
        """What to raise when the opcodes make no sense."""
        return Damage("malformed", f"malformed at byte {self.tape.position - back}: {what}")

    def bomb(self, what: str, most: int) -> Damage:
        """What to raise when a limit is reached."""
        where = f"at byte {self.tape.position}"
        return Damage("bomb", f"pickle bomb: more than {most} {what} {where}: {STRANGE}")

    def odd(self, what: str) -> None:
        """Note what an honest artifact never does; only the first few are of interest."""
        what = what[:300]
        if len(self.oddities) < 20 and what not in self.oddities:
            self.oddities.append(what)

    # ---- stack

    def push(self, value: Any) -> None:
        """Push a value that costs no memory of its own."""
        self._stack.append(value)
        if len(self._stack) > DEPTH:
            raise self.bomb("values on the stack", DEPTH)

    def make(self, value: Any) -> None:
        """Push a new value."""
        self._values += 1
        if self._values > VALUES:
            raise self.bomb("values", VALUES)
        self.push(value)

    def pop(self) -> Any:
        """Take the top value off."""
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise self.malformed("the stack is empty")
        return self._stack.pop()

    def top(self) -> Any:
        """The top value, left in place."""
        value = self.pop()
        self._stack.append(value)
        return value

    def mark(self) -> None:
        """Remember how high the stack is."""
        self._marks.append(len(self._stack))
        if len(self._marks) > MARKS:
            raise self.bomb("nested marks", MARKS)

    def pop_mark(self) -> list[Any]:
        """Take off everything above the last mark."""
        if not self._marks:
            raise self.malformed("no mark is set")
        at = self._marks.pop()
        values = self._stack[at:]
        del self._stack[at:]
        return values

    def discard(self) -> None:
        """POP: the top value, or the mark if that is what is on top."""
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self.pop()

    def discard_to_mark(self) -> None:
        """POP_MARK: everything above the mark, and the mark."""
        self.pop_mark()

    # ---- memo

    def put(self, index: int) -> None:
        """Remember the top value as `index`; an unpickler allocates room for every index below, too."""
        value = self.top()
        if index >= MEMO:
            raise self.bomb("memo entries", MEMO)
        if index >= len(self._memo):
            self._memo.extend([UNSET] * (index + 1 - len(self._memo)))
        self._memoized += self._memo[index] is UNSET
        self._memo[index] = value

    def memoize(self) -> None:
        """Remember the top value under the next number."""
        self.put(self._memoized)

    def get(self, index: int) -> None:
        """Push what is remembered as `index`."""
        value = self._memo[index] if 0 <= index < len(self._memo) else UNSET
        if value is UNSET:
            raise self.malformed(f"memo entry {index} is not set")
        self.push(value)

    # ---- values

    def text(self, size: int) -> None:
        """Push a text, or its description when it is long."""
        if size > TEXT:
            self._pass_over(size, "text")
            return
        raw = self.tape.take(size)
        known = self._known.get(raw)
        if known is None:
            known = self._known[raw] = self._decode(raw)
        self.push(known)

    def _decode(self, raw: bytes) -> str:
        try:
            return self.judged(raw.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError as error:
            raise self.malformed("a text is not UTF-8") from error

    def judged(self, value: str) -> str:
        """`value`, its bytes counted and its meaning judged."""
        self._texts += 4 * len(value) + 100
        if self._texts > TEXTS:
            raise self.bomb("bytes of text", TEXTS)
        if fault := text_fault(value):
            self.odd(fault)
        return value

    def binary(self, size: int) -> None:
        """Push the description of a bytes object."""
        self._pass_over(size, "bytes")

    def byte_array(self, size: int) -> None:
        """Push the description of a bytearray."""
        self._pass_over(size, "bytearray")

    def old_text(self, size: int) -> None:
        """Push what Python 2 called a string and an unpickler decodes."""
        self._pass_over(size, "text")

    def _pass_over(self, size: int, what: str) -> None:
        at = self.tape.position
        if what == "text" and (fault := text_fault(self.tape.peek(min(size, 80)).decode("latin-1"))):
            self.odd(fault)
        self.tape.skip(size)
        self.payload += size * (what in ("bytes", "bytearray"))
        self.make(Payload(size, at, what))

    def whole_number(self, size: int) -> None:
        """Push an integer of `size` bytes, or its description when it is absurd."""
        if size < 0:
            raise self.malformed(f"an integer has {counted(size, 'byte')}")
        if size > NUMBER:
            self._pass_over(size, "number")
        else:
            self.push(int.from_bytes(self.tape.take(size), "little", signed=True))

    def line(self) -> str:
        """The rest of a text opcode's line."""
        return self.tape.line(LINE).decode("utf-8", "backslashreplace")

    def spelled(self, convert: Callable[[str], Any]) -> None:
        """Push a number that is spelled out."""
        spelled = self.line()
        try:
            self.push(convert(spelled))
        except ValueError as error:
            raise self.malformed(f"{spelled[:40]!r} is no number") from error

    def buffer(self) -> None:
        """NEXT_BUFFER: push the description of the next out-of-band buffer."""
        if self.buffers is None:
            raise self.malformed("an in-band pickle asks for an out-of-band buffer", back=1)
        index = self.buffers_used
        if index >= len(self.buffers):
            raise Damage(
                "truncated",
                f"out-of-band buffer {index} is missing: expected more than {index}, got {len(self.buffers)}",
            )
        self.buffers_used += 1
        self.payload += self.buffers[index]
        self.make(Payload(self.buffers[index], -1, "bytearray", index))

    # ---- containers

    def count(self, items: int) -> None:
        """Count what containers hold, all together."""
        self._items += items
        if self._items > ITEMS:
            raise self.bomb("items", ITEMS)

    def tuple_of(self, count: int) -> None:
        """Push a tuple of the top `count` values."""
        at = len(self._stack) - count
        if at < (self._marks[-1] if self._marks else 0):
            raise self.malformed("the stack is empty")
        values = self._stack[at:]
        del self._stack[at:]
        self.make(tuple_of(values))

    def tuple_to_mark(self) -> None:
        """TUPLE: push a tuple of everything above the mark."""
        values = self.pop_mark()
        self.count(len(values))
        self.make(tuple_of(values))

    def frozen(self) -> None:
        """FROZENSET: push a frozenset of everything above the mark."""
        values = self.pop_mark()
        self.count(len(values))
        members = Members()
        self._add(members, values, set_fault(members, values))
        self.make(Frozen(values))

    def list_to_mark(self) -> None:
        """LIST: push a list of everything above the mark."""
        values = self.pop_mark()
        self.count(len(values))
        self.make(values)

    def append(self, values: list[Any]) -> None:
        """Add values to the list or deque on top."""
        target = self.top()
        self._add(target, values, members_fault(target))

    def add(self) -> None:
        """ADDITEMS: add everything above the mark to the set on top."""
        values, target = self.pop_mark(), self.top()
        self._add(target, values, set_fault(target, values))

    def set_items(self, values: list[Any]) -> None:
        """Set keys and values on the dict on top."""
        target = self.top()
        if len(values) % 2:
            raise self.malformed("a key has no value")
        self._add(target, values, items_fault(target, values))

    def _add(self, target: Any, values: list[Any], fault: str | None) -> None:
        self.count(len(values))
        if fault:
            self.odd(fault)
        if isinstance(target, Made):
            target.items = target.items or []
            target.items.extend(values)
        elif isinstance(target, Mapping | list):
            (target.flat if isinstance(target, Mapping) else target).extend(values)

    def mapping(self) -> None:
        """DICT: push a dict of everything above the mark."""
        values = self.pop_mark()
        self.make(Mapping([]))
        self.set_items(values)

    # ---- imports and calls

    def imports(self, module: Any, short: Any) -> Global | None:
        """Note an import; a name that is not plain text cannot be judged, so it is odd."""
        if not (isinstance(module, str) and isinstance(short, str)):
            self.odd("suspicious computed import")
            return None
        module = OLD_MODULES.get(module, module)
        found = self.globals.get(f"{module}.{short}")
        if found is None or found.module != module:
            name = f"{module}.{short}"
            found = Global(module, short, self.tape.position, EFFECTS.get(name))
            self.globals[name] = found
            if len(self.globals) > IMPORTS:
                raise self.bomb("imports", IMPORTS)
            if fault := import_fault(name):
                self.odd(fault)
        return found

    def stack_global(self) -> None:
        """STACK_GLOBAL: import what the two top texts name."""
        short, module = self.pop(), self.pop()
        self.make(self.imports(module, short))

    def reduce(self) -> None:
        """REDUCE: call the second value with the first."""
        arguments, function = self.pop(), self.pop()
        self._made(function, arguments, call_fault(function, arguments))

    def new(self) -> None:
        """NEWOBJ: an object of the second value, a class, without its constructor."""
        arguments, function = self.pop(), self.pop()
        self._made(function, arguments, new_fault(function, arguments))

    def _made(self, function: Any, arguments: Any, fault: str | None) -> None:
        if fault:
            self.odd(fault)
            self.make(Made(function, arguments))
        else:
            self.make(Made(function, arguments, KINDS[function.name]))

    def new_with_keywords(self) -> None:
        """NEWOBJ_EX: class, positional and keyword arguments; no class of the field needs it."""
        _, arguments, function = self.pop(), self.pop(), self.pop()
        self._made(function, arguments, f"suspicious call of {described(function)} with keywords")

    def instance(self) -> None:
        """INST: an import and a call in one, as Python 2 made objects."""
        function, arguments = self.imports(self.line(), self.line()), tuple(self.pop_mark())
        self._made(function, arguments, f"suspicious call of {described(function)} as Python 2 made it")

    def object_of(self) -> None:
        """OBJ: a call of the first value above the mark, as Python 2 made objects."""
        values = self.pop_mark()
        if not values:
            raise self.malformed("an object has no class")
        fault = f"suspicious call of {described(values[0])} as Python 2 made it"
        self._made(values[0], tuple(values[1:]), fault)

    def build(self) -> None:
        """BUILD: set state on an object."""
        state, target = self.pop(), self.top()
        if fault := state_fault(target, state):
            self.odd(fault)
        if isinstance(target, Made):
            target.state = state

    def announce(self, protocol: int) -> None:
        """PROTO: the protocol that follows."""
        if protocol > 5:
            raise self.malformed(f"pickle protocol {protocol} is newer than 5", back=1)
        self.protocol = max(self.protocol, protocol)

    def frame(self, size: int) -> None:
        """FRAME: how many bytes belong together; an unpickler fetches them all at once."""
        if size > self.tape.left:
            raise Damage(
                "truncated",
                f"truncated at byte {self.tape.stop}: "
                f"a frame of {counted(size, 'byte')} starts at {self.tape.position}",
            )


def _float_line(text: str) -> float:
    return float(text)


def _int_line(text: str) -> Any:
    return {"00": False, "01": True}[text] if text in ("00", "01") else int(text[:400])


def _signed(machine: Machine) -> int:
    return int.from_bytes(machine.tape.take(4), "little", signed=True)


def _double(machine: Machine) -> float:
    value: float = struct.unpack(">d", machine.tape.take(8))[0]
    return value


def _escaped(machine: Machine, encoding: str, quotes: str = "") -> str:
    raw = machine.tape.line(LINE)
    try:
        return machine.judged(raw.decode(encoding).strip(quotes))
    except UnicodeDecodeError as error:
        raise machine.malformed("a text has a wrong escape") from error


def _string_line(machine: Machine) -> None:
    machine.make(_escaped(machine, "unicode_escape", "'\""))


def _none_to(machine: Machine, what: str) -> None:
    machine.odd(what)
    machine.make(Made(None, ()))


def _persistent_line(machine: Machine) -> None:
    _none_to(machine, f"suspicious persistent id {machine.line()[:80]!r}")


def _persistent(machine: Machine) -> None:
    machine.pop()
    _none_to(machine, "suspicious persistent id")


def _sized(width: int, act: str, signed: bool = False) -> "Act":
    """An opcode whose first `width` bytes are a length or an index for the method `act`."""
    method: Callable[[Machine, int], None] = getattr(Machine, act)

    def run(machine: Machine) -> None:
        method(machine, int.from_bytes(machine.tape.take(width), "little", signed=signed))

    def run_byte(machine: Machine) -> None:
        method(machine, machine.tape.byte())

    return run_byte if width == 1 else run


def _constant(value: Any) -> "Act":
    return lambda machine: machine.push(value)


def _extension(width: int) -> "Act":
    return lambda machine: _none_to(machine, f"suspicious extension code {machine.tape.number(width)}")


Act = Callable[[Machine], None]
UNSET = object()
OLD_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg"}  # as an unpickler reads protocol 2


def stop(machine: Machine) -> None:
    """STOP, the last opcode: the value on top is the result."""
    machine.root = machine.pop()


TABLE: dict[int, Act] = {
    ord(code): act
    for code, act in {
        "\x80": _sized(1, "announce"),
        "\x95": _sized(8, "frame"),
        ".": stop,
        # values
        "N": _constant(None),
        "\x88": _constant(True),
        "\x89": _constant(False),
        "K": lambda m: m.push(m.tape.byte()),
        "M": lambda m: m.push(m.tape.number(2)),
        "J": lambda m: m.push(_signed(m)),
        "I": lambda m: m.spelled(_int_line),
        "L": lambda m: m.spelled(lambda text: int(text.rstrip("L")[:400])),
        "\x8a": _sized(1, "whole_number"),
        "\x8b": _sized(4, "whole_number", signed=True),
        "F": lambda m: m.spelled(_float_line),
        "G": lambda m: m.push(_double(m)),
        "S": _string_line,
        "V": lambda m: m.make(_escaped(m, "raw_unicode_escape")),
        "T": _sized(4, "old_text"),
        "U": _sized(1, "old_text"),
        "X": _sized(4, "text"),
        "\x8c": _sized(1, "text"),
        "\x8d": _sized(8, "text"),
        "B": _sized(4, "binary"),
        "C": _sized(1, "binary"),
        "\x8e": _sized(8, "binary"),
        "\x96": _sized(8, "byte_array"),
        "\x97": Machine.buffer,
        "\x98": lambda m: m.push(m.pop()),
        # containers
        "(": Machine.mark,
        ")": lambda m: m.push(()),
        "\x85": lambda m: m.tuple_of(1),
        "\x86": lambda m: m.tuple_of(2),
        "\x87": lambda m: m.tuple_of(3),
        "t": Machine.tuple_to_mark,
        "\x91": Machine.frozen,
        "]": lambda m: m.make([]),
        "\x8f": lambda m: m.make(Members()),
        "l": Machine.list_to_mark,
        "a": lambda m: m.append([m.pop()]),
        "e": lambda m: m.append(m.pop_mark()),
        "\x90": Machine.add,
        "}": lambda m: m.make(Mapping([])),
        "d": Machine.mapping,
        "s": lambda m: m.set_items([m.pop(), m.pop()][::-1]),
        "u": lambda m: m.set_items(m.pop_mark()),
        # stack and memo
        "0": Machine.discard,
        "1": Machine.discard_to_mark,
        "2": lambda m: m.push(m.top()),
        "q": _sized(1, "put"),
        "r": _sized(4, "put"),
        "p": lambda m: m.put(_index(m)),
        "\x94": Machine.memoize,
        "h": _sized(1, "get"),
        "j": _sized(4, "get"),
        "g": lambda m: m.get(_index(m)),
        # imports and calls
        "c": lambda m: m.make(m.imports(m.line(), m.line())),
        "\x93": Machine.stack_global,
        "R": Machine.reduce,
        "\x81": Machine.new,
        "\x92": Machine.new_with_keywords,
        "b": Machine.build,
        "i": Machine.instance,
        "o": Machine.object_of,
        "P": _persistent_line,
        "Q": _persistent,
        "\x82": _extension(1),
        "\x83": _extension(2),
        "\x84": _extension(4),
    }.items()
}


def _index(machine: Machine) -> int:
    text = machine.line()
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise machine.malformed(f"{text[:40]!r} is no memo index")
    return int(text)
