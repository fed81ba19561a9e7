"""The graph: every step that follows from the catalog, and how the steps hang together."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from rules import layouts, pins, toolchain
from rules.builders import confine, local, package
from rules.builders.job import Job
from rules.builders.room import GB, UNMEASURED, WEIGHT_COPIES, Lanes, Room, limit
from rules.builders.warm import Warm
from rules.catalog import Camera, Catalog, FlagSet, Model, Release, Source, Toolchain
from rules.clients import starpilot
from rules.decide import Judge
from rules.errors import ArtifactError, CatalogError, SourceError
from rules.keeping.digests import Digest, Stamp
from rules.keeping.records import Output, Record
from rules.keeping.reuse import ANYWHERE, NOWHERE, SIGNED, Reuse
from rules.keys import Content, key_of
from rules.networks import architecture
from rules.networks.openshapes import Shapes
from rules.networks.outside import ONNX
from rules.operators import holding
from rules.releasing import parts, placeholders
from rules.sources import beside, chunks, kind_of
from rules.step import Made, Step
from rules.steps import compile as compiling
from rules.steps import release as releasing
from rules.steps import split, verify
from rules.steps.fetch import checked, facts, fetch, file_name
from rules.workspace import Workspace

One = TypeVar("One")

MONITORING = "monitoring"
MONITORING_FOLDER = "driver-monitoring"
RELEASE_CODE = (
    *("clients/starpilot.py", "steps/release.py", "steps/split.py"),
    *("releasing/namespace.py", "releasing/parts.py"),
)


@dataclass(frozen=True)
class Unit:
    """What is fetched, compiled and verified as one: a model, or driver monitoring."""

    id: str
    type: str | None
    source: Source
    flags: FlagSet
    toolchain: Toolchain
    cameras: tuple[Camera, ...]
    options: Mapping[str, Any]  # layout and pickle; of driving models also contract, size and behaviour
    frame_skip: int | None
    tasks: tuple[str, str, str]  # names of the tasks that fetch, compile and verify it
    skip_gates: tuple[str, ...] = ()

    @property
    def shapes(self) -> Shapes:
        """Of inputs whose sizes their files leave open."""
        return dict(self.options.get("shapes", {}))

    @property
    def layout(self) -> str:
        """Which files it consists of (see `rules/layouts.py`)."""
        return str(self.options["layout"])

    @classmethod
    def of(cls, model: Model) -> "Unit":
        """A model of the catalog."""
        layout = layouts.GENERIC if model.type == layouts.GENERIC else model.layout
        pickle = "out-of-band" if model.uses_external_gpu else "in-band"
        driving = {
            "contract": model.contract,
            "model_size": list(model.model_size),
            "behavior_version": model.version,
        }
        return cls(
            model.id,
            model.type,
            model.source,
            model.flags,
            model.toolchain,
            model.cameras,
            {
                "layout": layout,
                "pickle": pickle,
                **({"feed": model.feed} if layout == layouts.GENERIC and model.feed else {}),
                **({"shapes": model.shapes} if model.shapes else {}),
                **({} if layout == layouts.GENERIC else driving),
            },
            model.frame_skip,
            (f"onnx:{model.id}", f"candidate:{model.id}", f"pkl:{model.id}"),
            model.skip_gates,
        )


class Graph:
    """All steps of one catalog in one workspace, by task name, upstream first."""

    def __init__(self, catalog: Catalog, workspace: Workspace) -> None:
        self.catalog = catalog
        self.workspace = workspace
        self.base = catalog.path.parent
        self.toolchains = toolchain.Toolchains(self.base, workspace.digests)
        self.judge = self.new_judge()
        self.warm = Warm()
        self.room = Room()
        self.lanes = Lanes()
        self.operators = holding.Operators(workspace.hidden / "operators")
        self._read_pins: tuple[Stamp, pins.Lock] | None = None
        self._activations: dict[str, int] = {}  # bytes, by unit
        self.cold = False  # compile every model in a process of its own
        if MONITORING in catalog.models:
            raise CatalogError(
                f"{catalog.path.name}: models.{MONITORING}: the id is taken by driver monitoring"
            )

    def new_judge(self, *, verify: bool = False) -> Judge:
        """A judge who has decided nothing yet; `verify` makes it read every byte."""
        return Judge(self.workspace, look_again=self.toolchains.look_again, verify=verify)

    def needed(self, tasks: Iterable[str]) -> list[Step]:
        """The steps of these tasks and everything upstream of them, upstream first."""
        wanted: dict[str, Step] = {}

        def add(step: Step) -> None:
            if step.task not in wanted:
                for one in step.after:
                    add(one)
                wanted[step.task] = step

        for task in tasks:
            add(self.steps[task])
        return list(wanted.values())

    @cached_property
    def steps(self) -> dict[str, Step]:
        """Every step by its task's name. Raises CatalogError; SourceError for pins that cannot be read."""
        self.check_pins()
        made: dict[str, Step] = {}
        for model in self.catalog.models.values():
            self._add(made, *self._unit(Unit.of(model)))
            if model.type != "generic" and model.layout == layouts.RELEASED:
                self._add(made, self._parts(model, made[f"pkl:{model.id}"]))
        if self.catalog.monitoring is not None:
            self._add(made, *self._unit(self._monitoring()))
        self._check_targets(made)
        for release in self.catalog.releases.values():
            self._add(made, *self._release(release, made))
        return made

    def _check_targets(self, made: Mapping[str, Step]) -> None:
        """No two steps make one file, on any file system. Raises CatalogError."""
        owners: dict[str, str] = {}
        for step in made.values():
            for target in step.targets:
                other = owners.setdefault(target.casefold(), step.task)
                if other != step.task:
                    raise CatalogError(
                        f"{self.catalog.path.name}: {other} and {step.task} both make {target}",
                        fix="give one of the two models another id",
                    )

    def _add(self, made: dict[str, Step], *steps: Step) -> None:
        made.update({step.task: step for step in steps})

    def _monitoring(self) -> Unit:
        monitoring = self.catalog.monitoring
        assert monitoring is not None
        return Unit(
            MONITORING,
            "dmonitoring",
            monitoring.source,
            monitoring.flags,
            monitoring.toolchain,
            monitoring.cameras,
            {"layout": layouts.MONITORING, "pickle": "in-band"},
            None,
            ("onnx:monitoring", "candidate:monitoring", MONITORING),
            monitoring.skip_gates,
        )

    # ---- one model: source → onnx → candidate → verified → parts

    def _unit(self, unit: Unit) -> tuple[Step, Step, Step]:
        source = self._source(unit)
        candidate = self._candidate(unit, source)
        return source, candidate, self._verified(unit, source, candidate)

    def _source(self, unit: Unit) -> Step:
        folder = MONITORING_FOLDER if unit.id == MONITORING else f"onnx/{unit.id}"
        prefix = "" if unit.id == MONITORING else f"{unit.id}_"
        files: Mapping[str, Path] = {}
        fault: SourceError | None = None
        try:
            module = kind_of(unit.source)
            files = module.files(unit.source.options, self.base)
        except SourceError as error:  # this model's own trouble: the others are built
            fault = error
        in_chunks = any(name.endswith(chunks.MARKER) for name in files)

        def make(scratch: Path, content: Content) -> Made:
            return fetch(unit.source, self.base, scratch, self.workspace.hidden / "sources")

        def check(found: Mapping[str, Path], _: object) -> Mapping[str, Any]:
            return facts(unit.id, unit.type, found, self._tinygrad(unit), unit.shapes)

        def read() -> Mapping[str, Path]:
            return {**files, **self._outside(unit, files)} if unit.source.kind == "file" else files

        def settings() -> Content:
            if fault is not None:
                raise fault
            shapes = {"shapes": unit.shapes} if unit.shapes else {}
            return {"kind": unit.source.kind, **module.identity(unit.source.options), **shapes}

        def place(name: str) -> str:
            return f"{folder}/{prefix if name.endswith(ONNX) else ''}{name}"

        def admit(found: Mapping[str, Digest]) -> None:
            if unit.source.kind in pins.PINNED_KINDS:
                pins.settle(pins.path_of(self.catalog.path), unit.id, unit.source, _roles(found))

        def objection(found: Mapping[str, Digest]) -> str:
            try:
                if unit.source.kind in pins.PINNED_KINDS and (lock := self._pins()).of(unit.id, unit.source):
                    lock.check_all(unit.id, _roles(found))
            except SourceError as error:
                return error.what
            return ""

        return Step(
            task=unit.tasks[0],
            record=f"{unit.id}_source",
            doc=f"ONNX files of {unit.id}, fetched and checked",
            files=read,
            settings=settings,
            make=make,
            place=place,
            admit=admit,
            objection=objection,
            # Nothing tells what the whole of chunks is but joining them, which is as fast as fetching it.
            reuse=lambda: NOWHERE if in_chunks else self._source_reuse(unit),
            expected=_copies if unit.source.kind == "file" and not in_chunks else None,
            check=check,
            model=unit.id,
        )

    def _outside(self, unit: Unit, files: Mapping[str, Path]) -> Mapping[str, Path]:
        """What local ONNX files keep outside of themselves, as far as it is there.

        A file that the source's record was made of is not read once more for it.
        """
        record = self.workspace.records.read(f"{unit.id}_source")
        known = record.content.get("files", {}) if record else {}
        names: dict[str, list[str]] = {}
        for role, path in files.items():
            same = known.get(role, {}).get("sha256") == self.workspace.digests.of(path).sha256
            told = record.facts.get(role, {}).get("external") if record and same else None
            names[role] = beside.named(path) if told is None else beside.plain(path, told)
        return beside.of_files(files, names)

    def check_pins(self) -> None:
        """See that the pins can be read, even where no source has one. Raises SourceError."""
        if os.path.lexists(pins.path_of(self.catalog.path)):
            self._pins()

    def _pins(self) -> pins.Lock:
        """The pins as they are now; read again when their file is another. Raises SourceError."""
        path = pins.path_of(self.catalog.path)
        try:
            stamp = self.workspace.digests.look(path)
        except OSError:
            self.workspace.digests.look(path.parent)  # it may come
            return pins.read(path)
        if self._read_pins is None or self._read_pins[0] != stamp:
            self._read_pins = stamp, pins.read(path)
        return self._read_pins[1]

    def _source_reuse(self, unit: Unit) -> Reuse:
        """What a store gives in a source's stead is what something here pins; the first pin is the source's.

        A generated network has no pin, and is generated as fast as it is fetched.
        """
        if unit.source.kind in pins.PINNED_KINDS:
            return ANYWHERE if self._pins().of(unit.id, unit.source) else NOWHERE
        return ANYWHERE if unit.source.kind == "file" else NOWHERE

    def _candidate(self, unit: Unit, source: Step) -> Step:
        def make(scratch: Path, content: Content) -> Made:
            return self._compile(unit, source, content, scratch)

        def check(found: Mapping[str, Path], facts: Mapping[str, Any]) -> Mapping[str, Any]:
            roles = compiling.role_names(_networks(self._record(source.task).digests))
            wanted = layouts.names(unit.layout, roles, unit.cameras)
            if {*found} != {*wanted}:
                raise ArtifactError(f"{unit.id}: expected {', '.join(wanted)}, got {', '.join(found):.200}")
            return facts

        return Step(
            task=unit.tasks[1],
            record=f"{unit.id}_artifact",
            doc=f"{unit.id} compiled, not yet verified",
            settings=partial(self._compile_settings, unit),
            make=make,
            place=lambda name: f".store/candidates/{layouts.path(unit.layout, unit.id, name)}",
            after=(source,),
            reuse=_candidate_reuse,
            check=check,
            vet=_suspicions,
            model=unit.id,
        )

    def _verified(self, unit: Unit, source: Step, candidate: Step) -> Step:
        def make(scratch: Path, content: Content) -> Made:
            return self._verify(unit, source, candidate, content, scratch)

        folder = MONITORING_FOLDER if unit.id == MONITORING else "compiled"

        def place(name: str) -> str:
            return f"{folder}/{layouts.path(unit.layout, unit.id, name)}"

        step = Step(
            task=unit.tasks[2],
            record=f"{unit.id}_validation",
            doc=f"{unit.id} compiled and verified in a fresh process",
            settings=partial(self._verify_settings, unit),
            make=make,
            place=place,
            after=(source, candidate),
            targets=tuple(map(place, layouts.names(unit.layout, (), unit.cameras))),
            reuse=lambda: SIGNED,  # that it was verified can be checked: by verifying it
            expected=lambda content: content["inputs"][step.named(candidate)],
            model=unit.id,
        )
        return step

    def _parts(self, model: Model, verified: Step) -> Step:
        file, rule = starpilot.artifact_name(model.id), self._parts_rule(model)

        def make(scratch: Path, content: Content) -> Made:
            return split.split(self.workspace.path(f"compiled/{file}"), whole(), rule, scratch)

        def check(found: Mapping[str, Path], _: object) -> Mapping[str, Any]:
            return split.check(file, whole(), rule, found)

        def whole() -> Digest:
            (output,) = self._recorded(verified.task)
            return Digest(output.sha256, output.size)

        return Step(
            task=f"parts:{model.id}",
            record=f"{model.id}_parts",
            doc=f"{model.id} in parts"
            + ("" if rule == split.ALWAYS else f", if it is over {parts.LIMIT:,} bytes"),
            settings=lambda: {
                "file": file,  # the checksum names it
                "parts": rule,
                "limit": parts.LIMIT,
                "part_size": parts.PART_SIZE,
                "made_by": self.toolchains.code("releasing/parts.py", "steps/split.py"),
            },
            make=make,
            place=lambda name: f"compiled/{file}{name}",
            after=(verified,),
            check=check,
            model=model.id,
        )

    def _parts_rule(self, model: Model) -> str:
        """What the most demanding of the releases that hold a model says."""
        holding_it = (one for one in self.catalog.releases.values() if model in self.catalog.members(one))
        return max((one.parts for one in holding_it), key=split.ALWAYS.__eq__, default=split.LARGE)

    def _tinygrad(self, unit: Unit) -> Path:
        return toolchain.tinygrad_root(unit.toolchain, self.base)

    def _compile_settings(self, unit: Unit) -> Content:
        return {
            "flags": unit.flags.values,
            "toolchain": self.toolchains.identity(unit.toolchain, unit.flags),
            "worker": self.toolchains.worker(),
            "asked_by": self.toolchains.code("steps/compile.py", "layouts.py", "networks/indices.py"),
            "device": unit.flags.expected_device,
            "cameras": [str(camera) for camera in unit.cameras],
            "frame_skip": unit.frame_skip or f"{self.catalog.defaults.frame_skip}, or 1 at full rate",
            "type": unit.type or "by files",
            **({"form": layouts.FORMS[unit.layout]} if unit.layout in layouts.FORMS else {}),
            **unit.options,
        }

    def _verify_settings(self, unit: Unit) -> Content:
        rules = verify.settings(self._gates, unit.flags, self.catalog.limits, unit.skip_gates)
        return {**self._compile_settings(unit), "gates": rules}

    @cached_property
    def _gates(self) -> str:
        return verify.digest(self.workspace.digests)

    def _request(
        self, operation: str, unit: Unit, source: Step, outputs: Mapping[str, Path]
    ) -> dict[str, Any]:
        record = self.judge.decide(source).record
        assert record is not None
        whole = {output.name: self.workspace.path(output.path) for output in record.outputs}
        files = _networks(whole)
        found = checked(unit.id, unit.type, whole, self._tinygrad(unit), unit.shapes)
        self._activations[unit.id] = sum(one.activations for one in found.values())
        settings = {
            **unit.options,
            "cameras": [[camera.width, camera.height] for camera in unit.cameras],
            "frame_skip": compiling.frame_skip(found, unit.frame_skip, self.catalog.defaults.frame_skip),
        }
        if unit.layout == layouts.GENERIC:
            ((role, only),) = found.items()
            settings["feed"] = compiling.feed(unit.id, files[role], only, unit.options.get("feed", {}))
        named = compiling.networks(files, found)
        return compiling.request(operation, compiling.kind(found, unit.type), named, settings, outputs)

    def _job(self, unit: Unit, request: Mapping[str, Any], content: Content, scratch: Path, most: int) -> Job:
        """The job with the very tinygrad and worker that the step's key names."""
        settings, hidden = content["settings"], self.workspace.hidden
        tree = settings["toolchain"]["tinygrad"]["tree"]
        return Job(
            label=unit.id,
            request=request,
            flags=unit.flags.values,
            tinygrad=self.toolchains.snapshot(unit.toolchain, tree, hidden / "toolchains"),
            worker=package.packed(hidden / "workers", settings["worker"]),
            scratch=scratch,
            log=self.workspace.log(unit.id),
            most_bytes=most,
        )

    def _kinship(self, request: Mapping[str, Any], content: Content) -> str:
        """What two compiles must have in common for one process to serve both."""
        structures = {
            role: architecture.structure(Path(network["path"]))
            for role, network in request["networks"].items()
        }
        common = {name: value for name, value in request.items() if name not in ("networks", "outputs")}
        return key_of({"settings": content["settings"], "request": common, "structures": structures})

    def _compile(self, unit: Unit, source: Step, content: Content, scratch: Path) -> Made:
        _check_device(unit)
        request = self._request("compile", unit, source, {})
        layouts.check(unit.id, unit.layout, request["kind"])
        names = layouts.names(unit.layout, request["networks"], unit.cameras)
        outputs = {name: scratch / name for name in names}
        request["outputs"] = {name: str(path) for name, path in outputs.items()}
        needed, most = self._peak(unit.id, "artifact", source)
        job = self._job(unit, request, content, scratch, most)
        forks = not self.cold and {unit.flags.expected_device, unit.flags.warp_device} == {"CPU"}
        with self._place_to_run(unit, needed):
            self._hold_operators(unit, request, content, scratch, most)
            facts = self.warm.run(job, self._kinship(request, content)) if forks else local.run(job)
        return Made(dict(outputs), facts)

    def _hold_operators(
        self, unit: Unit, request: Mapping[str, Any], content: Content, scratch: Path, most: int
    ) -> holding.Held | None:
        """Before minutes of compile are spent, and of an artifact that is verified anew by another gate."""
        if holding.GATE in unit.skip_gates:
            return None
        settings = content["settings"]
        identity = {name: settings[name] for name in ("toolchain", "flags", "worker")}
        identity["gate"] = holding.code(self.workspace.digests)
        networks = {role: Path(one["path"]) for role, one in request["networks"].items()}
        version = unit.toolchain.tinygrad or f"of toolchain {unit.toolchain.name}"
        job = self._job(unit, {"operation": holding.GATE, "tinygrad": version}, content, scratch, most)
        return self.operators.hold(job, networks, identity, unit.shapes)

    @contextlib.contextmanager
    def _place_to_run(self, unit: Unit, needed: int) -> Iterator[None]:
        """Wait for the unit's devices, then for so many bytes of memory."""
        devices = (unit.flags.expected_device, unit.flags.warp_device)
        with self.lanes.held(devices), self.room.reserved(needed):
            yield

    def _peak(self, unit_id: str, kind: str, source: Step) -> tuple[int, int]:
        """Bytes of memory a step needs at worst, and how many each of its processes may take.

        As measured the last time, else as its weights and shapes suggest.
        """
        weights = sum(output.size for output in self._recorded(source.task))
        guessed = UNMEASURED + WEIGHT_COPIES * weights + self._activations.get(unit_id, 0)
        record = self.workspace.records.read(f"{unit_id}_{kind}")
        measured = int(record.facts.get("peak_bytes", 0)) if record else 0
        chosen = self.catalog.defaults.memory_gb
        return measured or guessed, chosen * GB if chosen else limit(max(measured, guessed))

    def _verify(self, unit: Unit, source: Step, candidate: Step, content: Content, scratch: Path) -> Made:
        _check_device(unit)
        record, origin = self._record(candidate.task), self._record(source.task)
        outputs = {o.name: self.workspace.path(o.path) for o in record.outputs}
        request = self._request("verify", unit, source, outputs)
        needed, most = self._peak(unit.id, "validation", source)
        with self._place_to_run(unit, needed):
            held = self._hold_operators(unit, request, content, scratch, most)
            case = verify.Case(
                unit.id, request, record, unit.flags, self.catalog.limits, unit.skip_gates, most, held
            )
            facts = verify.verify(
                case, origin, scratch, lambda r: local.run(self._job(unit, r, content, scratch, most))
            )
        return Made({o.name: o.sha256 for o in record.outputs}, facts)

    # ---- releases

    def _release(self, release: Release, made: Mapping[str, Step]) -> tuple[Step, Step]:
        models = self.catalog.members(release)
        upstream = tuple(made[f"{kind}:{m.id}"] for m in models for kind in ("pkl", "parts"))
        manifest = self._manifest(release, models, upstream)
        return manifest, self._assembled(release, manifest, upstream)

    def _entries(self, release: Release) -> list[dict[str, Any]]:
        models = self.catalog.models
        return [releasing.entry(models[one], new) for one, new in self._names(release).items()]

    def _names(self, release: Release) -> dict[str, str]:
        return releasing.names(self.catalog, release)

    def _manifest_settings(self, release: Release) -> Content:
        placeholders.check(release, self.catalog.members(release))
        entries = self._entries(release)
        return {
            "entries": {one["id"]: one for one in entries},
            "order": [one["id"] for one in entries],
            "made_by": self.toolchains.code("clients/starpilot.py", "steps/release.py"),
        }

    def _manifest(self, release: Release, models: tuple[Model, ...], upstream: tuple[Step, ...]) -> Step:
        file = starpilot.manifest_name(release.name)

        def make(scratch: Path, content: Content) -> Made:
            for model in models:
                verify.check_released(model.id, self._record(f"pkl:{model.id}").facts, model.flags)
            return releasing.manifest(self._entries(release), file, scratch)

        return Step(
            task=f"manifest:{release.name}",
            record=f"{release.name}_manifest",
            doc=f"manifests/{file}",
            settings=lambda: self._manifest_settings(release),
            make=make,
            place=lambda name: f"manifests/{name}",
            after=upstream,
            targets=(f"manifests/{file}",),
            reuse=lambda: NOWHERE,  # it takes no longer to make than to check
        )

    def _assembled(self, release: Release, listed: Step, upstream: tuple[Step, ...]) -> Step:
        folder = f"ready-for-resources/{release.name}"
        id_map = starpilot.id_map_name(release.name)

        def place(name: str) -> str:
            inside = f"{folder}/{starpilot.place(release.name, name)}"
            return f"source-maps/{name}" if name == id_map else inside

        def make(scratch: Path, content: Content) -> Made:
            renamed, models = self._names(release), self.catalog.models
            artifacts = [self._artifact(models[one], new, release) for one, new in renamed.items()]
            manifest = self._recorded(f"manifest:{release.name}")[0]
            lost = releasing.unreachable(self.catalog, release)
            made = releasing.assemble(artifacts, manifest, lost, scratch)
            if not release.suffix:
                return made
            return Made({id_map: releasing.id_map(renamed, release, scratch), **made.outputs}, made.facts)

        return Step(
            task=f"release:{release.name}",
            record=f"{release.name}_release",
            doc=f"{folder}/: every file of {release.name} under its published name",
            settings=lambda: {
                "names": self._names(release),
                "order": list(self._names(release)),
                "parts": release.parts,
                "unreachable": releasing.unreachable(self.catalog, release),
                "made_by": self.toolchains.code(*RELEASE_CODE),
            },
            make=make,
            place=place,
            after=(*upstream, listed),
            reuse=lambda: NOWHERE,
            owns=folder,
        )

    def _artifact(self, model: Model, published: str, release: Release) -> releasing.Artifact:
        record = self._record(f"pkl:{model.id}")
        verify.check_released(model.id, record.facts, model.flags)
        (whole,) = record.outputs
        in_parts = split.is_split(whole.size, release.parts)
        return releasing.Artifact(published, whole, self._recorded(f"parts:{model.id}") if in_parts else ())

    def _record(self, task: str) -> Record:
        record = self.judge.decide(self.steps[task]).record
        assert record is not None
        return record

    def _recorded(self, task: str) -> tuple[Output, ...]:
        return self._record(task).outputs


def _roles(found: Mapping[str, One]) -> dict[str, One]:
    """Files of a source, whatever is known of them: ONNX files by what they are for, others by name."""
    return {name.removesuffix(ONNX): one for name, one in found.items()}


def _networks(found: Mapping[str, One]) -> dict[str, One]:
    """The ONNX files among them."""
    return {name.removesuffix(ONNX): one for name, one in found.items() if name.endswith(ONNX)}


def _copies(content: Content) -> dict[str, str]:
    """What comes out of a source of local files, by its key."""
    return {file_name(name): file["sha256"] for name, file in content["files"].items()}


def _candidate_reuse() -> Reuse:
    missing = confine.missing()
    return SIGNED._replace(why=f"unsigned candidates are compiled here: {missing}") if missing else ANYWHERE


def _suspicions(found: Mapping[str, Path]) -> str:
    from rules.inspection import flaw

    return flaw(found.items())


def _check_device(unit: Unit) -> None:
    """Raise ArtifactError when this machine lacks what the unit is compiled for, and verified on."""
    if not local.offers(unit.flags.requires):
        needed = f"flag set {unit.flags.name} requires {unit.flags.requires}"
        raise ArtifactError(
            f"{unit.id}: {needed}, which this machine lacks",
            fix="run this on such a machine, or give the model another flag set in models.toml",
        )
