"""What an artifact means: its layout, its contract, its JITs, and a verdict on its bytes."""

import gc
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rules.counting import counted
from rules.inspection import camera, graph, stranger
from rules.inspection.container import Container, Place, container_of, place_of, starts_pickle
from rules.inspection.opcodes import STRANGE, Machine
from rules.inspection.values import Mapping, name_of
from rules.inspection.whole import Damage, Tape, Whole, opened

HOST = "NPY"  # where a runtime refills inputs from numpy, whatever the model runs on
UNREADABLE, SUSPECT = 2, 1
SUSPECTS = frozenset({"suspicious", "inconsistent", "trailing bytes"})
MOST_LISTED = 100
ENTRIES = 1000  # of the outermost dict; the longest seen has 14
CAPTURES = 64  # JITs of one artifact; the most seen is 5
NETWORKS = 16  # whose metadata are shown
SHARED = 4  # how many times over an artifact's objects may be counted for its JITs

_CAMERA = re.compile(r"(?<!\d)(\d{3,5})x(\d{3,5})(?!\d)")


@dataclass(frozen=True)
class Problem:
    """Why the verdict is not `ok`: `kind` is a fixed word, `what` says it in full."""

    kind: str
    what: str


@dataclass(frozen=True)
class Report:
    """What `inspect` found. Facts that the bytes do not tell are None or empty; sizes are in bytes.

    `tinygrad` lists how its class shapes differ from those of the tinygrad that this project knows; an empty
    list means that it `loads` there. `verdict` is on the data alone: `ok`, or the worst problem in words.
    """

    name: str
    size: int
    files: tuple[str, ...] = ()
    sha256: str | None = None
    announced: str | None = None  # the sha256 that stands beside it
    out_of_band: bool = False
    protocol: int | None = None
    layout: str = "unknown"
    role: str | None = None
    format_version: int | None = None
    model_type: str | None = None
    contract: str | None = None
    frame_skip: int | None = None
    cameras: tuple[str, ...] = ()
    behavior_version: str | None = None
    jits: tuple[graph.Jit, ...] = ()
    shapes: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    output_slices: dict[str, dict[str, list[int | None]]] = field(default_factory=dict)
    weights_bytes: int = 0
    payload_bytes: int = 0
    opcodes: int = 0
    classes: tuple[str, ...] = ()
    tinygrad: tuple[str, ...] = ()
    globals: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    fix: str = ""  # what to type instead, where this is no artifact

    @property
    def verdict(self) -> str:
        """`ok`, or what is worst about the artifact."""
        return self.problems[0].what if self.problems else "ok"

    @property
    def loads(self) -> bool:
        """Whether the tinygrad that this project knows can load it."""
        return not self.problems and not self.tinygrad

    @property
    def exit_code(self) -> int:
        """0 for `ok`, 1 for what can be read and should not be trusted, 2 for what cannot be read."""
        if not self.problems:
            return 0
        return SUSPECT if self.problems[0].kind in SUSPECTS else UNREADABLE

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values, with the verdict."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {
            **plain,
            "jits": [jit.as_json() for jit in self.jits],
            "problems": [{"kind": one.kind, "what": one.what} for one in self.problems],
            "verdict": self.verdict,
            "loads": self.loads,
        }


def inspect(path: Path) -> Report:
    """Describe the artifact at `path`: a whole file, or any of its parts, its `.sha256`, or its bare name.

    Nothing in it is run, and memory does not grow with its payload. Damage of any kind is a verdict; only a
    path without a file behind it raises ArtifactError, and a disk in the way OSError.
    """
    try:
        place = place_of(path)
    except Damage as damage:
        fix = "fetch it into the same folder"
        return Report(path.name, 0, problems=(Problem(damage.kind, damage.what),), fix=fix)
    with opened(place.files) as whole, _no_collection():
        return _report(place, whole)


def flaw(found: Iterable[tuple[str, Path]]) -> str:
    """Why loading an artifact's files, by name, is no good idea, judged without that; nothing if it is."""
    for name, path in found:
        if (report := inspect(path)).problems:
            return f"{name}: {report.verdict}"
    return ""


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's cycle collector would walk every description again and again, and free none of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _report(place: Place, whole: Whole) -> Report:
    problems: list[Problem] = []
    names = tuple(file.name for file in place.files)
    sha256 = _checked(place, whole, problems)
    known: dict[str, Any] = {"files": names, "sha256": sha256, "announced": place.sha256}
    try:
        container = container_of(whole)
        machine = _run(whole, container, problems)
    except Damage as damage:
        found = stranger.known(place.files[0], whole.read(0, stranger.HEAD))
        problems.append(Problem(damage.kind, f"{damage.what}, it is {found.what}"))
        return Report(place.name, whole.size, **known, problems=tuple(problems), fix=found.fix)
    meaning = _meaning(place.name, machine, problems)
    problems.sort(key=_rank)
    return Report(
        place.name,
        whole.size,
        **known,
        **meaning,
        out_of_band=container.buffers is not None,
        protocol=machine.protocol,
        payload_bytes=machine.payload,
        opcodes=machine.opcodes,
        globals=tuple(name[:200] for name in sorted(machine.globals)[:MOST_LISTED]),
        problems=tuple(problems),
        fix=_missing_pieces(place) if problems else "",
    )


def _missing_pieces(place: Place) -> str:
    """Where only the first parts may be there, since no checksum says what they are parts of."""
    if place.sha256 is not None or not place.files[0].name.endswith(".p00"):
        return ""
    return f"fetch its other parts, and {place.name}.sha256, into the same folder"


def _rank(problem: Problem) -> int:
    """What is told first: other bytes than announced, which explain the rest; then what loading would do."""
    if problem.kind == "checksum":
        return 0
    return 2 if problem.kind == "trailing bytes" or problem.kind not in SUSPECTS else 1


def _checked(place: Place, whole: Whole, problems: list[Problem]) -> str:
    """The sha256 of the whole, compared with the one beside it where there is one."""
    found = whole.sha256()
    if place.sha256 not in (None, found):
        problems.append(Problem("checksum", f"wrong sha256: expected {place.sha256}, got {found}"))
    return found


def _run(whole: Whole, container: Container, problems: list[Problem]) -> Machine:
    """Run the opcodes and note what is wrong. Raises Damage when these never were opcodes."""
    machine = Machine(Tape(whole, container.start, container.stop), container.buffers)
    found = list(container.damage)
    try:
        machine.run()
        found += _left_over(machine)
    except Damage as damage:
        if not machine.oddities and not _begins(whole, container):
            raise Damage("not a pickle", "not a pickle") from damage
        found.append(damage)
    problems += (Problem("suspicious", what) for what in machine.oddities)
    problems += (Problem(damage.kind, damage.what) for damage in found)
    return machine


def _begins(whole: Whole, container: Container) -> bool:
    return starts_pickle(whole.read(container.start, 3))


def _left_over(machine: Machine) -> list[Damage]:
    tape, unused = machine.tape, len(machine.buffers or ()) - machine.buffers_used
    found = []
    if tape.left:
        found.append(Damage("trailing bytes", f"trailing bytes: {tape.left} after byte {tape.position}"))
    if unused:
        found.append(
            Damage(
                "trailing bytes", f"trailing bytes: {counted(unused, 'out-of-band buffer')} that nothing uses"
            )
        )
    return found


# ---- meaning


def _meaning(name: str, machine: Machine, problems: list[Problem]) -> dict[str, Any]:
    made = list(graph.inside(machine.root))
    root = _as_dict(machine.root)
    jits = _jits(root, len(made), problems)
    shapes = graph.class_shapes(made)
    layout, role = _layout(root, jits)
    contract = _contract(root, jits, role, problems)
    return {
        "layout": layout,
        "role": role,
        "contract": contract,
        "jits": jits,
        "cameras": _cameras(name, jits, role, problems),
        "shapes": _shapes(root),
        "output_slices": _slices(root),
        "weights_bytes": sum(graph.buffer_bytes(one) for one in made),
        "classes": tuple(_spelled(shapes)),
        "tinygrad": tuple(graph.differences(shapes))[:MOST_LISTED],
        "format_version": _plain(graph.at(root, "format_version"), int),
        "model_type": _plain(graph.at(root, "model_type"), str),
        "frame_skip": _plain(graph.at(root, "frame_skip"), int),
        "behavior_version": _plain(graph.at(root, "behavior_version"), str),
    }


def _plain(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        return None
    return value[:80] if isinstance(value, str) else value


def _spelled(shapes: dict[str, set[tuple[int, str]]]) -> Iterable[str]:
    for name in sorted(shapes)[:MOST_LISTED]:
        counts = sorted({count for count, _ in shapes[name]})
        yield f"{name[:80]}({'|'.join(map(str, counts[:8]))})"


def _as_dict(root: Any) -> Any:
    """An OrderedDict is read as the dict that it is."""
    return Mapping(root.items) if name_of(root) == "OrderedDict" and root.items else root


def _jits(root: Any, objects: int, problems: list[Problem]) -> tuple[graph.Jit, ...]:
    """Every JIT that the artifact is or holds, labelled by its key."""
    if isinstance(root, Mapping) and len(root.flat) > 2 * ENTRIES:
        problems.append(Problem("bomb", f"more than {ENTRIES} items: {STRANGE}"))
        return ()
    held = [(_label(key), value) for key, value in graph.entries(root)] or [("jit", root)]
    found: list[graph.Jit] = []
    left = SHARED * objects
    try:
        for label, value in held:
            if jit := graph.jit_of(label, value, left):
                if len(found) == CAPTURES:
                    raise Damage("bomb", f"more than {CAPTURES} JITs: {STRANGE}")
                found.append(jit)
                left -= jit.objects
    except Damage as damage:
        problems.append(Problem(damage.kind, damage.what))
    return tuple(found)


def _label(key: Any) -> str:
    return _camera_of(key) or (key[:80] if isinstance(key, str) else type(key).__name__)


def _camera_of(key: Any) -> str | None:
    if isinstance(key, tuple) and len(key) == 2 and all(type(one) is int for one in key):
        return f"{key[0]}x{key[1]}"
    return None


def _layout(root: Any, jits: tuple[graph.Jit, ...]) -> tuple[str, str | None]:
    """The layout, and for layouts of several files which of them this is."""
    if isinstance(root, Mapping):
        return _layout_of_dict(root)
    return _layout_of_jit(jits[0]) if jits else ("unknown", None)


def _layout_of_dict(root: Mapping) -> tuple[str, str | None]:
    keys = {key for key, _ in graph.entries(root) if isinstance(key, str)}
    if {"output_slices", "input_shapes"} <= keys:
        return "metadata", None
    if "run_policy" in keys and "metadata" in keys:
        return ("starpilot-single" if "format_version" in keys else "iqpilot-supercombo"), None
    return ("generic" if graph.at(root, "model_type") == "generic" else "unknown"), None


def _layout_of_jit(jit: graph.Jit) -> tuple[str, str | None]:
    names = set(jit.arguments)
    by_position = bool(names) and all(one.isdigit() for one in names)
    if names == {"input_img", "calib"}:
        return "dm", "model"
    if by_position:
        return ("dm", "warp") if len(names) == 2 else ("openpilot-split", "warp")
    for role, is_it in ROLES.items():
        if is_it(names):
            return "openpilot-split", role
    return "generic", None


ROLES: dict[str, Callable[[set[str]], bool]] = {
    "warp": lambda names: bool(names & {"tfm", "big_tfm"}),
    "policy": lambda names: bool(names & {"features_buffer", "feat_q"}) and not _sees(names),
    "supercombo": lambda names: bool(names & {"features_buffer", "feat_q"}),
    "vision": lambda names: _sees(names),
}


def _sees(names: set[str]) -> bool:
    return any("img" in one for one in names)


def _contract(
    root: Any, jits: tuple[graph.Jit, ...], role: str | None, problems: list[Problem]
) -> str | None:
    """Where the image history lives: `warp` or `policy`. Contradicting evidence is a problem."""
    declared = graph.at(root, "image_history_pipeline")
    found: dict[str, str] = {}
    if declared in ("warp", "policy"):
        found["image_history_pipeline"] = declared
    keys = graph.at(root, "warp_input_keys")
    if isinstance(keys, list) and keys:
        found["warp_input_keys"] = "warp" if "img_q" in keys else "policy"
    for jit in jits:
        if contract := _contract_of(jit, role):
            found[f"the arguments of {jit.label}"] = contract
    if len(set(found.values())) > 1:
        told = ", ".join(f"{where}: {what}" for where, what in found.items())
        problems.append(Problem("inconsistent", f"inconsistent contract: {told}"))
    return next(iter(found.values()), None)


def _contract_of(jit: graph.Jit, role: str | None) -> str | None:
    names = set(jit.arguments)
    if "warped" in names or names == {"tfm", "big_tfm", "frame", "big_frame"}:
        return "policy"
    if {"img_q", "tfm"} <= names or {"img", "feat_q"} <= names:
        return "warp"
    by_position = names and all(one.isdigit() for one in names)
    return {6: "warp", 4: "policy"}.get(len(names)) if by_position and role == "warp" else None


def _cameras(
    name: str, jits: tuple[graph.Jit, ...], role: str | None, problems: list[Problem]
) -> tuple[str, ...]:
    """The cameras that the warps take, by their frames; a name or a key that says another is a problem."""
    if role == "warp" and jits:
        named = [_size(match) for match in _CAMERA.finditer(name)]
        own = _camera(jits[0], f"the name says {_spelled_all(named)}", named, problems)
        return (own,) if own else ()
    keyed = [(jit, match) for jit in jits if (match := _CAMERA.fullmatch(jit.label))]
    for jit, match in keyed:
        _camera(jit, f"the key says {jit.label}", [_size(match)], problems)
    return tuple(jit.label for jit, _ in keyed)


def _camera(jit: graph.Jit, where: str, named: list[camera.Camera], problems: list[Problem]) -> str | None:
    sizes = camera.frames(jit)
    if not sizes:
        return None
    own = camera.of(sizes, named)
    if named and own not in named:
        problems.append(Problem("inconsistent", camera.contradiction(where, sizes, own)))
    return camera.spelled(own) if own else None


def _size(match: re.Match[str]) -> camera.Camera:
    return int(match[1]), int(match[2])


def _spelled_all(cameras: list[camera.Camera]) -> str:
    return " and ".join(map(camera.spelled, cameras[:4]))


def _networks(root: Any) -> list[tuple[str, Any]]:
    """The metadata of each network by its role, from an artifact or from the file that is the metadata."""
    metadata = graph.at(root, "metadata")
    flat = root if metadata is None else metadata
    if graph.at(flat, "output_slices") is not None or graph.at(flat, "input_shapes") is not None:
        return [("model", flat)]
    named = graph.entries(metadata)[:NETWORKS]
    return [(role[:80], network) for role, network in named if isinstance(role, str)]


def _shapes(root: Any) -> dict[str, dict[str, list[int]]]:
    """Declared input shapes by network."""
    found: dict[str, dict[str, list[int]]] = {}
    for role, network in _networks(root):
        shapes = {
            name[:80]: [size for size in shape[:16] if type(size) is int and abs(size) < graph.SIZE]
            for name, shape in graph.entries(graph.at(network, "input_shapes"))[:MOST_LISTED]
            if isinstance(name, str) and isinstance(shape, tuple)
        }
        if shapes:
            found[role] = shapes
    return found


def _slices(root: Any) -> dict[str, dict[str, list[int | None]]]:
    """Declared output slices (start, stop, step; None where open) by network."""
    found: dict[str, dict[str, list[int | None]]] = {}
    for role, network in _networks(root):
        slices = {
            name[:80]: _bounds(graph.arguments_of(value))
            for name, value in graph.entries(graph.at(network, "output_slices"))[:MOST_LISTED]
            if isinstance(name, str) and name_of(value) == "slice"
        }
        if slices:
            found[role] = slices
    return found


def _bounds(given: tuple[Any, ...]) -> list[int | None]:
    """As `slice` reads its one, two or three arguments."""
    kept = [one if type(one) is int and abs(one) < graph.SIZE else None for one in given[:3]]
    return [None, *kept, None] if len(kept) == 1 else [*kept, None, None, None][:3]


# ---- expectations


def expectations(report: Report, devices: Iterable[str] = (), contract: str | None = None) -> list[str]:
    """How `report` differs from what is expected, in words.

    Every JIT must have been captured on one of `devices` and otherwise only on the host's own.
    """
    wanted = {device.upper() for device in devices}
    found = [] if report.jits or not wanted else [f"expected device {_listed(wanted)}, got no JIT"]
    for jit in report.jits if wanted else ():
        on = {_base(device) for device in jit.devices} - {HOST}
        if not on or not on <= wanted:
            found.append(f"expected device {_listed(wanted)}, got {jit.label} captured on {_listed(on)}")
    if contract is not None and report.contract != contract:
        found.append(f"expected contract {contract}, got {report.contract or 'none'}")
    return found


def _base(device: str) -> str:
    return device.upper().split(":")[0]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
