"""How two pickles differ, by opcode: "files differ" helps nobody find out why a build is not reproducible.

Reads opcodes as data (`pickletools`); nothing is unpickled.
"""

import itertools
import pickletools
from pathlib import Path
from typing import Any, NamedTuple

from rules.counting import counted
from rules.keeping import files

SHOWN = 60


class Opcode(NamedTuple):
    """One opcode: its name, its argument, and the byte it begins at."""

    name: str
    argument: Any
    position: int


def first_difference(one: Path, other: Path) -> str | None:
    """The first opcode in which two in-band pickles differ, in words; None when they are the same.

    A frame's length follows from what is in it, so it is told only when nothing else differs. Raises
    ValueError when one of them is no pickle.
    """
    return _difference(one, other, frames=False) or _difference(one, other, frames=True)


def _difference(one: Path, other: Path, *, frames: bool) -> str | None:
    with files.opened(one) as left, files.opened(other) as right:
        pairs = itertools.zip_longest(_opcodes(left, frames), _opcodes(right, frames))
        for number, (a, b) in enumerate(pairs):
            if a is None or b is None:
                ended, going = ("the first", b) if a is None else ("the second", a)
                return f"{ended} ends at opcode {number}, the other goes on with {_shown(going)}"
            if (a.name, a.argument) != (b.name, b.argument):
                return f"opcode {number}: {_shown(a)} against {_shown(b)}{_where(a.argument, b.argument)}"
    return None


def _opcodes(file: Any, frames: bool) -> Any:
    for opcode, argument, position in pickletools.genops(file):
        if frames or opcode.name != "FRAME":
            yield Opcode(opcode.name, argument, position or 0)


def _shown(opcode: Opcode | None) -> str:
    if opcode is None:
        return "nothing"
    argument = opcode.argument
    if isinstance(argument, bytes | bytearray):
        return f"{opcode.name} of {counted(len(argument), 'byte')} at byte {opcode.position:,}"
    text = "" if argument is None else f" {argument!r:.{SHOWN}}"
    return f"{opcode.name}{text} at byte {opcode.position:,}"


def _where(one: Any, other: Any) -> str:
    if not (isinstance(one, bytes | bytearray) and isinstance(other, bytes | bytearray)):
        return ""
    different = [index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
    if not different:
        return ""
    return f": differing in {counted(len(different), 'byte')}, the first at offset {different[0]:,}"
