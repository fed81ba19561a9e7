"""An artifact driven as modeld drives it: 20 frames a second on the wall clock, late ones dropped."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import artifact, capture, queues
from ..driving import POLICY_ORDER, Driving
from ..feed import on_device, on_host
from ..monitoring import INPUT_SIZE, METADATA_FILE, MODEL_FILE, Monitoring
from ..monitoring import warp_file as dm_warp_file
from ..network import HIDDEN
from ..split import Split, metadata_file, skip_of, warp_file
from . import scene
from .decode import Array, Heads, decode, kind_of
from .messages import (
    LATERAL_ACTION_TIME,
    LONGITUDINAL_ACTION_TIME,
    REST,
    Fields,
    Publisher,
    driver_state,
    next_action,
)

Outputs = dict[str, Array]
Shots = tuple[Any, ...]
Sight = Callable[[int], Shots]  # frame number → what every camera saw, on the device

PERIOD = 1 / scene.RATE
ROLES = ("vision", *POLICY_ORDER)
MERGED = ("vision", "off_policy", "policy", "on_policy", "model")  # what comes later speaks where both do
LEFT_HAND_DRIVE = (1.0, 0.0)
DROP_SECONDS = 10.0  # time constant of the share of dropped frames that messages carry
HEADS = {
    "plan": ("plan",),
    "lane lines": ("lane_lines", "lane_lines_prob"),
    "road edges": ("road_edges",),
    "lead": ("lead", "lead_prob"),
    "pose": ("pose",),
    "left seat": ("_lhd",),
    "right seat": ("_rhd",),
    "wheel side": ("wheel_on_right",),
}


class Progress:
    """A small file that tells whoever started this process how far it has come."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, stage: str, frame: int = -1) -> None:
        """`stage` is loading, warming, running or writing."""
        self.path.write_text(json.dumps({"pid": os.getpid(), "stage": stage, "frame": frame}))


def private_bytes() -> int:
    """Memory that is this process's own; where the system does not tell, the most it ever had."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except FileNotFoundError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class ModelState:
    """A driving model at work: its queues, and what it is fed back."""

    def __init__(self, request: dict[str, Any], files: dict[str, Any], camera: scene.Camera) -> None:
        self.driving = driving_of(request, files)
        self.camera = camera
        self.speed: float = request["speed"]
        self.matrices = {
            "tfm": scene.road_matrix(camera, scene.NARROW, self.driving.model_size),
            "big_tfm": scene.road_matrix(camera, scene.WIDE, self.driving.model_size),
        }
        self.session = self.driving.at_work(files, camera)
        self.restart()

    def restart(self) -> None:
        """Forget everything seen so far."""
        self.session.restart()
        self.feature = np.zeros(queues.FEATURES, np.float32)
        self.wanted = np.zeros(queues.DESIRES, np.float32)
        self.action = REST
        self.curvatures = np.zeros(self.driving.history.desire_depth, np.float32)

    @property
    def slices(self) -> dict[str, Mapping[str, slice]]:
        """The output slices of each network."""
        return {
            role: {name: network.slice_of(name) for name in network.spec["output_slices"]}
            for role, network in self.driving.networks.items()
        }

    def sight(self, footage: Mapping[str, Any] | None) -> Sight:
        """Both cameras' frames on the device, by frame number."""
        place = self.driving.places.frame
        if footage is None:
            lenses = (scene.NARROW, scene.WIDE)
            roads = (scene.Road(self.camera, lens, self.speed).frames() for lens in lenses)
            return scene.ring(
                [tuple(on_device(one, place) for one in pair) for pair in zip(*roads, strict=True)]
            )
        road, wide = (
            scene.Footage(footage[name], self.camera, tight=footage["tight"]) for name in ("road", "wide")
        )
        return lambda index: (on_device(road(index), place), on_device(wide(index), place))

    def step(self, index: int, shots: Shots) -> Outputs:
        """One frame: the warp, then the networks; each network's output vector by role."""
        outputs = self.session.step((shots[0], shots[1]), self.matrices, self._values(index))
        return {role: row.reshape(-1) for role, row in zip(self._roles, outputs, strict=True)}

    @property
    def _roles(self) -> list[str]:
        return ["model"] if self.driving.whole else ["vision", *self.driving.policies]

    def take_in(self, outputs: Outputs, heads: Heads) -> None:
        """What the next frame is fed of this one."""
        self.feature = next(iter(outputs.values()))[self.driving.images.slice_of(HIDDEN)]
        self.action = next_action(heads, self.action, self.speed) or self.action
        self.curvatures = np.append(self.curvatures[1:], np.float32(self.action.curvature))

    def _values(self, index: int) -> dict[str, Any]:
        """The policy's inputs of one frame by name."""
        wanted = scene.desire(index)
        pulse, self.wanted = np.maximum(wanted - self.wanted, 0), wanted
        shapes = self.driving.packed_inputs.items()
        return {
            name: pulse if name == "desire" else self._input(name, int(np.prod(shape)))
            for name, shape in shapes
        }

    def _input(self, name: str, size: int) -> Any:
        if name == "prev_feat":
            return self.feature
        if name.startswith("prev_desired_curv"):
            return self._past_curvatures(size)
        known: dict[str, tuple[float, ...]] = {
            "traffic_convention": LEFT_HAND_DRIVE,
            "action_t": (LATERAL_ACTION_TIME, LONGITUDINAL_ACTION_TIME),
            "lateral_control_params": (self.speed, LATERAL_ACTION_TIME),
        }
        return known.get(name, 0.0)

    def _past_curvatures(self, size: int) -> Any:
        """The curvatures asked for so far, one for each step of context, the newest last."""
        skip = self.driving.history.frame_skip
        sampled = self.curvatures[skip - 1 :: skip]
        return np.pad(sampled, (max(0, size - sampled.size), 0))[-size:]

    def publisher(self) -> Callable[..., Fields]:
        """Fills the messages of one frame after the other."""
        return Publisher(self.speed).messages


def driving_of(request: Mapping[str, Any], files: Mapping[Any, Any]) -> Driving:
    """The unit that an artifact of any layout is, from what its files say: a runtime knows no more."""
    if "artifact" in files:
        whole = files["artifact"]
        about = {"contract": pipeline(whole), "frame_skip": whole["frame_skip"]}
        about["cameras"] = [key for key in whole if isinstance(key, tuple)]
        return Driving(_described(request, about, whole["metadata"]))
    roles = [role for role in ROLES if metadata_file(role) in files]
    cameras = [camera for camera in map(tuple, request["cameras"]) if warp_file(camera) in files]
    about = {"contract": "warp", "frame_skip": skip_of(files[warp_file(cameras[0])]), "cameras": cameras}
    return Split(_described(request, about, {role: files[metadata_file(role)] for role in roles}))


def pipeline(whole: Mapping[Any, Any]) -> str:
    """Where an artifact of one file keeps the image history: its JIT's arguments tell, if nothing else."""
    argued = "policy" if "warped" in capture.names(whole["run_policy"]) else "warp"
    return str(whole.get("image_history_pipeline", argued))


def _described(
    request: Mapping[str, Any], about: Mapping[str, Any], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    networks = {role: _spec(one) for role, one in metadata.items()}
    shapes = next(iter(networks.values()))["inputs"].items()
    height, width = next(spec["shape"] for name, spec in shapes if "img" in name)[-2:]
    return {**request, **about, "model_size": (2 * width, 2 * height), "networks": networks}


def _spec(metadata: Mapping[str, Any]) -> dict[str, Any]:
    slices = metadata["output_slices"].items()
    return {
        "path": "",
        "inputs": {name: {"shape": shape} for name, shape in metadata["input_shapes"].items()},
        "output_slices": {name: (span.start, span.stop) for name, span in slices},
    }


class MonitoringState:
    """Driver monitoring at work."""

    def __init__(self, request: dict[str, Any], files: dict[str, Any], camera: scene.Camera) -> None:
        metadata = files[METADATA_FILE]
        networks = {"dmonitoring_model": _spec(metadata)}
        self.places = Monitoring({"cameras": [camera], "networks": networks}).places
        self.files = files
        self.camera = camera
        self.transform = on_host(scene.driver_matrix(camera, INPUT_SIZE))
        self.calibration = on_host(np.zeros(metadata["input_shapes"]["calib"], np.float32))
        self.slices: dict[str, Mapping[str, slice]] = {"driver": metadata["output_slices"]}
        self.action = None

    def restart(self) -> None:
        """It looks back on nothing."""

    def sight(self, footage: Mapping[str, Any] | None) -> Sight:
        """The driver camera's frames on the device, by frame number."""
        if footage is None:
            frames = scene.Driver(self.camera).frames()
            return scene.ring([(on_device(frame, self.places.frame),) for frame in frames])
        driver = scene.Footage(footage["road"], self.camera, tight=footage["tight"])
        return lambda index: (on_device(driver(index), self.places.frame),)

    def step(self, index: int, shots: Shots) -> Outputs:
        """One frame: the warp, then the network; its output vector."""
        warped = self.files[dm_warp_file(self.camera)](*shots, self.transform)
        output = self.files[MODEL_FILE](input_img=warped, calib=self.calibration)
        return {"driver": output.numpy().reshape(-1)}

    def take_in(self, outputs: Outputs, heads: Heads) -> None:
        """Nothing is fed back."""

    def publisher(self) -> Callable[..., Fields]:
        """Fills the message of one frame."""

        def fill(heads: Heads, frame_id: int, seconds: float, dropped: float) -> Fields:
            return {
                "driverStateV2": {
                    "frameId": frame_id,
                    "modelExecutionTime": seconds,
                    **driver_state(heads),
                }
            }

        return fill


Runtime = ModelState | MonitoringState
RUNTIMES: dict[str, type[ModelState] | type[MonitoringState]] = {
    "driving": ModelState,
    "dmonitoring": MonitoringState,
}


@dataclass
class Drive:
    """What happened: for each frame that was run its number, its seconds, and every network's output."""

    wanted: int
    outputs: dict[str, Any]
    frames: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    actions: list[bool] = field(default_factory=list)  # whether each frame's action is finite
    growth: int = 0  # bytes

    def at(self, position: int) -> Outputs:
        """The outputs of the frame run at `position`."""
        return {role: rows[position] for role, rows in self.outputs.items()}


def heads_of(outputs: Outputs, slices: Mapping[str, Mapping[str, slice]]) -> Heads:
    """One frame's heads; where two policies have the same, the on-policy's is the one that acts."""
    heads: Heads = {}
    for role in sorted(outputs, key=lambda one: MERGED.index(one) if one in MERGED else len(MERGED)):
        heads |= decode(outputs[role], slices[role])
    return heads


def drive(runtime: Runtime, sight: Sight, wanted: int, scratch: Path, progress: Progress) -> Drive:
    """Run `wanted` frames' time; outputs go to files under `scratch`, so that they are no memory growth."""
    slices = runtime.slices
    progress.note("warming")
    warm = runtime.step(0, sight(0))
    runtime.take_in(warm, heads_of(warm, slices))
    runtime.restart()
    run = Drive(wanted, {role: _rows(scratch / role, wanted, row.size) for role, row in warm.items()})
    before = private_bytes()
    start, last = time.monotonic(), -1
    while (index := scene.next_frame(last, time.monotonic() - start)) < wanted:
        time.sleep(max(0.0, start + index * PERIOD - time.monotonic()))
        progress.note("running", index)
        shots = sight(index)
        began = time.perf_counter()
        outputs = runtime.step(index, shots)
        runtime.take_in(outputs, heads_of(outputs, slices))
        run.seconds.append(time.perf_counter() - began)
        for role, row in outputs.items():
            run.outputs[role][len(run.frames)] = row
        run.actions.append(
            runtime.action is None or bool(np.isfinite([*vars(runtime.action).values()]).all())
        )
        run.frames.append(index)
        last = index
    run.growth = private_bytes() - before
    return run


def _rows(path: Path, count: int, width: int) -> Any:
    return np.memmap(path, np.float32, "w+", shape=(count, width))


def finite(heads: Heads) -> dict[str, bool]:
    """For each group of heads that the model has, whether all of its numbers are."""
    found = {}
    for group, names in HEADS.items():
        arrays = [array for name, array in heads.items() if _belongs(name, names)]
        if arrays:
            found[group] = all(bool(np.isfinite(array).all()) for array in arrays)
    return found


def _belongs(name: str, names: tuple[str, ...]) -> bool:
    base = name.removesuffix("_stds")
    return base in names or base.removeprefix(kind_of(base)) in names


def told(run: Drive, runtime: Runtime) -> dict[str, Any]:
    """The facts of one camera's drive."""
    counts: dict[str, int] = {}
    for position in range(len(run.frames)):
        for group, good in finite(heads_of(run.at(position), runtime.slices)).items():
            counts[group] = counts.get(group, 0) + good
    if runtime.action not in (None, REST):
        counts["action"] = sum(run.actions)
    return {
        "frames": len(run.frames),
        "dropped": run.wanted - len(run.frames),
        "latencies": [round(seconds, 6) for seconds in run.seconds],
        "growth_bytes": run.growth,
        "finite": counts,
    }


def lines(run: Drive, runtime: Runtime) -> Iterator[Fields]:
    """The messages of every frame that was run, in order."""
    fill, share, last = runtime.publisher(), 0.0, -1
    weight = PERIOD / (DROP_SECONDS + PERIOD)
    for position, (index, seconds) in enumerate(zip(run.frames, run.seconds, strict=True)):
        share += weight * (index - last - 1 - share)
        heads = heads_of(run.at(position), runtime.slices)
        yield fill(heads, index, seconds, share / (1 + share))
        last = index


def saved(run: Drive, runtime: Runtime, camera: str) -> dict[str, Any]:
    """Arrays by name: what came out, raw and decoded, one row for each frame that was run."""
    every = [heads_of(run.at(position), runtime.slices) for position in range(len(run.frames))]
    arrays: dict[str, Any] = {"frame_id": np.array(run.frames), "latency_s": np.array(run.seconds)}
    arrays |= {f"raw_{role}": rows[: len(run.frames)] for role, rows in run.outputs.items()}
    arrays |= {name: np.stack([heads[name] for heads in every]) for name in (every[0] if every else ())}
    return {f"{camera}/{name}": array for name, array in arrays.items()}


def replay(request: dict[str, Any]) -> dict[str, Any]:
    """Load the artifact in this fresh process and drive it, camera by camera.

    The request holds `kind` (driving, dmonitoring), `outputs` (the artifact's files), `cameras`, `speed` in
    m/s, `seconds`, `footage` (by camera, or null for a made scene), `scratch`, and files to write:
    `progress`, `messages` and `save` (null for none).
    """
    progress = Progress(Path(request["progress"]))
    progress.note("loading")
    files = {name: artifact.read(Path(path)) for name, path in request["outputs"].items()}
    facts: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for camera in map(tuple, request["cameras"]):
        name = "{}x{}".format(*camera)
        runtime = RUNTIMES[request["kind"]](request, files, camera)
        run = _driven(request, runtime, name, progress)
        facts[name] = told(run, runtime)
        if request["messages"]:
            with Path(request["messages"]).open("a") as messages:
                messages.writelines(json.dumps({"camera": name, **one}) + "\n" for one in lines(run, runtime))
        if request["save"]:
            arrays |= saved(run, runtime, name)
    if request["save"]:
        np.savez(request["save"], **arrays)
    return {"cameras": facts, "about": about(files)}


def _driven(request: dict[str, Any], runtime: Runtime, camera: str, progress: Progress) -> Drive:
    scratch = Path(request["scratch"]) / camera
    scratch.mkdir()
    sight = runtime.sight((request["footage"] or {}).get(camera))
    run = drive(runtime, sight, round(request["seconds"] * scene.RATE), scratch, progress)
    progress.note("writing")
    return run


def about(files: Mapping[str, Any]) -> dict[str, Any]:
    """What the artifact says of itself."""
    if METADATA_FILE in files:
        return {"model_type": "dmonitoring"}
    if "artifact" not in files:
        return {"layout": "openpilot-split"}
    whole = files["artifact"]
    known = ("model_type", "behavior_version", "frame_skip", "image_history_pipeline")
    return {name: whole[name] for name in known if name in whole}
