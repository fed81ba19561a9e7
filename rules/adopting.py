"""An existing StarPilot workspace looked through: which of its files are proven, and why others are not.

Nothing in it is changed. What is proven is copied, and recorded by the ordinary build of its step.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rules import flags, pins, toolchain
from rules.build import build
from rules.catalog import Source, Toolchain
from rules.clients import starpilot
from rules.counting import counted
from rules.decide import is_litter
from rules.errors import ArtifactError, SourceError, YardError
from rules.graph import MONITORING, MONITORING_FOLDER, Graph
from rules.keeping import files as keeping
from rules.keeping.digests import Digest, sha256_of
from rules.keeping.files import discard
from rules.keys import Content
from rules.networks import onnxfile
from rules.networks.openshapes import Shapes
from rules.networks.outside import ONNX
from rules.sources import beside, chunks, kind_of
from rules.step import Made
from rules.steps import release as releasing
from rules.steps.fetch import facts, file_name
from rules.steps.preflight import ROLES, classify

if TYPE_CHECKING:
    from rules.inspection import Report

FOLDERS = ("onnx", "compiled", "ready-for-resources", "manifests", MONITORING_FOLDER, "results", "logs")
MONITORING_SET = 4  # files that are only good together
UNRECORDED = "no record says what it was built from"

_PIECE = re.compile(r"(?P<whole>.+)\.(?P<kind>p\d\d|sha256|chunkmanifest|chunk\d\dof\d\d)")
_ARTIFACT = re.compile(r"(?P<id>.+?)(_driving)?_tinygrad\.pkl")


class Standing(Enum):
    """What is known of a file; only a proven one is taken in."""

    PROVEN = "proven"  # an ONNX file that is what the catalog's source gives
    STALE = "stale"
    DAMAGED = "damaged"
    STRANGER = "stranger"  # it belongs to nothing in the catalog
    IGNORED = "ignored"  # left by macOS or by a killed run
    OTHER = "other"  # a manifest, a log, another tool's record: it is read or left, and proves nothing


@dataclass(frozen=True)
class Found:
    """One file by its path within the folder, what is known of it and why; no digest when it was not read."""

    path: str
    standing: Standing
    reason: str
    model: str | None = None
    digest: Digest | None = None

    def as_json(self) -> dict[str, object]:
        """The same for programs."""
        sha256, size = self.digest or (None, None)
        about = {"standing": self.standing.value, "reason": self.reason, "model": self.model}
        return {"path": self.path, **about, "sha256": sha256, "size": size}


@dataclass(frozen=True)
class Origin:
    """What the catalog says of the ONNX files of a model, or of driver monitoring."""

    id: str
    type: str | None
    source: Source
    toolchain: Toolchain
    shapes: Shapes = field(default_factory=dict)

    @property
    def task(self) -> str:
        """The task that fetches them."""
        return f"onnx:{self.id}"


@dataclass
class Survey:
    """What was found, in the order of paths, and the ONNX files that are proven: model id → role → path."""

    found: list[Found] = field(default_factory=list)
    proven: dict[str, dict[str, str]] = field(default_factory=dict)

    def count(self, standing: Standing) -> int:
        """How many files stand so."""
        return sum(one.standing is standing for one in self.found)


def check_folder(folder: Path, workspace: Path) -> None:
    """Raise YardError unless `folder` looks like a StarPilot workspace and is apart from our own."""
    if not folder.is_dir():
        got = "a file" if folder.exists() else "nothing"
        raise YardError(f"{folder}: expected a folder, got {got}", fix="name a StarPilot workspace")
    if folder == workspace or folder in workspace.parents or workspace in folder.parents:
        raise YardError(
            f"{folder}: expected a folder apart from the workspace {workspace}, in which records are written",
            fix="choose another workspace: --workspace DIR",
        )
    if not any((folder / name).is_dir() for name in FOLDERS):
        raise YardError(
            f"{folder}: expected a StarPilot workspace with one of {', '.join(FOLDERS)}, got none of them",
            fix="name the folder that holds onnx/ and compiled/",
        )


def survey(graph: Graph, folder: Path) -> Survey:
    """Hash every file of `folder`, on all processors, and tell what each is. Raises YardError, OSError."""
    return _Surveyor(graph, folder).run()


def take_in(graph: Graph, folder: Path, result: Survey) -> dict[str, str]:
    """Copy and record what is proven; returns, by task, why the others were not.

    Only for the holder of the workspace's lock. A step that is up to date already is left alone.
    """
    failed = {}
    origins = origins_of(graph)
    for model_id, files in result.proven.items():
        origin = origins[model_id]
        step = graph.steps[origin.task]
        if graph.judge.decide(step).fresh:
            continue
        known = {one.path: one.digest.sha256 for one in result.found if one.digest}
        copies = {role: (folder / path, known[path]) for role, path in files.items()}
        try:
            build(replace(step, make=partial(_copied, graph, origin, copies)), graph.judge, graph.workspace)
        except YardError as error:
            failed[origin.task] = str(error)
    return failed


def origins_of(graph: Graph) -> dict[str, Origin]:
    """What the catalog says of every source, by model id."""
    found = {
        one.id: Origin(one.id, one.type, one.source, one.toolchain, one.shapes)
        for one in graph.catalog.models.values()
    }
    if monitoring := graph.catalog.monitoring:
        found[MONITORING] = Origin(MONITORING, "dmonitoring", monitoring.source, monitoring.toolchain)
    return found


def _copied(
    graph: Graph, origin: Origin, copies: Mapping[str, tuple[Path, str]], scratch: Path, _: Content
) -> Made:
    """The action of a source's step with its files at hand: copied, and checked as fetched ones are."""
    files = {}
    for role, (path, expected) in sorted(copies.items()):
        final = files[file_name(role)] = scratch / file_name(role)
        keeping.make_folder(final.parent)
        keeping.copy(path, final)
        if (got := sha256_of(final)) != expected:
            raise SourceError(
                f"{path}: changed while it was taken in: expected sha256 {expected}, got {got}",
                fix="let its writer finish, then adopt again",
            )
    tinygrad = toolchain.tinygrad_root(origin.toolchain, graph.base)
    return Made(files, facts(origin.id, origin.type, files, tinygrad, origin.shapes))


class _Surveyor:
    """One reading of one folder."""

    def __init__(self, graph: Graph, folder: Path) -> None:
        self.graph = graph
        self.folder = folder
        self.digests = graph.workspace.digests
        self.origins = origins_of(graph)
        self.lock = pins.read(pins.path_of(graph.catalog.path))
        self.ids = self._ids()
        self.result = Survey()
        self._inspected: dict[str, Report] = {}

    def run(self) -> Survey:
        listing = self._listing()
        self.digests.of_all(self.folder / path for path in listing if self._is_wanted(path))
        kept = [path for path in listing if self._is_wanted(path) and self._digest(path)]
        for path in sorted({*listing} - {*kept}):
            self._put_aside(path)
        for top, paths in groupby(kept, key=lambda path: path.split("/")[0] if "/" in path else ""):
            self._look.get(top, self._strange)(list(paths))
        self.result.found.sort(key=lambda one: one.path)
        self.digests.flush(wait=True)
        return self.result

    @property
    def _look(self) -> Mapping[str, Callable[[Sequence[str]], None]]:
        return {
            "onnx": self._onnx,
            "compiled": self._compiled,
            "ready-for-resources": self._ready,
            "manifests": self._manifests,
            MONITORING_FOLDER: self._monitoring,
            "source-maps": partial(self._others, "a source map"),
            "results": partial(self._others, "another tool's record"),
            "logs": partial(self._others, "a log"),
        }

    def _is_wanted(self, path: str) -> bool:
        # Not what a reader may wait on for ever: a pipe, a device.
        return not is_litter(PurePosixPath(path).name) and (self.folder / path).is_file()

    def _put_aside(self, path: str) -> None:
        place = self.folder / path
        if is_litter(place.name):
            self._note([path], Standing.IGNORED, "left by macOS or by a killed run")
        elif place.is_dir():
            self._note([path], Standing.STRANGER, "a link to a folder, which is not followed")
        else:
            self._note([path], Standing.DAMAGED, "cannot be read as a file")

    def _ids(self) -> dict[str, str]:
        """Model id by every name it goes by: its own, and those of releases."""
        found: dict[str, str] = {}
        for release in self.graph.catalog.releases.values():
            with suppress(YardError):  # a mistake in the catalog that its own step tells
                found |= {new: old for old, new in releasing.names(self.graph.catalog, release).items()}
        return found | {one: one for one in self.graph.catalog.models}

    def _listing(self) -> list[str]:
        found = []
        for where, folders, names in os.walk(self.folder, onerror=_raise):
            links = [name for name in folders if (Path(where) / name).is_symlink()]
            found += [(Path(where) / name).relative_to(self.folder).as_posix() for name in [*names, *links]]
        return sorted(found)

    def _digest(self, path: str) -> Digest | None:
        try:
            return self.digests.of(self.folder / path)
        except OSError:
            return None

    def _note(self, paths: Iterable[str], standing: Standing, reason: str, model: str | None = None) -> None:
        for path in paths:
            digest = self._digest(path) if self._is_wanted(path) else None
            self.result.found.append(Found(path, standing, reason, model, digest))

    def _strange(self, paths: Iterable[str]) -> None:
        self._note(paths, Standing.STRANGER, "no part of a StarPilot workspace")

    def _others(self, what: str, paths: Iterable[str]) -> None:
        self._note(paths, Standing.OTHER, f"{what}, which proves nothing")

    def _unknown(self, name: str) -> str:
        near = flags.nearest(name, self.ids)
        return f"no model {name} in {self.graph.catalog.path.name}" + (
            f"; did you mean {near}?" if near else ""
        )

    # ---- ONNX files

    def _onnx(self, paths: Sequence[str]) -> None:
        for parent, group in groupby(paths, key=lambda path: PurePosixPath(path).parent):
            if parent.name not in self.origins or len(parent.parts) != 2:
                reason = (
                    self._unknown(parent.name) if len(parent.parts) == 2 else "expected onnx/ID/FILE.onnx"
                )
                self._note(group, Standing.STRANGER, reason)
            else:
                self._sources(self.origins[parent.name], list(group))

    def _sources(self, origin: Origin, paths: Sequence[str]) -> None:
        roles = {path: _role(PurePosixPath(path), origin) for path in paths}
        kept = {name for path, role in roles.items() if role for name in beside.named(self.folder / path)}
        beside_them = {path: PurePosixPath(path).name for path in paths if PurePosixPath(path).name in kept}
        roles |= beside_them  # what they keep weights in goes by its own name
        named: dict[str, str] = {}
        for path, role in roles.items():
            if role is None or role in named:
                wanted = f"{origin.id}_ROLE.onnx, a role once"
                self._note([path], Standing.STRANGER, f"expected {wanted}", origin.id)
            else:
                named[role] = path
        if named:
            self._compared(origin, named)

    def _compared(self, origin: Origin, named: Mapping[str, str]) -> None:
        try:
            promised = self._promised(origin)
        except SourceError as error:
            for path in named.values():
                self._unproven(origin, path, f"not proven: {_sentence(error)}")
            return
        against = {role: self._difference(path, promised.get(role)) for role, path in named.items()}
        missing = sorted(promised.keys() - named.keys())
        if not missing and not any(against.values()):
            self.result.proven[origin.id] = dict(named)
            reason = f"what the {origin.source.kind} source of {origin.id} gives"
            self._note(named.values(), Standing.PROVEN, reason, origin.id)
            return
        wrong = [f"{file_name(role)} is missing" for role in missing]
        wrong += [f"{file_name(role)} is another" for role, difference in against.items() if difference]
        for role, path in named.items():
            whole = f"as its source gives it, but {', '.join(wrong)}"
            self._unproven(origin, path, against[role] or whole)

    def _difference(self, path: str, promised: str | None) -> str:
        got = self._digest(path)
        if got is not None and promised == got.sha256:
            return ""
        found = got.sha256[:12] if got else "nothing"
        return (
            f"expected sha256 {promised[:12]}…, got {found}…" if promised else "its source gives no such file"
        )

    def _unproven(self, origin: Origin, path: str, reason: str) -> None:
        try:
            if path.endswith(ONNX):
                classify(origin.id, self.folder / path)
                onnxfile.read(self.folder / path)
        except SourceError as error:
            self._note([path], Standing.DAMAGED, error.what, origin.id)
        else:
            self._note([path], Standing.STALE, reason, origin.id)

    def _promised(self, origin: Origin) -> dict[str, str]:
        """sha256 by role of what the source gives, without asking anybody. Raises SourceError."""
        source, base = origin.source, self.graph.base
        decision = self.graph.judge.decide(self.graph.steps[origin.task])
        if decision.fresh and decision.record:
            return {one.name.removesuffix(".onnx"): one.sha256 for one in decision.record.outputs}
        if source.kind in pins.PINNED_KINDS:
            return self._pinned(origin)
        if source.kind == "file":
            files = self.graph.steps[origin.task].files()
            if not any(name.endswith(chunks.MARKER) for name in files):
                return {role: self.digests.of(path).sha256 for role, path in files.items()}
        return self._generated(source, base)

    def _pinned(self, origin: Origin) -> dict[str, str]:
        source = origin.source
        if pinned := self.lock.of(origin.id, source):
            return {role: one.sha256 for role, one in pinned.items()}
        stated = source.options.get("sha256")
        if isinstance(stated, dict) and stated.keys() == source.options.get("files", {}).keys():
            return dict(stated)
        raise SourceError(
            f"{self.lock.name} has no pin that says what this {source.kind} source gives",
            fix=f"doit pin {origin.id}, then adopt again",
        )

    def _generated(self, source: Source, base: Path) -> dict[str, str]:
        scratch = self.graph.workspace.store.scratch()
        try:
            made = kind_of(source).fetch(source.options, base, scratch, cache=scratch)
            return {role: sha256_of(path) for role, path in made.items()}
        finally:
            discard(scratch)

    # ---- artifacts, whole, in parts or in chunks

    def _compiled(self, paths: Sequence[str]) -> None:
        for (parent, whole), family in _families(paths):
            folder = PurePosixPath(parent).name
            self._artifact(folder if parent.count("/") else _id_in(whole), whole, family)

    def _ready(self, paths: Sequence[str]) -> None:
        texts = [path for path in paths if path.endswith(".json")]
        self._manifests(texts)
        for (_, whole), family in _families(path for path in paths if path not in texts):
            self._artifact(_id_in(whole), whole, family)

    def _artifact(self, name: str | None, whole: str, family: Sequence[str]) -> None:
        model = self.ids.get(name) if name else None
        told, damage = self._condition(whole, family)
        if damage:
            self._note(family, Standing.DAMAGED, "; ".join(damage), model)
        elif model is None:
            reason = self._unknown(name) if name else "expected ID_driving_tinygrad.pkl or a part of it"
            self._note(family, Standing.STRANGER, reason)
        else:
            self._note(family, Standing.STALE, f"{UNRECORDED} ({told})", model)

    def _condition(self, whole: str, family: Sequence[str]) -> tuple[str, list[str]]:
        """What the artifact is, in words, and what is wrong with it in each form that it has."""
        kinds = {path: _kind(path) for path in family}
        forms = [
            next((p for p in family if kinds[p].startswith(form)), None) for form in ("whole", "p", "chunk")
        ]
        told, damage = "", []
        for form in (form for form in forms if form) if any(forms) else family[:1]:
            try:
                report = self._inspect(form, alone=len(family) == 1)
            except ArtifactError as error:
                damage.append(error.what)
                continue
            told = told or _told(report)
            damage += [report.verdict] if report.problems else []
        if forms[2] and (forms[0] or forms[1]):
            damage.append(f"chunks of {whole} lie beside another form of it and shadow that")
        if forms[1] and "sha256" not in kinds.values():
            damage.append(f"the parts of {whole} have no {whole}.sha256")
        return told, list(dict.fromkeys(damage))

    def _inspect(self, path: str, *, alone: bool) -> "Report":
        from rules.inspection import inspect

        digest = self._digest(path) if alone else None
        if digest is None:
            return inspect(self.folder / path)
        if digest.sha256 not in self._inspected:  # a release's folder holds the same bytes once more
            self._inspected[digest.sha256] = inspect(self.folder / path)
        return self._inspected[digest.sha256]

    # ---- the rest

    def _monitoring(self, paths: Sequence[str]) -> None:
        if MONITORING not in self.origins:
            reason = f"{self.graph.catalog.path.name} has no [monitoring]"
            self._note(paths, Standing.STRANGER, reason)
            return
        networks = [path for path in paths if path.endswith(".onnx")]
        self._sources(self.origins[MONITORING], networks)
        families = _families(path for path in paths if path not in networks)
        incomplete = self._incomplete({whole for (_, whole), _ in families})
        for (_, whole), family in families:
            told, damage = self._condition(whole, family)
            damage += incomplete
            reason = "; ".join(damage) if damage else f"{UNRECORDED} ({told})"
            self._note(family, Standing.DAMAGED if damage else Standing.STALE, reason, MONITORING)

    def _incomplete(self, present: set[str]) -> list[str]:
        targets = self.graph.steps[MONITORING].targets
        missing = sorted({PurePosixPath(target).name for target in targets} - present)
        return [f"of a set that is one unit, {', '.join(missing)} is missing"] if missing else []

    def _manifests(self, paths: Iterable[str]) -> None:
        for path in paths:
            if not PurePosixPath(path).name.startswith("model_names_"):
                self._others("a list", [path])
                continue
            try:
                entries = starpilot.read_manifest(keeping.read(self.folder / path))
            except ArtifactError as error:
                self._note([path], Standing.DAMAGED, error.what)
                continue
            unknown = [str(one.get("id")) for one in entries if one.get("id") not in self.ids]
            missing = f"; {'; '.join(map(self._unknown, unknown))}" if unknown else ""
            self._note([path], Standing.OTHER, f"a manifest of {counted(len(entries), 'model')}{missing}")


def _raise(error: OSError) -> None:
    raise error


def _role(path: PurePosixPath, origin: Origin) -> str | None:
    """What an ONNX file is for, when its name is `<id>_<role>.onnx` or `<role>.onnx`."""
    role = path.stem.removeprefix(f"{origin.id}_")
    return role if path.suffix == ".onnx" and role in {*ROLES, "model"} else None


def _sentence(error: YardError) -> str:
    return f"{error.what}; {error.fix}" if error.fix else error.what


def _kind(path: str) -> str:
    match = _PIECE.fullmatch(PurePosixPath(path).name)
    return match["kind"] if match else "whole"


def _families(paths: Iterable[str]) -> list[tuple[tuple[str, str], list[str]]]:
    """Files by folder and name of the artifact that they are, or are a part of."""
    found: dict[tuple[str, str], list[str]] = {}
    for path in paths:
        pure = PurePosixPath(path)
        match = _PIECE.fullmatch(pure.name)
        found.setdefault((str(pure.parent), match["whole"] if match else pure.name), []).append(path)
    return list(found.items())


def _id_in(whole: str) -> str | None:
    match = _ARTIFACT.fullmatch(whole)
    return match["id"] if match else None


def _told(report: "Report") -> str:
    """Devices, contract and tinygrad of an artifact, in a few words."""
    from rules.inspection.artifact import HOST

    devices = sorted({device for jit in report.jits for device in jit.devices} - {HOST})
    facts = [f"on {', '.join(devices)}"] if devices else []
    facts += [f"contract {report.contract}"] if report.contract else []
    if report.jits:
        facts.append("for another tinygrad" if report.tinygrad else "for this tinygrad")
    return ", ".join(facts) or report.layout


def lines(found: Sequence[Found]) -> Iterator[str]:
    """What was found, for people; files of one folder that are alike are one line."""
    alike = groupby(found, key=lambda one: (PurePosixPath(one.path).parent, one.standing, one.reason))
    for (parent, standing, reason), group in alike:
        files = list(group)
        place = files[0].path if len(files) == 1 else f"{parent}/ ({counted(len(files), 'file')})"
        yield _printable(f"{standing.value:<8}  {place}: {reason}")


def _printable(text: str) -> str:
    """File names may hold what moves the cursor, or is no text at all."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
