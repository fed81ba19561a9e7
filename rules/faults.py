"""What is wrong in a models.toml: each error with its line and key, what stands there, what would be right.

The JSON Schema says most of it (its titles complete the sentence `expected …`); references, chains, flags
and contracts are checked here. Lines are looked up in the text only once something is wrong.
"""

import codecs
import errno
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rules import flags, layouts
from rules.errors import CatalogError, cause
from rules.releasing import namespace
from rules.url import guarded

Keys = tuple[str | int, ...]
Table = dict[str, Any]

SCHEMA = Path(__file__).resolve().parent.parent / "schemas" / "models.schema.json"
FIX = "change what these lines name, then run doit again; schemas/models.schema.json describes every key"
MARKS = {  # the longer first: UTF-32's begins as UTF-16's does
    codecs.BOM_UTF8: "UTF-8",
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
ODD = {
    "\0": "found a null character, as UTF-16 has many; expected UTF-8 text",
    "\r": "found a carriage return alone; expected line ends of LF or CR LF",
}
SAVE = "save {file} as UTF-8 without a byte order mark, with LF line ends"
DEPTH = 8  # tables within tables; a valid catalog needs 5


class Problem(NamedTuple):
    """One thing that is wrong: where, what stands there, what would be right."""

    keys: Keys
    found: str
    expected: str
    near: str | None = None

    def sentence(self) -> str:
        """`KEY: found X; expected Y; did you mean Z?`"""
        hint = f"; did you mean {self.near}?" if self.near else ""
        return f"{shown_key(self.keys)}: found {self.found}; expected {self.expected}{hint}"


def checked(content: bytes, file: str, machine: str) -> Table:
    """The tables in `content`, the bytes of a catalog, with nothing wrong in them.

    `file` is the name that errors show, `machine` the architecture that `defaults.flags` is read for.
    Raises CatalogError with every error, one a line, in the order of the file.
    """

    def problems(raw: Table) -> Iterator[Problem]:
        yield from _schema_problems(raw)
        yield from _meaning_problems(raw, machine)

    return _without_problems(content, file, problems)


def shaped(content: bytes, file: str) -> Table:
    """`checked`, but for what names in the tables mean: a model that is yet to come may be spoken of."""
    return _without_problems(content, file, _schema_problems)


def _without_problems(content: bytes, file: str, problems_of: Callable[[Table], Iterable[Problem]]) -> Table:
    text = decoded(content, file)
    raw = parsed(text, file)
    if problems := list(_beyond(raw)) or list(problems_of(raw)):
        raise _error(text, file, problems)
    return raw


def unreadable(path: Path, error: OSError) -> CatalogError:
    """There is no catalog at `path`, or none that can be read."""
    fix = {
        errno.ENOENT: "go to the folder that holds models.toml; doit init lays out a new one",
        errno.EISDIR: "name a file, or move that folder away: doit init writes a models.toml",
        errno.EACCES: f"chmod u+r {path}",
    }.get(error.errno or 0, "name a catalog that can be read")
    why = "it is a folder" if error.errno == errno.EISDIR else cause(error).lower()
    what = f"{path.name}: cannot be read: {why}; expected the catalog {path.absolute()}"
    return CatalogError(what, fix=fix)


def decoded(content: bytes, file: str) -> str:
    """The text of a catalog. Raises CatalogError, with the line, for anything but plain UTF-8."""
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), None)
    if encoding is not None:
        found = f"found a byte order mark of {encoding}; expected UTF-8 text without one"
        raise CatalogError(f"{file}:1: {found}", fix=SAVE.format(file=file))
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        found = f"found the byte 0x{content[error.start]:02x}; expected UTF-8 text"
        line = content.count(b"\n", 0, error.start) + 1
        raise CatalogError(f"{file}:{line}: {found}", fix=SAVE.format(file=file)) from None
    if odd := re.search("\0|\r(?!\n)", text):
        line = text.count("\n", 0, odd.start()) + 1
        found = ODD[odd[0]]
        raise CatalogError(f"{file}:{line}: {found}", fix=SAVE.format(file=file))
    return text


def parsed(text: str, file: str) -> Table:
    """The tables in `text`. Raises CatalogError at the line and column of what is no TOML."""
    import tomllib

    try:
        return tomllib.loads(text)
    except RecursionError:
        what = f"{file}:1: found arrays or tables nested too deeply; expected at most {DEPTH} levels"
        raise CatalogError(what, fix=FIX) from None
    except ValueError as error:
        raise _syntax_error(text, file, str(error)) from None


def _syntax_error(text: str, file: str, message: str) -> CatalogError:
    """A TOML error at its line and column; of a name given twice, at both lines."""
    at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    line = int(at[1]) if at and at[1] else text.count("\n") + 1
    column = f":{at[2]}" if at and at[2] else ""
    if "twice" in message or "overwrite" in message or "mutate" in message:
        before = [(keys, number) for keys, number in _statements(text) if number <= line]
        keys, second = before[-1] if before else ((), line)
        firsts = [number for other, number in before[:-1] if other == keys]
        if firsts:
            found = f"found this name again; expected each name once: the first stands in line {firsts[0]}"
            fix = f"rename or remove one of the two, in line {firsts[0]} or {second}"
            return CatalogError(f"{file}:{second}: {shown_key(keys)}: {found}", fix=fix)
    cause = message[: at.start()] if at else message
    return CatalogError(f"{file}:{line}{column}: not TOML: {cause}", fix="correct that line")


def _beyond(raw: Table) -> Iterator[Problem]:
    """Numbers and depths that TOML allows or tomllib lets through, and that no printing or JSON survives."""
    stack: list[tuple[Keys, object]] = [((), raw)]
    while stack:
        keys, value = stack.pop()
        inner = list(_inside(value))
        if inner and len(keys) >= DEPTH:
            yield Problem(keys, shown(value), f"at most {DEPTH} levels of tables and arrays")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            yield Problem(keys, "a number beyond 64 bits", "a number that 64 bits hold")
        else:
            stack += [((*keys, key), entry) for key, entry in inner]


def _inside(value: object) -> Iterable[tuple[str | int, object]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


# ---- what the schema says, in our words


class Refusal(NamedTuple):
    """What the schema's keyword `rule` refuses: the value at `keys`, or the last of the keys itself."""

    keys: Keys
    rule: str
    wanted: Any
    found: Any
    schema: Table
    is_name: bool


def _schema_problems(raw: Table) -> Iterator[Problem]:
    from jsonschema import Draft202012Validator, validators

    def whole(_: object, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)

    # JSON counts 4.0 as an integer; TOML tells them apart, and so do the environment and the build key.
    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", whole)
    extend: Any = validators.extend
    schema = json.loads(SCHEMA.read_text("utf-8"))
    for error in extend(Draft202012Validator, type_checker=checker)(schema).iter_errors(raw):
        is_name = "propertyNames" in error.absolute_schema_path
        keys = (*error.absolute_path, *([error.instance] if is_name else []))
        parts = (error.validator, error.validator_value, error.instance, error.schema)
        yield from _translated(Refusal(keys, *parts, is_name), schema["$defs"])


def _translated(refusal: Refusal, definitions: Table) -> Iterator[Problem]:
    keys, rule, _, found, schema, is_name = refusal
    if is_name:
        yield Problem(keys, f"the name {shown(found)}", schema["title"], _mended(found, schema))
    elif rule == "additionalProperties":
        yield from _unknown_keys(refusal)
    elif rule in ("required", "dependentRequired"):
        for name in _missing(refusal):
            yield Problem((*keys, name), "nothing", _title(schema, name, definitions))
    elif rule in ("oneOf", "anyOf"):
        yield Problem(keys, _listed(found), _choice(refusal))
    else:
        yield Problem(keys, shown(found), schema["title"], _meant(refusal))


def _unknown_keys(refusal: Refusal) -> Iterator[Problem]:
    names = sorted(refusal.schema.get("properties", {}))
    patterns = "|".join(refusal.schema.get("patternProperties", {}))
    for name in refusal.found:
        if name not in names and not (patterns and re.search(patterns, name)):
            expected = "one of " + ", ".join(names) + (", or a flag in capitals" if patterns else "")
            yield Problem((*refusal.keys, name), "an unknown key", expected, flags.nearest(name, names))


def _missing(refusal: Refusal) -> list[str]:
    wanted = refusal.wanted
    if isinstance(wanted, dict):
        wanted = [key for name, needed in wanted.items() if name in refusal.found for key in needed]
    return [name for name in wanted if name not in refusal.found]


def _title(schema: Table, name: str, definitions: Table) -> str:
    """What the key `name` should hold: the title of its schema, which may stand under $defs."""
    inner = schema["properties"][name]
    if "title" not in inner:
        inner = definitions[inner["$ref"].rpartition("/")[2]]
    return str(inner["title"])


def _choice(refusal: Refusal) -> str:
    if refusal.rule == "oneOf":
        return str(refusal.schema["title"])
    choices = ", ".join(choice["required"][0] for choice in refusal.wanted)
    return f"{refusal.schema['title']}, with at least one of {choices}"


def _listed(table: object) -> str:
    return "the keys " + ", ".join(sorted(table)) if isinstance(table, dict) and table else "no keys"


def _meant(refusal: Refusal) -> str | None:
    if refusal.rule == "enum" and isinstance(refusal.found, str):
        return flags.nearest(refusal.found, refusal.wanted)
    return _mended(refusal.found, refusal.schema) if refusal.rule == "pattern" else None


def _mended(text: object, schema: Table) -> str | None:
    """A spelling near the text that the schema takes: without odd characters, with a v, in lower case."""
    plain = re.sub(r"[\s,\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", str(text)).strip()
    slug = re.sub(r"[^a-z0-9_.-]+", "-", plain.replace("_driving_", "-").casefold()).strip("-_.")
    spellings = (plain, f"v{plain}", slug) if plain else ()
    pattern = schema.get("pattern", "")
    return next((new for new in spellings if new and new != text and re.search(pattern, new)), None)


# ---- what no schema can say; each check passes over what the schema has refused already


def _meaning_problems(raw: Table, machine: str) -> Iterator[Problem]:
    yield from _reference_problems(raw)
    yield from _machine_problems(raw, machine)
    yield from _model_problems(raw)
    yield from _flag_problems(raw)
    yield from _release_problems(raw)


def _table(parent: object, key: str) -> Table:
    value = parent.get(key) if isinstance(parent, dict) else None
    return value if isinstance(value, dict) else {}


def _tables(raw: Table, key: str) -> dict[str, Table]:
    return {name: value for name, value in _table(raw, key).items() if isinstance(value, dict)}


def _reference_problems(raw: Table) -> Iterator[Problem]:
    """Names of flag sets, toolchains and releases that do not exist."""
    defaults = _table(raw, "defaults")
    yield from _references(raw, ("defaults",), ({"toolchain": "default"} | defaults) if defaults else {})
    yield from _references(raw, ("monitoring",), _table(raw, "monitoring"))
    for machine, name in _table(defaults, "flags").items():
        yield from _reference(raw, ("defaults", "flags", machine), "flags", name)
    for model_id, table in _tables(raw, "models").items():
        yield from _references(raw, ("models", model_id), table)
    for name, table in _tables(raw, "flags").items():
        yield from _reference(raw, ("flags", name, "extends"), "flags", table.get("extends"))
    for name, table in _tables(raw, "release").items():
        yield from _reference(raw, ("release", name, "from"), "release", table.get("from"))


def _references(raw: Table, keys: Keys, table: Table) -> Iterator[Problem]:
    for key, target in (("flags", "flags"), ("toolchain", "toolchains"), ("since", "release")):
        yield from _reference(raw, (*keys, key), target, table.get(key))


def _reference(raw: Table, keys: Keys, target: str, name: object) -> Iterator[Problem]:
    known = _table(raw, target)
    if isinstance(name, str) and name not in known:
        some = ", ".join(sorted(known)[:12]) or "none yet"
        expected = f"the name of a [{target}.NAME] table ({some}{', …' if len(known) > 12 else ''})"
        others = [other for other in known if (target, other) != keys[:2]]
        yield Problem(keys, shown(name), expected, flags.nearest(name, others))


def _machine_problems(raw: Table, machine: str) -> Iterator[Problem]:
    by_machine = _table(_table(raw, "defaults"), "flags")
    if by_machine and machine not in by_machine:
        expected = f'this machine\'s too: {machine} = "…" (`uname -m` names it)'
        yield Problem(("defaults", "flags"), f"sets for {', '.join(sorted(by_machine))}", expected)


def _model_problems(raw: Table) -> Iterator[Problem]:
    models = _tables(raw, "models")
    releases = _tables(raw, "release")
    folded: dict[str, str] = {}
    for model_id, table in models.items():
        first = folded.setdefault(model_id.casefold(), model_id)
        if first != model_id:
            expected = (
                f"IDs that differ by more than case from {first}, whose files would have the same names"
            )
            yield Problem(("models", model_id), f"the ID {shown(model_id)}", expected)
        yield from _date_problem(("models", model_id, "released"), table.get("released"))
        yield from _entry_problem(releases, model_id, table)
        yield from _layout_problem(model_id, table)
        yield from _gpu_problem(raw, model_id, table)
        if "feed" in table and table.get("type") != layouts.GENERIC:
            expected = 'no such key, or type = "generic": a driving model is fed what its runtime feeds it'
            yield Problem(("models", model_id, "feed"), _listed(table["feed"]), expected)


def _date_problem(keys: Keys, text: object) -> Iterator[Problem]:
    import datetime

    if isinstance(text, str) and re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII):
        try:
            datetime.date.fromisoformat(text)
        except ValueError as error:
            yield Problem(keys, shown(text), f"a day of the calendar ({error})")


def _entry_problem(releases: dict[str, Table], model_id: str, table: Table) -> Iterator[Problem]:
    since, contract = table.get("since"), table.get("contract")
    if isinstance(since, str) and since in releases and contract in ("warp", "policy"):
        fed = flags.inherited(releases, since, "from", "contract")
        if fed and fed != contract:
            expected = f"{fed}, which release {since} feeds: a model of another contract cannot enter it"
            yield Problem(("models", model_id, "contract"), shown(contract), expected)


def _gpu_problem(raw: Table, model_id: str, table: Table) -> Iterator[Problem]:
    """The tag that makes a client start an external GPU, and the device that the model is compiled for."""
    sets, default = _tables(raw, "flags"), _table(raw, "defaults").get("flags")
    name = table.get("flags", default)
    target = flags.inherited(sets, name, "extends", "DEV") if isinstance(name, str) and name in sets else None
    tagged = table.get("uses_external_gpu", False)
    if target is None or not isinstance(tagged, bool) or tagged == flags.is_external(target):
        return
    keys = ("models", model_id, "uses_external_gpu" if tagged else "flags")
    if not tagged:
        expected = "uses_external_gpu = true beside it: without that no client starts the external GPU"
        yield Problem(keys, f"the set {shown(name)}, which compiles for {target}", expected)
    elif flags.device(target) in flags.ON_BOARD:
        found = f"true, beside the set {shown(name)}, which compiles for {target}"
        yield Problem(
            keys, found, "a set for an external GPU (flags.usbgpu of the default catalog), or false"
        )


def _layout_problem(model_id: str, table: Table) -> Iterator[Problem]:
    layout = table.get("layout")
    if not isinstance(layout, str) or layout not in layouts.LIMITS:
        return
    keys = ("models", model_id)
    contract, types = layouts.LIMITS[layout]
    if "since" in table:
        expected = f"{layouts.RELEASED}, the only layout that releases hold, or no key since"
        yield Problem((*keys, "layout"), shown(layout), expected)
    if table.get("contract") in ("warp", "policy") and table["contract"] != contract:
        expected = f"{contract}, the only contract of the layout {layout}"
        yield Problem((*keys, "contract"), shown(table["contract"]), expected)
    if isinstance(table.get("type"), str) and table["type"] not in types:
        expected = f"{' or '.join(types)} for the layout {layout}"
        yield Problem((*keys, "type"), shown(table["type"]), expected)


def _flag_problems(raw: Table) -> Iterator[Problem]:
    sets = _tables(raw, "flags")
    pins = [table.get("tinygrad") for table in _tables(raw, "toolchains").values()]
    known = flags.known(pin if isinstance(pin, str) else None for pin in pins)
    for name in sets:
        cycle = _cycle(sets, name, "extends")
        if cycle:
            yield from _cycle_problem(("flags", name, "extends"), cycle)
        yield from _own_flag_problems(sets, name, known)
        if not cycle and not _broken(sets, name, "extends"):
            yield from _whole_set_problems(sets, name)


def _own_flag_problems(
    sets: dict[str, Table], name: str, known: Mapping[str, flags.Kind]
) -> Iterator[Problem]:
    absent = flags.gathered(sets, name, "absent")
    capitals = {flag: value for flag, value in sets[name].items() if _is_flag(flag, value)}
    for fault in flags.check(capitals, known, flags.gathered(sets, name, "unchecked")):
        found = "an unknown flag" if fault.found is None else shown(fault.found)
        yield Problem(("flags", name, fault.name), found, fault.expected, fault.near)
    for flag in capitals:
        if flag in absent:
            expected = f"no {flag}, which this set or one that it extends lists under absent"
            yield Problem(("flags", name, flag), shown(capitals[flag]), expected)


def _is_flag(name: str, value: object) -> bool:
    """Whether the schema takes the pair, so that only its kind is left to check."""
    strings = isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    return re.fullmatch("[A-Z][A-Z0-9_]*", name) is not None and (
        strings or isinstance(value, bool | int | float | str)
    )


def _whole_set_problems(sets: dict[str, Table], name: str) -> Iterator[Problem]:
    lineage = flags.lineage(sets, name, "extends")
    values = {flag for ancestor in lineage for flag in sets[ancestor]} - flags.gathered(sets, name, "absent")
    if "DEV" not in values:
        yield Problem(
            ("flags", name, "DEV"), "nothing", 'a device such as "QCOM", here or in a set it extends'
        )
        return
    for pin in flags.missing_pins(_nearest_values(sets, lineage, values)):
        reason = "tinygrad would take it from this machine's cores, and the artifact's bytes depend on it"
        yield Problem(
            ("flags", name, pin), "nothing", f"a number, since the set compiles for the CPU: {reason}"
        )


def _nearest_values(sets: dict[str, Table], lineage: list[str], names: set[str]) -> Table:
    values: Table = {}
    for ancestor in reversed(lineage):
        values |= {flag: value for flag, value in sets[ancestor].items() if flag in names}
    return values


def _cycle(tables: dict[str, Table], name: str, key: str) -> list[str]:
    """The names from `name` back to `name`, or nothing when they do not lead back."""
    trail = flags.lineage(tables, name, key)
    return trail if len(trail) > 1 and trail[-1] == name else []


def _cycle_problem(keys: Keys, cycle: list[str]) -> Iterator[Problem]:
    if cycle[0] == min(cycle):  # each cycle once
        yield Problem(keys, f"the cycle {' → '.join(cycle)}", "a chain that ends")


def _broken(tables: dict[str, Table], name: str, key: str) -> bool:
    """Whether the chain from `name` ends in a cycle or in a name that does not exist."""
    trail = flags.lineage(tables, name, key)
    return trail[-1] in trail[:-1] or tables[trail[-1]].get(key) is not None


def _release_problems(raw: Table) -> Iterator[Problem]:
    releases = _tables(raw, "release")
    models = _tables(raw, "models")
    for name, table in releases.items():
        if cycle := _cycle(releases, name, "from"):
            yield from _cycle_problem(("release", name, "from"), cycle)
        trail = flags.lineage(releases, name, "from")
        members = [model_id for model_id, model in models.items() if model.get("since") in trail]
        for model_id in _table(table, "ids"):
            if model_id not in members:
                near = flags.nearest(model_id, members)
                yield Problem(
                    ("release", name, "ids", model_id),
                    shown(model_id),
                    f"an ID that release {name} holds",
                    near,
                )
        yield from _place_problems(name, table, members)
        yield from _origin_contract_problem(releases, name)


def _place_problems(name: str, table: Table, members: list[str]) -> Iterator[Problem]:
    """`after` speaks of published IDs; the one stood after may be of no model, since it may come later."""
    published = published_ids(name, table, members)
    if published is None:
        return
    places = {one: anchor for one, anchor in _table(table, "after").items() if isinstance(anchor, str)}
    chains = {one: {"after": anchor} for one, anchor in places.items()}
    known = list(published.values())
    for one, anchor in places.items():
        keys = ("release", name, "after", one)
        if one not in known:
            near = published.get(one) or flags.nearest(one, known)
            yield Problem(keys, shown(one), f"an ID that release {name} publishes", near)
        if anchor in published and anchor not in known:
            expected = f"{published[anchor]}, the name of {anchor} in release {name}"
            yield Problem(keys, shown(anchor), expected)
        if cycle := _cycle(chains, one, "after"):
            yield from _cycle_problem(keys, cycle)


def published_ids(name: str, table: Table, members: list[str]) -> dict[str, str] | None:
    """Published ID by model ID in release `name`; None where something else is wrong with the names."""
    suffix, explicit = table.get("suffix", ""), _table(table, "ids")
    if not isinstance(suffix, str) or not all(isinstance(one, str) for one in explicit.values()):
        return None
    if not suffix:
        return {one: one for one in members}
    try:
        return namespace.rename(members, version=name, suffix=suffix, explicit=explicit)
    except CatalogError:
        return None


def _origin_contract_problem(releases: dict[str, Table], name: str) -> Iterator[Problem]:
    origin, contract = releases[name].get("from"), releases[name].get("contract")
    if isinstance(origin, str) and origin in releases and isinstance(contract, str):
        fed = flags.inherited(releases, origin, "from", "contract")
        if fed and fed != contract:
            expected = f"{fed}, the contract of {origin}, whose models cannot enter under another"
            yield Problem(("release", name, "contract"), shown(contract), expected)


# ---- where in the file, and how it reads


def shown(value: object) -> str:
    """A TOML value in an error: short, on one line, as the file spells it, less what a URL may hide."""
    if isinstance(value, str):
        value = guarded(value)
        return json.dumps(value if len(value) <= 60 else value[:59] + "…", ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array of one value" if len(value) == 1 else f"an array of {len(value)} values"
    return f"the number {value}" if isinstance(value, int | float) else f"the unquoted date or time {value}"


def shown_key(keys: Keys) -> str:
    """Keys as TOML writes them: `models.pop2.cameras[0]`."""
    text = ""
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", key)
            text += ("." if text else "") + (key if bare else json.dumps(key, ensure_ascii=False))
    return text or "the file"


def _error(text: str, file: str, problems: list[Problem]) -> CatalogError:
    lines: dict[Keys, int] = {}
    for keys, line in _statements(text):
        for length in range(1, len(keys) + 1):
            lines.setdefault(keys[:length], line)
    placed = sorted({(_line(lines, problem.keys), problem.sentence()) for problem in problems})
    return CatalogError.of_lines((f"{file}:{line}: {sentence}" for line, sentence in placed), fix=FIX)


def _line(lines: dict[Keys, int], keys: Keys) -> int:
    """The line of the key, or of the nearest table or inline table that holds it."""
    prefixes = (keys[:length] for length in range(len(keys), 0, -1))
    return next((lines[prefix] for prefix in prefixes if prefix in lines), 1)


_BLANK = re.compile(r"[ \t]*")
_KEY = re.compile(r"""[ \t]*(?:([A-Za-z0-9_-]+)|"((?:\\.|[^"\\\n])*)"|'([^'\n]*)')[ \t]*""")
_VALUE = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[^"\'#\[\]{}\n]+|.',
    re.DOTALL,
)


def _statements(text: str) -> Iterator[tuple[Keys, int]]:
    """Each table header and key with its line, in the order of the text, which may be wrong TOML.

    A key inside an inline table has no statement of its own, nor has what a string or an array holds.
    """
    table: Keys = ()
    position, line = 0, 1
    while position < len(text):
        blank = _BLANK.match(text, position)
        start = blank.end() if blank else position
        header = text.startswith("[", start)
        start += 2 if text.startswith("[[", start) else int(header)
        keys, _ = _dotted(text, start)
        if header:
            table = keys
        if keys:
            yield (table if header else table + keys), line
        end = _statement_end(text, position, whole_line=header)
        line += text.count("\n", position, end)
        position = end


def _dotted(text: str, position: int) -> tuple[Keys, int]:
    keys: list[str] = []
    while match := _KEY.match(text, position):
        bare, basic, literal = match.groups()
        keys.append(bare or literal or _unescaped(basic or ""))
        position = match.end()
        if not text.startswith(".", position):
            break
        position += 1
    return tuple(keys), position


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _statement_end(text: str, position: int, *, whole_line: bool) -> int:
    """Where the next statement starts: after the first line break outside strings and brackets."""
    if whole_line:
        return (text.find("\n", position) + 1) or len(text)
    depth = 0
    while position < len(text):
        match = _VALUE.match(text, position)
        token = match[0] if match else text[position]
        position += len(token)
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        if token == "\n" and depth <= 0:
            break
    return position
