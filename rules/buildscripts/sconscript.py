"""Which flags a runtime tree's build script gives tinygrad, read from its text and never by running it.

A Python script is followed along every path that its conditions on unknown things (`arch == "larch64"`) open,
with strings and tables kept as far as they are known; a shell script is read line by line.
"""

import ast
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rules import flags
from rules.buildscripts.script import MOST_PATHS, Bundle, Found, Interpreter, assignments, maximal
from rules.errors import SourceError
from rules.keeping import files

LARGEST: Final = 1 << 20  # bytes of a build script
MOST: Final = 20_000  # files of a tree
SCONS: Final = ("SConscript", "SConstruct")
OTHERS: Final = (".py", ".sh", ".scons")
# Not the runtime's own: their flags are of other builds.
SKIPPED: Final = frozenset(
    ("__pycache__", "node_modules", "third_party", "tinygrad", "tinygrad_repo", "tests")
)
EXPORT: Final = re.compile(r"\s*(?:export\s+)?(?:[A-Za-z_]\w*=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|\"']*)\s*)+")
DEVICE: Final = "DEV"


class Difference(NamedTuple):
    """One flag of one bundle: `kind` is "missing", "extra", "different" or "unclear" (computed there).

    `wanted` is the set's value, `found` the script's; `when` are the conditions that lead there.
    """

    kind: str
    name: str
    wanted: str | None
    found: str | None
    file: str
    line: int
    when: str


@dataclass(frozen=True)
class Comparison:
    """`bundles` that were compared, as file:line of each; other devices that the scripts build for."""

    differences: tuple[Difference, ...]
    bundles: tuple[str, ...]
    others: tuple[str, ...]


def against(target: Path, values: Mapping[str, str], names: Collection[str]) -> Comparison:
    """How the scripts at `target`, a file or a tree, differ from a flag set's `values`.

    Only bundles for the set's device are compared. `names` are the words that count as flags. Raises
    SourceError when nothing there can be read, or nothing there sets DEV.
    """
    known = frozenset(names) | frozenset(values)
    bundles = [(_shown(file, target), bundle) for file in _scripts(target) for bundle in read(file, known)]
    mine = flags.device(values[DEVICE])
    ours = [one for one in bundles if _device(one[1]) in (mine, None)]
    others = sorted(
        {found.value for _, one in bundles if (found := one.pins[DEVICE]).value and _device(one) != mine}
    )
    if not ours:
        return _nothing(target, bundles, values[DEVICE], others)
    differences = {diff: None for file, one in ours for diff in _differences(file, one, values)}
    places = {f"{file}:{one.pins[DEVICE].line}": None for file, one in ours}
    return Comparison(tuple(_once(differences)), tuple(places), tuple(others))


def _nothing(
    target: Path, bundles: Sequence[tuple[str, Bundle]], wanted: str, others: Sequence[str]
) -> Comparison:
    if not bundles:
        raise SourceError(
            f"{target}: no script there sets DEV for tinygrad, expected a SConscript with DEV={wanted}",
            fix="name the build script itself, or the folder of the models in the runtime's tree",
        )
    file, one = bundles[0]
    where = one.pins[DEVICE]
    diff = Difference("different", DEVICE, wanted, where.value, file, where.line, one.when)
    return Comparison((diff,), (), tuple(others))


def _device(bundle: Bundle) -> str | None:
    """The device of a bundle, None when it is computed."""
    value = bundle.pins[DEVICE].value
    return flags.device(value) if value is not None else None


def _differences(file: str, one: Bundle, values: Mapping[str, str]) -> Iterator[Difference]:
    head = one.pins[DEVICE].line
    for name in sorted(values.keys() | one.pins.keys()):
        wanted, pin = values.get(name), one.pins.get(name)
        if pin is None:
            yield Difference("missing", name, wanted, None, file, head, one.when)
        elif wanted is None:
            yield Difference("extra", name, None, pin.value, file, pin.line, one.when)
        elif pin.value is None:
            yield Difference("unclear", name, wanted, None, file, pin.line, one.when)
        elif pin.value != wanted:
            yield Difference("different", name, wanted, pin.value, file, pin.line, one.when)


def _once(differences: Collection[Difference]) -> list[Difference]:
    """One for each place and value, by place; the paths beyond the first add nothing."""
    first: dict[tuple[object, ...], Difference] = {}
    for one in differences:
        first.setdefault(one[:-1], one)
    return sorted(first.values(), key=lambda one: (one.file, one.line, one.name))


# ---- which files


def _shown(file: Path, target: Path) -> str:
    return file.relative_to(target).as_posix() if target.is_dir() else str(file)


def _scripts(target: Path) -> list[Path]:
    """The build scripts at `target`: itself, or a tree's SCons files, else its other scripts."""
    if not target.is_dir():
        if not target.exists():
            raise SourceError(
                f"{target}: no such file or folder", fix="name a build script or a runtime's tree"
            )
        return [target]
    files = list(_walk(target))
    scons = [file for file in files if file.name in SCONS and _mentions(file)]
    return scons or [file for file in files if file.suffix in OTHERS and _mentions(file)]


def _walk(top: Path) -> Iterator[Path]:
    left = MOST
    for where, folders, names in os.walk(top):
        folders[:] = sorted(one for one in folders if one not in SKIPPED and not one.startswith("."))
        for name in sorted(names):
            if (name in SCONS or name.endswith(OTHERS)) and not name.startswith("._"):
                left -= 1
                if left < 0:
                    raise SourceError(f"{top}: more than {MOST:,} scripts", fix="name a folder further down")
                yield Path(where, name)


def _mentions(file: Path) -> bool:
    """Whether a file of a tree is worth a look."""
    try:
        return (
            file.stat().st_size <= LARGEST and re.search(rb"\bDEV\b", files.read(file, LARGEST)) is not None
        )
    except OSError:
        return False


# ---- what they say


def read(file: Path, names: Collection[str]) -> list[Bundle]:
    """Every bundle of flags with a DEV that the script makes; `names` are the words that count as flags.

    Raises SourceError when the file cannot be read or is too large to be a build script.
    """
    try:
        raw = files.read(file, LARGEST) if file.stat().st_size <= LARGEST else None
    except OSError as error:
        raise SourceError(f"{file}: cannot be read: {error.strerror}", fix="name a build script") from None
    if raw is None:
        raise SourceError(
            f"{file}: over {LARGEST:,} bytes, expected a build script", fix="name the script itself"
        )
    text = raw.decode("utf-8", "replace")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return shell(text, names)
    script = Interpreter(tree, text, frozenset(names))
    try:
        bundles = script.bundles()
    except RecursionError:
        return shell(text, names)
    if not script.complete:
        raise SourceError(
            f"{file}: its conditions open more paths than can be followed ({MOST_PATHS})",
            fix="name another build script, or a file that holds only what sets the flags",
        )
    return bundles


def shell(text: str, names: Collection[str]) -> list[Bundle]:
    """Bundles of a shell script: a command's own assignments, on top of what was set before."""
    held: dict[str, Found] = {}
    found = []
    for line, command in _commands(text):
        pins = {
            name: Found(value, line + command.count("\n", 0, start))
            for start, name, value in assignments(command)
            if name in names
        }
        if not EXPORT.fullmatch(command):
            found += [Bundle({**held, **pins}, "")] if pins else []
        else:
            found += [Bundle(dict(held), "")] if DEVICE in pins and DEVICE in held else []
            held |= pins
    return maximal([one for one in (*found, Bundle(held, "")) if DEVICE in one.pins])


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """Logical lines with the number of their first: a backslash at the end goes on; comments are left out."""
    held, first = "", 1
    for number, line in enumerate(text.split("\n"), 1):
        bare = "" if line.lstrip().startswith("#") else line.rstrip("\r")
        if not held:
            first = number
        if bare.endswith("\\"):
            held += bare[:-1] + "\n"
            continue
        yield first, held + bare
        held = ""
    if held:
        yield first, held
