"""Driving an artifact for a while, as its runtime would, in a child process that is watched."""

import json
import math
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rules import toolchain
from rules.builders import local, package
from rules.builders.job import Job
from rules.builders.watched import end_all
from rules.catalog import Camera, FlagSet, Toolchain
from rules.counting import counted
from rules.errors import ArtifactError, CatalogError, YardError
from rules.flags import nearest
from rules.graph import MONITORING, Graph
from rules.keeping import files
from rules.keeping.files import appending, canonical, reading, replacing
from rules.playback import BUDGET_MS, footage

WATCH_EVERY_S = 0.1
# Seconds without a sign of life after which a stage counts as stuck.
PATIENCE = {"starting": 120.0, "loading": 300.0, "warming": 300.0, "running": 15.0, "writing": 300.0}
STATES = {"Z": "is a zombie", "T": "is stopped", "D": "waits for its device", "R": "is busy"}
MISMATCH = "args mismatch in JIT"


@dataclass(frozen=True)
class Wish:
    """What a replay is to do: `speed` in m/s; without `frames` the cameras see a scene made for it."""

    camera: Camera | None = None  # None: the model's first one, and all of driver monitoring's
    seconds: float = 15.0
    speed: float = 15.0
    frames: Path | None = None
    messages: Path | None = None
    save: Path | None = None
    plot: Path | None = None


@dataclass(frozen=True)
class Subject:
    """What is replayed, and with what: an artifact that this workspace has verified."""

    id: str
    kind: str
    task: str
    flags: FlagSet
    toolchain: Toolchain
    cameras: tuple[Camera, ...]


@dataclass(frozen=True)
class Ride:
    """How one camera's replay went: latencies in ms from a frame on the device to its decoded outputs."""

    camera: str
    frames: int
    late: int  # that came after a drop, and were not published
    dropped: int
    median_ms: float
    p99_ms: float
    max_ms: float
    growth_bytes: int
    finite: Mapping[str, int]  # by group of heads: in how many frames every number was finite

    @classmethod
    def of(cls, camera: str, facts: Mapping[str, Any]) -> "Ride":
        """From the worker's facts of one camera."""
        ms = sorted(1000 * seconds for seconds in facts["latencies"])
        return cls(
            camera,
            facts["frames"],
            facts["late"],
            facts["dropped"],
            statistics.median(ms),
            ms[math.ceil(0.99 * len(ms)) - 1],
            ms[-1],
            facts["growth_bytes"],
            facts["finite"],
        )

    @property
    def in_time(self) -> bool:
        """Whether no frame was missed, and all but one in a hundred were done within the budget."""
        return not self.dropped and not self.late and self.p99_ms <= BUDGET_MS

    @property
    def finite_throughout(self) -> bool:
        """Whether every number of every frame was one."""
        return all(count == self.frames for count in self.finite.values())

    @property
    def good(self) -> bool:
        """Whether a car could have been driven by it."""
        return self.in_time and self.finite_throughout

    def lines(self) -> Iterator[str]:
        """The ride in words."""
        yield f"  {self.camera}"
        late = f", {self.late} after a drop and not published" if self.late else ""
        yield f"    frames   {self.frames} run, {self.dropped} dropped{late}"
        verdict = "within" if self.p99_ms <= BUDGET_MS else "OVER"
        figures = f"median {self.median_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, max {self.max_ms:.1f} ms"
        yield f"    latency  {figures}: {verdict} the budget of {BUDGET_MS:.0f} ms"
        yield f"    memory   {self.growth_bytes / 2**20:+.1f} MiB"
        bad = [
            f"{name} in {counted(self.frames - n, 'frame')}"
            for name, n in self.finite.items()
            if n < self.frames
        ]
        yield f"    finite   {', '.join(self.finite)}" if not bad else f"    NOT FINITE {', '.join(bad)}"


@dataclass(frozen=True)
class Report:
    """A replay's outcome; `about` is what the artifact says of itself."""

    id: str
    device: str
    about: Mapping[str, Any]
    rides: tuple[Ride, ...]

    @property
    def good(self) -> bool:
        """Whether all went well on every camera."""
        return all(ride.good for ride in self.rides)

    def __str__(self) -> str:
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        head = f"{self.id}: {about}, on {self.device}"
        return "\n".join([head, *(line for ride in self.rides for line in ride.lines())])


def replay(graph: Graph, model_id: str, wish: Wish) -> Report:
    """Replay a model, or `monitoring`; writes the files that `wish` names.

    Raises CatalogError for an unknown model or camera, SourceError for unusable frames, and ArtifactError
    when the artifact is not built, or its process dies or gets stuck.
    """
    subject = _subject(graph, model_id)
    outputs = _artifact(graph, subject)
    cameras = _cameras(subject, wish.camera)
    with tempfile.TemporaryDirectory(prefix="modelyard-replay-") as folder:
        scratch = Path(folder)
        request = _request(subject, outputs, cameras, wish, scratch)
        job = Job(
            label=subject.id,
            request=request,
            flags=subject.flags.values,
            tinygrad=toolchain.tinygrad_root(subject.toolchain, graph.base),
            worker=package.packed(graph.workspace.hidden / "workers", graph.toolchains.worker()),
            scratch=scratch,
            log=graph.workspace.log(f"{subject.id}_replay"),
        )
        facts = watched(job)
        rides = tuple(Ride.of(camera, one) for camera, one in facts["cameras"].items())
        report = Report(subject.id, facts["device"], facts["about"], rides)
        with appending(job.log) as log:
            log.write(f"{report}\n".encode())
        _hand_over(request, wish, report)
    return report


def _subject(graph: Graph, model_id: str) -> Subject:
    catalog = graph.catalog
    if model_id == MONITORING and (monitoring := catalog.monitoring) is not None:
        return Subject(
            MONITORING, "dmonitoring", MONITORING, monitoring.flags, monitoring.toolchain, monitoring.cameras
        )
    model = catalog.models.get(model_id)
    names = [*catalog.models, *([MONITORING] if catalog.monitoring else [])]
    if model is None:
        near = nearest(model_id, names)
        lists = "models --list lists the models"
        fix = f"did you mean {near}? else {lists}" if near else lists
        raise CatalogError(f"{model_id}: no such model in {catalog.path.name}", fix=fix)
    if model.type == "generic":
        raise CatalogError(
            f"{model_id}: a generic network, expected one that drives or watches a driver",
            fix="replay another model",
        )
    return Subject(model_id, "driving", f"pkl:{model_id}", model.flags, model.toolchain, model.cameras)


def _artifact(graph: Graph, subject: Subject) -> dict[str, str]:
    """The files by the names the worker knows them by: only what was verified here, unchanged since."""
    if not local.offers(subject.flags.requires):
        needed = f"flag set {subject.flags.name} requires {subject.flags.requires}"
        raise ArtifactError(
            f"{subject.id}: {needed}, which this machine lacks", fix="replay it on such a one"
        )
    decision = graph.judge.decide(graph.steps[subject.task])
    if not decision.fresh or decision.record is None:
        why = "; ".join(map(str, decision.reasons))
        raise ArtifactError(
            f"{subject.id}: its artifact is not up to date: {why}", fix=f"doit {subject.task}"
        )
    return {one.name: str(graph.workspace.path(one.path)) for one in decision.record.outputs}


def _cameras(subject: Subject, wanted: Camera | None) -> list[Camera]:
    if wanted is None:
        return list(subject.cameras) if subject.kind == "dmonitoring" else [subject.cameras[0]]
    if wanted not in subject.cameras:
        known = ", ".join(map(str, subject.cameras))
        raise CatalogError(
            f"{subject.id}: made for cameras {known}, got {wanted}", fix=f"--camera {subject.cameras[0]}"
        )
    return [wanted]


def _request(
    subject: Subject, outputs: Mapping[str, str], cameras: list[Camera], wish: Wish, scratch: Path
) -> dict[str, Any]:
    seen = None
    if wish.frames is not None:
        frames = wish.frames
        seen = {str(one): footage.found(frames, one, wish.seconds, scratch) for one in cameras}
    return {
        "operation": "replay",
        "kind": subject.kind,
        "outputs": dict(outputs),
        "cameras": [[one.width, one.height] for one in cameras],
        "seconds": wish.seconds,
        "speed": wish.speed,
        "footage": seen,
        "scratch": str(scratch),
        "progress": str(scratch / "progress.json"),
        "messages": str(scratch / "messages.jsonl") if wish.messages else None,
        "save": str(scratch / "outputs.npz") if wish.save or wish.plot else None,
    }


def _hand_over(request: Mapping[str, Any], wish: Wish, report: Report) -> None:
    for made, final in ((request["messages"], wish.messages), (request["save"], wish.save)):
        if final is not None:
            with files.opened(made) as source, replacing(canonical(final)) as target:
                shutil.copyfileobj(source, target)
    if wish.plot is not None:
        from rules.playback import plotting

        plotting.plot(Path(request["save"]), wish.plot, f"{report.id} on {report.device}")


# ---- the child, and the eye kept on it


@dataclass(frozen=True)
class Sign:
    """A sign of life: process, what it is doing, and at which frame (-1: none yet)."""

    pid: int = 0
    stage: str = "starting"
    frame: int = -1

    @classmethod
    def read(cls, path: Path, before: "Sign") -> "Sign":
        """The latest sign; `before` when there is none, it is just being written, or it is none of ours."""
        try:
            sign = replace(cls(), **json.loads(files.read(path)))
            sound = type(sign.pid) is int and type(sign.frame) is int and sign.stage in PATIENCE
        except (OSError, ValueError, TypeError, RecursionError):
            return before
        return sign if sound else before


def watched(job: Job, patience: Mapping[str, float] = PATIENCE) -> dict[str, Any]:
    """Run a replay's job and return the worker's facts; `patience` is in seconds for each stage.

    Raises ArtifactError that names what became of the process: gone, zombie, frozen, or a JIT that was
    called with other arguments than it was captured with.
    """
    heard = job.log.stat().st_size if job.log.exists() else 0
    ended: dict[str, Any] = {}
    thread = threading.Thread(target=_run, args=(job, ended))
    thread.start()
    sign, stuck = Sign(), ""
    try:
        sign, stuck = _watch(thread, Path(job.request["progress"]), patience)
    finally:
        if thread.is_alive():
            end_all()  # the sign's process is what an artifact may have written there
        thread.join()
    if stuck:
        raise ArtifactError(f"{job.label}: {stuck}", fix=f"doit diagnose {job.log}")
    if isinstance(error := ended.get("error"), ArtifactError):
        raise _named(job, error, sign, heard)
    if error is not None:
        raise error
    facts: dict[str, Any] = ended["facts"]
    return facts


def _run(job: Job, ended: dict[str, Any]) -> None:
    try:
        ended["facts"] = local.run(job)
    except (YardError, OSError) as error:
        ended["error"] = error


def _watch(thread: threading.Thread, progress: Path, patience: Mapping[str, float]) -> tuple[Sign, str]:
    """The last sign of life, and a sentence when there was none for too long."""
    sign, since = Sign(), time.monotonic()
    while thread.is_alive():
        thread.join(WATCH_EVERY_S)
        now = Sign.read(progress, sign)
        if now != sign:
            sign, since = now, time.monotonic()
        limit = patience[sign.stage]
        if thread.is_alive() and time.monotonic() - since > limit:
            state = _state(sign.pid)
            what = "process is a zombie" if state == "Z" else f"frozen while {sign.stage}"
            where = f" after frame {sign.frame}" if sign.frame >= 0 else ""
            told = STATES.get(state, "sleeps")
            return sign, f"{what}: no sign of life for {limit:g} s{where} (process {sign.pid} {told})"
    return sign, ""


def _state(pid: int) -> str:
    """The one-letter state that Linux gives a process; "" when it is gone, or on another system."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _named(job: Job, error: ArtifactError, sign: Sign, heard: int) -> ArtifactError:
    """The failure by its name in the field."""
    with reading(job.log) as log:
        log.seek(heard)
        text = log.read().decode(errors="replace")
    where = f"at frame {sign.frame}" if sign.frame >= 0 else f"while {sign.stage}"
    if MISMATCH in text:
        what = f"{MISMATCH}: the artifact does not match what it is fed"
    else:
        what = "the process is gone"
    return ArtifactError(f"{what}, {where}: {error.what}", fix=f"doit diagnose {job.log}")
