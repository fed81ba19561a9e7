"""What a runtime's log or crash text gives away: each known failure with its lines, cause and next command.

Nothing is guessed: a finding needs its own words in the text. What needs two of them (freezes only under the
real launcher) or arithmetic (which frame skip fits) is put together here; the rest is symptoms.py's table.
"""

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from rules.counting import counted
from rules.diagnosing import mismatch, symptoms
from rules.diagnosing.mismatch import Mismatch, Tensor
from rules.diagnosing.symptoms import CERTAIN, CONFIDENCES, LIKELY, POSSIBLE, Sign, Symptom
from rules.url import hidden

if TYPE_CHECKING:
    from rules.graph import Graph
    from rules.keeping.records import Record

LIMIT: Final = 64 << 20  # bytes of a log
WINDOW: Final = 2000  # characters of a long line that are looked at together
SHOWN: Final = 160
COMMAND: Final = 4000  # characters of a command over several lines
KEPT: Final = 3  # lines of evidence; the rest is counted
NAMES: Final = 1000  # artifact names that are looked at
TRIES: Final = 100  # places where an id's letters stand without being the id
SUFFIXES: Final = ("_driving_tinygrad", "_tinygrad")
PREFIX: Final = "driving_supercombo_"
CONTROL: Final = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]|[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

ARGS: Final = "args mismatch in JIT"
CONTRACT: Final = "contract mismatch"
FRAME_SKIP: Final = "wrong frame skip"
ON_CPU: Final = "captured on the CPU"
SHAPE: Final = "shape mismatch"
DEVICE: Final = "captured on another device"
OTHER_TINYGRAD: Final = "artifact of another tinygrad"
HACKS: Final = "OPENPILOT_HACKS missing"
LAUNCHER: Final = "freezes only under the real launcher"
ONROAD: Final = "freezes onroad"
FROZEN_UI: Final = "user interface frozen"
GONE: Final = "model process gone or zombie"
HISTORY: Final = {"warp": "history in the warp", "policy": "history in the policy"}
FIX: Final = {symptom.name: symptom.fix for symptom in symptoms.SYMPTOMS}


@dataclass(frozen=True)
class Evidence:
    """A line of the log: its number from 1, and as much of it as a terminal line shows."""

    line: int
    text: str


@dataclass(frozen=True)
class Finding:
    """One failure: `confidence` is "certain", "likely" or "possible"; `lines` is how many lines show it."""

    name: str
    confidence: str
    cause: str
    fix: str
    evidence: tuple[Evidence, ...]
    lines: int

    def as_json(self) -> dict[str, Any]:
        """The finding as plain JSON values."""
        return asdict(self)


class Log:
    """A text in lines, for search without regard to case (ASCII only, so that offsets stay)."""

    def __init__(self, text: str) -> None:
        self.text = text
        # Replacing is lossless for length: both decode the same bytes but for A to Z.
        raw = text.encode("utf-8", "surrogatepass")
        self.low = raw.lower().decode("utf-8", "surrogatepass")

    @cached_property
    def _ends(self) -> list[int]:
        return [found.start() for found in re.finditer("\n", self.text)]

    def line(self, offset: int) -> int:
        """The number of the line that holds the character at `offset`."""
        return bisect.bisect_left(self._ends, offset) + 1

    def window(self, offset: int) -> tuple[int, int]:
        """Where the line around `offset` begins and ends; of a long line, only the part around it."""
        least, most = max(0, offset - WINDOW // 2), min(len(self.text), offset + WINDOW // 2)
        stop = self.text.find("\n", offset, most)
        return self.text.rfind("\n", least, offset) + 1 or least, most if stop < 0 else stop

    def evidence(self, offset: int) -> Evidence:
        """The line around `offset`, without what could upset a terminal."""
        start, stop = self.window(offset)
        # A URL is looked at as a whole, before any of it is cut off.
        line = hidden(self.text[start:stop])
        at = len(hidden(self.text[start:offset]))
        first = max(0, at - SHOWN // 2) if len(line) > SHOWN else 0
        return Evidence(self.line(offset), CONTROL.sub(" ", line[first : first + SHOWN]).strip())

    def places(self, sign: Sign) -> Iterator[int]:
        """An offset in each line that shows the sign."""
        at = self.low.find(sign.trigger)
        while at >= 0:
            start, stop = self.window(at)
            line = CONTROL.sub(" ", self.text[start:stop])
            if all(one.search(line) for one in sign.also) and not (sign.never and sign.never.search(line)):
                yield at
            at = self.low.find(sign.trigger, max(stop, at + 1))

    def shows(self, signs: Sequence[Sign]) -> list[int]:
        """An offset in each line that shows any of the signs, in order."""
        found = {self.line(at): at for sign in signs for at in self.places(sign)}
        return [found[line] for line in sorted(found)]

    def finding(self, name: str, confidence: str, cause: str, fix: str, places: Sequence[int]) -> Finding:
        """A finding with its first lines as evidence."""
        shown = tuple(self.evidence(at) for at in places[:KEPT])
        return Finding(name, confidence, cause, fix, shown, len(places))


def diagnose(text: str, graph: "Graph | None" = None) -> list[Finding]:
    """Every failure that `text` gives away, the surest first; none is an answer too.

    `graph` lets it name the model in what to type, and look into the flags that its artifact was built with.
    """
    log = Log(text)
    found = [*_jit(log), *_table(log)]
    found += [*_freezes(log, found), *_recorded_flags(log, graph)]
    found += _hacks(log, found)
    merged = _merged(found)
    model = next(iter(models(text, graph)), None) or _own_model(log)
    return [replace(one, fix=_filled(one, model, _file(log))) for one in merged]


def _merged(found: Sequence[Finding]) -> list[Finding]:
    """One finding for each name, its surest; then by confidence, then in the order of discovery."""
    best: dict[str, Finding] = {}
    for one in found:
        known = best.get(one.name)
        if known is None:
            best[one.name] = one
            continue
        first, second = sorted((known, one), key=lambda each: CONFIDENCES.index(each.confidence))
        lines = {each.line: each for each in (*second.evidence, *first.evidence)}
        shown = tuple(lines[line] for line in sorted(lines))[:KEPT]
        best[one.name] = replace(first, evidence=shown, lines=max(len(lines), known.lines, one.lines))
    return sorted(best.values(), key=lambda one: CONFIDENCES.index(one.confidence))


def _filled(finding: Finding, model: str | None, file: str | None) -> str:
    first = str(finding.evidence[0].line) if finding.evidence else ""
    fix = finding.fix.replace("{first}", first).replace("{model}", model or "ID")
    return fix.replace("{file}", file or "FILE")


# ---- what one line gives away


def _table(log: Log) -> Iterator[Finding]:
    for symptom in symptoms.SYMPTOMS:
        places = log.shows(symptom.signs)
        if len(places) >= symptom.least:
            cause = _with_words(log, symptom, places)
            yield log.finding(symptom.name, symptom.confidence, cause, symptom.fix, places)


def _with_words(log: Log, symptom: Symptom, places: Sequence[int]) -> str:
    """The cause, followed by which of the symptom's words the lines hold."""
    if not symptom.words:
        return symptom.cause
    lines = [log.text[slice(*log.window(at))] for at in places]
    named = [word for word in symptom.words if any(word in line for line in lines)]
    return f"{symptom.cause} {', '.join(named)}"


# ---- args mismatch in JIT


def _jit(log: Log) -> Iterator[Finding]:
    for one in mismatch.mismatches(log.text):
        if one.names != ((), ()):
            yield _names_differ(log, one)
        elif one.tensors != ((), ()):
            yield from _tensors_differ(log, one)
        else:
            yield log.finding(
                ARGS, POSSIBLE, _CUT, "doit inspect {file}, then doit diagnose the whole log", [one.start]
            )
    yield from _pieces(log)


_CUT: Final = (
    "the message is cut before it says what differs, which is one of: contract, frame skip, device of the "
    "capture, a stale artifact"
)


def _names_differ(log: Log, one: Mismatch) -> Finding:
    captured, passed = one.names
    ours, theirs = mismatch.call(captured), mismatch.call(passed)
    if ours and theirs and ours[0] == theirs[0] and ours != theirs:
        cause = (
            f"{ours[0]} was captured with {_listed(captured)} (contract {ours[1]}: {HISTORY[ours[1]]}), "
            f"and the runtime passes {_listed(passed)} (contract {theirs[1]}: {HISTORY[theirs[1]]})"
        )
        fix = (
            "install the artifact of the release that this client reads, or set "
            f'contract = "{theirs[1]}" for {{model}} in models.toml, then doit pkl:{{model}}'
        )
        return log.finding(CONTRACT, CERTAIN, cause, fix, [one.start])
    if sorted(captured) == sorted(passed):
        cause = "the names are the same in another order, as another tinygrad lists them"
        return log.finding(OTHER_TINYGRAD, LIKELY, cause, FIX[OTHER_TINYGRAD], [one.start])
    name, cause = CONTRACT if ours or theirs else ARGS, _strange_names(captured, passed)
    return log.finding(name, CERTAIN, cause, "doit inspect {file} lists the argument names", [one.start])


def _strange_names(captured: Sequence[str], passed: Sequence[str]) -> str:
    sides = []
    for who, names in (("captured", captured), ("passed by the runtime", passed)):
        known = mismatch.call(tuple(names))
        told = f"{known[0]} of contract {known[1]}" if known else "a call of no contract known here"
        sides.append(f"{who}: {_listed(names)} ({told})")
    missing = _listed(sorted(set(captured) - set(passed))) or "nothing"
    extra = _listed(sorted(set(passed) - set(captured))) or "nothing"
    return f"the argument names differ: {'; '.join(sides)}; the runtime lacks {missing} and adds {extra}"


def _listed(names: Sequence[str]) -> str:
    return CONTROL.sub(" ", ", ".join(names[:12]))


def _tensors_differ(log: Log, one: Mismatch) -> Iterator[Finding]:
    captured, passed = one.tensors
    at = [one.start]
    if len(captured) != len(passed):
        with_so_many = f"captured with {counted(len(captured), 'tensor')}, called with {len(passed)}"
        cause = f"{with_so_many} (or the message is cut short)"
        yield log.finding(ARGS, POSSIBLE, cause, "doit inspect {file} lists the arguments", at)
        yield from _devices_differ(log, captured, passed, at)
        return
    pairs = list(zip(captured, passed, strict=True))
    found = [
        *_devices_differ(log, captured, passed, at),
        *_shapes_differ(log, [pair for pair in pairs if pair[0].shape != pair[1].shape], at),
        *_types_differ(log, pairs, at),
    ]
    alike = "both sides read alike where the message can be understood: the file is of another build"
    yield from found or [log.finding(ARGS, POSSIBLE, alike, "doit inspect {file}, then doit pkl:{model}", at)]


def _types_differ(log: Log, pairs: Sequence[tuple[Tensor, Tensor]], at: list[int]) -> Iterator[Finding]:
    types = sorted({(a.dtype, b.dtype) for a, b in pairs if a.dtype != b.dtype})
    if types:
        told = ", ".join(f"{a} against {b}" for a, b in types[:4])
        cause = f"captured against passed: {told}"
        yield log.finding("dtype mismatch", CERTAIN, cause, "doit inspect {file} lists the dtypes", at)


def _devices(tensors: Sequence[Tensor]) -> set[str]:
    """The devices that tensors live on; NPY is the host's memory, which every contract also uses."""
    return {tensor.device.split(":", 1)[0] for tensor in tensors} - {"NPY"}


def _devices_differ(
    log: Log, captured: Sequence[Tensor], passed: Sequence[Tensor], at: list[int]
) -> Iterator[Finding]:
    ours, theirs = _devices(captured), _devices(passed)
    if ours and theirs and ours != theirs:
        there = ", ".join(sorted(theirs))
        cause = f"it was captured on {', '.join(sorted(ours))}, and the runtime passes tensors on {there}"
        if "CPU" in ours and "CPU" not in theirs:
            yield log.finding(ON_CPU, CERTAIN, cause, _cpu_fix(there), at)
        else:
            fix = f"doit inspect {{file}} --expect-device {min(theirs)}; look at DEV where the runtime starts"
            yield log.finding(DEVICE, CERTAIN, cause, fix, at)
        return
    moved = [(a.device, b.device) for a, b in zip(captured, passed, strict=False) if a.device != b.device]
    if moved and len(captured) == len(passed):
        told = ", ".join(f"{a} against {b}" for a, b in sorted(set(moved)))
        cause = f"a tensor lies elsewhere than it did at the capture: {told} (NPY is the host's memory)"
        yield log.finding(DEVICE, CERTAIN, cause, "doit inspect {file} lists the devices of each capture", at)


def _cpu_fix(device: str) -> str:
    return (
        FIX[ON_CPU] if device == "QCOM" else f'set DEV = "{device}" in its flag set, then doit pkl:{{model}}'
    )


def _shapes_differ(log: Log, pairs: list[tuple[Tensor, Tensor]], at: list[int]) -> Iterator[Finding]:
    queues = [(a.shape, b.shape) for a, b in pairs if _same_queue(a, b)]
    if queues:
        yield _frame_skip(log, queues, at)
    others = [(a, b) for a, b in pairs if not _same_queue(a, b)]
    if others:
        told = "; ".join(_shapes(a, b) for a, b in others[:4])
        fix = (
            "doit inspect {file} lists the shapes; compile for this model and these cameras: doit pkl:{model}"
        )
        yield log.finding(SHAPE, CERTAIN, told, fix, at)


def _same_queue(a: Tensor, b: Tensor) -> bool:
    kind = mismatch.queue(a.shape)
    return a.whole and b.whole and kind is not None and a.shape[1:] == b.shape[1:]


def _shapes(a: Tensor, b: Tensor) -> str:
    """Two shapes in words; of a long view only the numbers that differ."""
    if a.whole and b.whole:
        return f"captured with {_sized(a.shape)}, called with {_sized(b.shape)}"
    differing = [f"arg={x} against arg={y}" for x, y in zip(a.shape, b.shape, strict=False) if x != y]
    return f"captured against passed: {', '.join(differing[:4]) or 'another view of the same tensor'}"


def _sized(shape: tuple[int, ...]) -> str:
    camera = mismatch.camera(shape[0]) if len(shape) == 1 else None
    return f"{shape}, a frame of {camera}" if camera else f"{shape}" if shape else "a flat tensor"


def _frame_skip(
    log: Log, queues: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], at: list[int]
) -> Finding:
    sides = []
    for side in (0, 1):
        fits = [mismatch.frame_skips(mismatch.queue(pair[side]) or "", pair[side][0]) for pair in queues]
        sides.append(sorted(frozenset.intersection(*fits)))
    depths = ", ".join(
        f"{mismatch.queue(a)} queue {a[0]} against {b[0]} deep" for a, b in dict.fromkeys(queues)
    )
    if not all(sides):
        cause = f"the queues differ in depth, and no one frame skip explains it ({depths})"
        return log.finding(SHAPE, CERTAIN, cause, "doit inspect {file} lists the shapes", at)
    ours, theirs = (" or ".join(map(str, side)) for side in sides)
    cause = (
        f"captured with frame skip {ours}, while the runtime's queues are of frame skip {theirs} ({depths})"
    )
    fix = f"set frame_skip = {sides[1][0]} for {{model}} in models.toml, then doit pkl:{{model}}"
    return log.finding(FRAME_SKIP, CERTAIN, cause, fix, at)


def _pieces(log: Log) -> Iterator[Finding]:
    """Somebody's summary of a mismatch: `arg=2 vs arg=5`."""
    for at in log.shows(symptoms.PIECES):
        line = log.text[slice(*log.window(at))]
        ours, theirs = (int(one) for one in re.findall(r"\barg=(\d{1,6})", line)[:2])
        fits = [sorted(mismatch.frame_skips("image", depth)) for depth in (ours, theirs)]
        if ours != theirs and all(fits):
            cause = f"as image queues, {ours} and {theirs} deep are frame skip {fits[0][0]} and {fits[1][0]}"
            fix = f"set frame_skip = {fits[1][0]} for {{model}} in models.toml, then doit pkl:{{model}}"
            yield log.finding(FRAME_SKIP, LIKELY, cause, fix, [at])
        elif ours != theirs:
            fix = "doit inspect {file} lists the shapes"
            yield log.finding(SHAPE, LIKELY, f"one side has {ours}, the other {theirs}", fix, [at])


# ---- what takes more than one line


def _freezes(log: Log, found: Sequence[Finding]) -> Iterator[Finding]:
    passed, frozen = log.shows(symptoms.HARNESS_PASSED), log.shows(symptoms.FROZEN)
    later = [one for one in found if one.name in (FROZEN_UI, GONE)]
    after = [at for at in frozen if passed and at > passed[0]]
    lines = [
        each.line for one in later for each in one.evidence if passed and each.line > log.line(passed[0])
    ]
    if after or lines:
        cause = "the harness passed, and the model stalls once the real launcher runs it with everything else"
        fix = "doit flags SET --against SConscript; recompile with its flags, then boot normally, go onroad"
        finding = log.finding(LAUNCHER, LIKELY, cause, fix, [*passed[:1], *after])
        extra = tuple(each for one in later for each in one.evidence if each.line in lines)
        yield replace(finding, evidence=(finding.evidence + extra)[:KEPT])
    elif frozen:
        cause = "the model compiled and then stalls: wrong compile flags, or a deadlock of the real launch"
        fix = "doit flags SET --against SConscript, then doit replay {model}, then a normal start"
        yield log.finding(ONROAD, LIKELY, cause, fix, frozen)


_HACKS_FIX: Final = "set OPENPILOT_HACKS = 1 in the flag set of {model} in models.toml, then doit pkl:{model}"


def _hacks(log: Log, found: Sequence[Finding]) -> Iterator[Finding]:
    """Suspicions of the flag without which an artifact looks valid and freezes."""
    bare = [at for at in log.shows(symptoms.COMPILE_LINE) if not _continued_with_hacks(log, at)]
    if bare:
        cause = "a compile for QCOM runs without OPENPILOT_HACKS=1: such artifacts freeze on the road"
        yield log.finding(HACKS, LIKELY, cause, _HACKS_FIX, bare)
    if posenet := log.shows(symptoms.POSENET):
        cause = "a suspicion: PoseNET mismatches are what artifacts without OPENPILOT_HACKS=1 show"
        yield log.finding(HACKS, POSSIBLE, cause, _HACKS_FIX, posenet)
    frozen = [one for one in found if one.name in (LAUNCHER, ONROAD, FROZEN_UI)]
    if frozen and "qcom" in log.low and "openpilot_hacks=1" not in log.low and not _explained(found):
        cause = "a suspicion: freezing without an error is what QCOM artifacts without OPENPILOT_HACKS=1 do"
        yield replace(frozen[0], name=HACKS, confidence=POSSIBLE, cause=cause, fix=_HACKS_FIX)


def _explained(found: Sequence[Finding]) -> bool:
    return any(one.confidence == CERTAIN for one in found)


def _continued_with_hacks(log: Log, at: int) -> bool:
    r"""Whether the command goes on over `\` at line ends, to where the flag stands."""
    stop, most = at, at + COMMAND
    while True:
        end = log.text.find("\n", stop, most)
        stop = min(most, len(log.text)) if end < 0 else end
        if end < 0 or not log.text.endswith(("\\", "\\\r"), at, stop):
            return log.text.find("OPENPILOT_HACKS=1", at, stop) >= 0
        stop += 1


def _recorded_flags(log: Log, graph: "Graph | None") -> Iterator[Finding]:
    """The flag that the record of a named QCOM artifact lacks."""
    for model, at in models(log.text, graph).items():
        values = _flags(graph, model) if graph else {}
        if values.get("DEV") == "QCOM" and values.get("OPENPILOT_HACKS") != "1":
            cause = f"the artifact of {model} was built for QCOM without OPENPILOT_HACKS=1, its record says"
            yield log.finding(HACKS, LIKELY, cause, _HACKS_FIX, [at])


# ---- which model it is about, and what its record says


def _files(log: Log) -> Iterator[tuple[str, int]]:
    """Names of pickles in the text, and where each ends."""
    at = -1
    for _ in range(NAMES):
        at = log.text.find(".pkl", at + 1)
        if at < 0:
            return
        name = re.search(r"[\w.-]+\Z", log.text[max(0, at - 120) : at])
        if name:
            yield name[0], at


def _file(log: Log) -> str | None:
    return next((f"{name}.pkl" for name, _ in _files(log)), None)


def _stem(name: str) -> str:
    """The id in an artifact's name (`<id>_driving_tinygrad`, `driving_supercombo_<id>`)."""
    suffix = next((one for one in SUFFIXES if name.endswith(one)), "")
    return name.removesuffix(suffix).removeprefix(PREFIX).removesuffix(".recompiled")


def _own_model(log: Log) -> str | None:
    """The id in the first artifact name of StarPilot's form, when no catalog knows it."""
    names = (name for name, _ in _files(log) if name.endswith(SUFFIXES[0]))
    return next((_stem(name) for name in names if _stem(name)), None)


def models(text: str, graph: "Graph | None") -> dict[str, int]:
    """The catalog's models that `text` names, and where each is first named.

    By artifact if one is named, by published or own id as a word otherwise. Empty without a graph.
    """
    if graph is None:
        return {}
    log, ids = Log(text), _ids(graph)
    named = {ids[_stem(name)]: at for name, at in reversed(list(_files(log))) if _stem(name) in ids}
    if not named:
        words = ((ids[one], _word(log, one)) for one in sorted(ids))
        named = {model: at for model, at in words if at is not None}
    return dict(sorted(named.items(), key=lambda item: item[1]))


def _word(log: Log, word: str) -> int | None:
    """Where `word` stands as a word of its own."""
    at = -1
    for _ in range(TRIES):
        at = log.text.find(word, at + 1)
        if at < 0:
            return None
        around = log.text[at - 1 : at] + log.text[at + len(word) : at + len(word) + 1]
        if not re.search(r"[\w-]", around):
            return at
    return None


def _ids(graph: "Graph") -> dict[str, str]:
    """The catalog's id by every id that it is published under; its own ids win."""
    from rules.steps.release import names

    found: dict[str, str] = {}
    for release in graph.catalog.releases.values():
        found |= {published: model for model, published in names(graph.catalog, release).items()}
    return found | {model: model for model in graph.catalog.models}


def _settings(record: "Record | None") -> dict[str, Any]:
    settings = record.content.get("settings") if record else None
    return settings if isinstance(settings, dict) else {}


def _flags(graph: "Graph", model: str) -> dict[str, str]:
    record = graph.workspace.records.read(graph.steps[f"pkl:{model}"].record)
    values = _settings(record).get("flags")
    return values if isinstance(values, dict) else {}


def recorded(graph: "Graph", model: str) -> dict[str, Any]:
    """What the record of a model's verified artifact says, as plain JSON values.

    `built_at` is None when it was never built; `state` is that of `doit why`; `failure` is a cause or None.
    """
    step = graph.steps[f"pkl:{model}"]
    decision = graph.judge.decide(step)
    record = graph.workspace.records.read(step.record)
    captures = record.facts.get("captures", {}) if record else {}
    return {
        "model": model,
        "state": decision.state.value,
        "reasons": [str(reason) for reason in decision.reasons],
        "built_at": record.built_at if record else None,
        "toolchain": _settings(record).get("toolchain", {}),
        "pinned": graph.catalog.models[model].toolchain.tinygrad,
        "flags": _flags(graph, model),
        "devices": {label: one.get("devices", []) for label, one in sorted(captures.items())},
        "sha256": record.outputs[0].sha256 if record and record.outputs else None,
        "failure": _failure(graph, model),
    }


def _failure(graph: "Graph", model: str) -> str | None:
    """The first line of the cause that the failure record holds, if there is one."""
    failure = graph.workspace.records.read_failure(f"{model}_failure")
    return failure["cause"].strip().split("\n", 1)[0] if failure else None
