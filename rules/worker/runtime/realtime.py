"""An artifact driven as modeld drives it: 20 frames a second on the wall clock, late ones dropped."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import artifact, capture, queues
from ..driving import POLICY_ORDER, Driving
from ..feed import on_device, on_host
from ..monitoring import METADATA_FILE, MODEL_FILE, Monitoring
from ..monitoring import warp_file as dm_warp_file
from ..network import HIDDEN
from ..split import Split, metadata_file, skip_of, warp_file
from . import scene
from .action import REST, SLOWEST, next_action
from .decode import Array, Heads, decode, kind_of
from .eras import ERAS, Era, Late, version_of
from .messages import Fields, Publisher, Shot, driver_state

Outputs = dict[str, Array]
Shots = tuple[Any, ...]
Sight = Callable[[int], Shots]  # frame number → what every camera saw, on the device

PERIOD = 1 / scene.RATE
ROLES = ("vision", *POLICY_ORDER)
MERGED = ("vision", "off_policy", "policy", "on_policy", "model")  # what comes later speaks where both do
LEFT_HAND_DRIVE = (1.0, 0.0)
DROP_SECONDS = 10.0  # time constant of the share of dropped frames that messages carry
MOST_DROPS = 10  # that count of one gap
FIRST_COUNTED = 10  # runs before which drops are those of a beginning
CURVATURES = 100  # that a runtime remembers
CURVATURE_STEP = 4  # every fourth of them is fed back, counted from the newest
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
        self.era, self.version = era_of(files)
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
        self.curvatures = np.zeros(CURVATURES, np.float32)

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

    def skips(self, dropped: int) -> bool:
        """Whether this era's runtime publishes nothing for a frame after `dropped` others."""
        return dropped > 0 and self.era.late is Late.WARPED

    def skip(self, index: int, shots: Shots) -> None:
        """A frame that is not published: where the warp keeps the images' history, only that takes it in."""
        if self.driving.contract == "warp":
            self.session.warp((shots[0], shots[1]), self.matrices)
        else:
            self.feature = self._feature(self.step(index, shots))

    def _feature(self, outputs: Outputs) -> Array:
        return next(iter(outputs.values()))[self.driving.images.slice_of(HIDDEN)]

    def take_in(self, outputs: Outputs, heads: Heads) -> None:
        """What the next frame is fed of this one."""
        self.feature = self._feature(outputs)
        action = next_action(heads, self.action, self.speed, self.era, self.version)
        self.action = action or self.action
        if self.era.feeds_curvature_back(self.version) and "desired_curvature" in heads:
            self.curvatures = np.append(self.curvatures[1:], np.float32(heads["desired_curvature"][0]))

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
        speed = max(self.speed, SLOWEST)
        known: dict[str, tuple[float, ...]] = {
            "traffic_convention": LEFT_HAND_DRIVE,
            "action_t": (self.era.lateral_action_time, self.era.longitudinal_action_time),
            "prev_action": (self.action.curvature * speed**2, self.action.acceleration),
            "lateral_control_params": (self.speed, self.era.lateral_delay),
        }
        return known.get(name, 0.0)

    def _past_curvatures(self, size: int) -> Any:
        """What the model said of the curvature so far, a number for each step of context, the newest last."""
        step = 1 if size == CURVATURES else CURVATURE_STEP
        sampled = self.curvatures[step - 1 :: step]
        return np.pad(sampled, (max(0, size - sampled.size), 0))[-size:]

    def publisher(self) -> Callable[..., Fields]:
        """Fills the messages of one frame after the other."""
        return Publisher(self.speed, self.era, self.version).messages


def era_of(files: Mapping[Any, Any]) -> tuple[Era, int | None]:
    """The era of the runtime that loads these files, and their behaviour version where they tell one."""
    if "artifact" not in files:
        return ERAS["openpilot-split"], None
    whole = files["artifact"]
    layout = "starpilot-single" if "format_version" in whole else "iqpilot-supercombo"
    return ERAS[layout], version_of(whole.get("behavior_version"))


def driving_of(request: Mapping[str, Any], files: Mapping[Any, Any]) -> Driving:
    """The unit that an artifact of any layout is, from what its files say: a runtime knows no more."""
    if "artifact" in files:
        whole = files["artifact"]
        about = {"contract": pipeline(whole), "frame_skip": whole["frame_skip"]}
        about["cameras"] = [key for key in whole if isinstance(key, tuple)]
        metadata = whole["metadata"]
        return Driving(
            _described(request, about, {"model": metadata} if "output_slices" in metadata else metadata)
        )
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
        self.transform = on_host(scene.driver_matrix(camera))
        self.calibration = on_host(np.zeros(metadata["input_shapes"]["calib"], np.float32))
        self.slices: dict[str, Mapping[str, slice]] = {"driver": metadata["output_slices"]}
        self.action = None

    def restart(self) -> None:
        """It looks back on nothing."""

    def skips(self, dropped: int) -> bool:
        """Every frame is looked at."""
        return False

    def skip(self, index: int, shots: Shots) -> None:
        """No frame is skipped."""

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

        return lambda heads, shot: {"driverStateV2": driver_state(heads, shot)}


Runtime = ModelState | MonitoringState
RUNTIMES: dict[str, type[ModelState] | type[MonitoringState]] = {
    "driving": ModelState,
    "dmonitoring": MonitoringState,
}


@dataclass
class Drive:
    """What happened: each frame that was published, and every network's output in it."""

    wanted: int
    outputs: dict[str, Any]
    shots: list[Shot] = field(default_factory=list)
    late: int = 0  # frames that came to the runtime after a drop, and so were not published
    actions: list[bool] = field(default_factory=list)  # whether each frame's action is finite
    growth: int = 0  # bytes

    def at(self, position: int) -> Outputs:
        """The outputs of the frame published at `position`."""
        return {role: rows[position] for role, rows in self.outputs.items()}


class Drops:
    """How many frames went by unseen: a runtime's own count, and its filter over it."""

    def __init__(self) -> None:
        self.last, self.runs, self.level = -1, 0, 0.0

    def take(self, index: int) -> tuple[int, float]:
        """Frame `index` is taken; returns how many were dropped before it, and the share dropped of late."""
        dropped, self.last = max(0, index - self.last - 1), index
        self.level += PERIOD / (DROP_SECONDS + PERIOD) * (min(dropped, MOST_DROPS) - self.level)
        if self.runs < FIRST_COUNTED:
            self.level = 0.0
        self.runs += 1
        return dropped, self.level / (1 + self.level)


def heads_of(outputs: Outputs, slices: Mapping[str, Mapping[str, slice]]) -> Heads:
    """One frame's heads; where two policies have the same, the on-policy's is the one that acts."""
    heads: Heads = {}
    for role in sorted(outputs, key=lambda one: MERGED.index(one) if one in MERGED else len(MERGED)):
        heads |= decode(outputs[role], slices[role])
    return heads


def drive(runtime: Runtime, sight: Sight, wanted: int, scratch: Path, progress: Progress) -> Drive:
    """Run `wanted` frames' time; outputs go to files under `scratch`, so that they are no memory growth."""
    progress.note("warming")
    warm = runtime.step(0, sight(0))
    runtime.take_in(warm, heads_of(warm, runtime.slices))
    runtime.restart()
    run = Drive(wanted, {role: _rows(scratch / role, wanted, row.size) for role, row in warm.items()})
    before, drops = private_bytes(), Drops()
    start = time.monotonic()
    while (index := scene.next_frame(drops.last, time.monotonic() - start)) < wanted:
        time.sleep(max(0.0, start + index * PERIOD - time.monotonic()))
        progress.note("running", index)
        age = max(0, int((time.monotonic() - start) * scene.RATE) - index)
        dropped, ratio = drops.take(index)
        if runtime.skips(dropped):
            runtime.skip(index, sight(index))
            run.late += 1
            continue
        _publish(run, runtime, sight(index), Shot(index, 0.0, age, dropped, ratio, scene.desire(index)))
    run.growth = private_bytes() - before
    return run


def _publish(run: Drive, runtime: Runtime, seen: Shots, shot: Shot) -> None:
    """Run one frame, and keep what came of it."""
    began = time.perf_counter()
    outputs = runtime.step(shot.frame_id, seen)
    runtime.take_in(outputs, heads_of(outputs, runtime.slices))
    seconds = time.perf_counter() - began
    for role, row in outputs.items():
        run.outputs[role][len(run.shots)] = row
    action = runtime.action
    run.actions.append(action is None or bool(np.isfinite([*vars(action).values()]).all()))
    run.shots.append(replace(shot, seconds=seconds))


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
    for position in range(len(run.shots)):
        for group, good in finite(heads_of(run.at(position), runtime.slices)).items():
            counts[group] = counts.get(group, 0) + good
    if runtime.action not in (None, REST):
        counts["action"] = sum(run.actions)
    return {
        "frames": len(run.shots),
        "late": run.late,
        "dropped": run.wanted - len(run.shots) - run.late,
        "latencies": [round(shot.seconds, 6) for shot in run.shots],
        "growth_bytes": run.growth,
        "finite": counts,
    }


def lines(run: Drive, runtime: Runtime) -> Iterator[Fields]:
    """The messages of every frame that was published, in order."""
    fill = runtime.publisher()
    for position, shot in enumerate(run.shots):
        yield fill(heads_of(run.at(position), runtime.slices), shot)


def saved(run: Drive, runtime: Runtime, camera: str) -> dict[str, Any]:
    """Arrays by name: what came out, raw and decoded, one row for each frame that was published."""
    every = [heads_of(run.at(position), runtime.slices) for position in range(len(run.shots))]
    arrays: dict[str, Any] = {
        "frame_id": np.array([shot.frame_id for shot in run.shots]),
        "latency_s": np.array([shot.seconds for shot in run.shots]),
    }
    arrays |= {f"raw_{role}": rows[: len(run.shots)] for role, rows in run.outputs.items()}
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
