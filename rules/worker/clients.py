"""The runtimes that load an artifact, each written from its own documents: what it needs the artifact tells.

Nothing here shares code or figures with what makes artifacts and replays them; a key list, a queue or a shape
that both sides got wrong would otherwise pass for right.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from tinygrad import Device, Tensor

from . import heads
from .feed import Arrays, Scene, digest

Files = Mapping[str, Any]
Size = tuple[int, int]
PULSES, PLANES = 8, 6  # desires; planes of one frame


class Calls:
    """Calls captures, and notes which of their arguments they wrote to."""

    def __init__(self) -> None:
        self.written: dict[str, set[str]] = {}

    def __call__(self, label: str, captured: Any, *placed: Tensor, **named: Tensor) -> Any:
        """What `captured` returns."""
        given = {**{str(number): one for number, one in enumerate(placed)}, **named}
        before = {name: one.numpy().tobytes() for name, one in given.items()}
        made = captured(*placed, **named)
        changed = {name for name, one in given.items() if one.numpy().tobytes() != before[name]}
        self.written.setdefault(label, set()).update(changed)
        return made


def place(*flags: str) -> str:
    """The device that the first of these environment variables names, which a runtime is configured with."""
    for flag in flags:
        if target := os.environ.get(flag):
            return target.rpartition("+")[2].split(":")[0]
    return str(Device.DEFAULT)


def shared(array: Any) -> Tensor:
    """A tensor over an array that the runtime refills in place."""
    return Tensor(array, device="NPY").realize()


def uploaded(array: Any, device: str) -> Tensor:
    """A copy of an array on a device; tinygrad's own errors say how a number gets a buffer."""
    if np.ndim(array) == 0:
        return Tensor(array).to(device).clone().realize()
    return Tensor(np.ascontiguousarray(array), device="NPY").to(device).realize()


def zeros(shape: tuple[int, ...], dtype: Any) -> Tensor:
    """An empty queue, on the device where a runtime keeps all of them."""
    return uploaded(np.zeros(shape, dtype), Device.DEFAULT)


def size_of(label: str) -> Size:
    """(width, height) of a camera by its label."""
    width, height = label.split("x")
    return int(width), int(height)


def cameras_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, str]:
    """The names of the road and the wide image among input shapes."""
    names = sorted(name for name in shapes if "img" in name)
    (road,), (wide,) = ([n for n in names if ("big" in n) is big] for big in (False, True))
    return road, wide


def checked(output: Tensor, metadata: Mapping[str, Any]) -> Any:
    """A network's one output as an array. Raises ValueError unless its shape is the metadata's."""
    array = output.numpy()
    (shape,) = metadata["output_shapes"].values()
    if array.shape != tuple(shape):
        raise ValueError(f"an output of shape {array.shape}, output_shapes says {tuple(shape)}")
    return array


class Packed:
    """The float vector of a policy: the desire, each other input without a queue, the feature fed back."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], *, feeds_back: bool) -> None:
        own = (desire_of(shapes), "features_buffer")
        sizes = {"desire": PULSES}
        sizes |= {n: int(np.prod(s)) for n, s in shapes.items() if n not in own and "img" not in n}
        if feeds_back:
            sizes["prev_feat"] = int(np.prod(shapes["features_buffer"][2:]))
        self.vector = np.zeros(sum(sizes.values()), np.float32)
        ends = np.cumsum(list(sizes.values()))[:-1]
        self.parts = dict(zip(sizes, np.split(self.vector, ends), strict=True))

    def fill(self, values: Mapping[str, Any]) -> None:
        """One frame's numbers by name. Raises KeyError for an input that the frame has nothing for."""
        for name, part in self.parts.items():
            if name != "prev_feat":
                part[:] = np.ravel(values[name])

    def feed_back(self, feature: Any) -> None:
        """What the network said of this frame, for the next one."""
        if "prev_feat" in self.parts:
            self.parts["prev_feat"][:] = feature


def desire_of(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The name of the desire input."""
    return next(name for name in shapes if name.startswith("desire"))


class Keys(NamedTuple):
    """Whether the warp keeps the images' history, and which queues the warp and the policy are given."""

    by_warp: bool
    warp: tuple[str, ...]
    policy: tuple[str, ...]


class Modeld:
    """The runtimes that load one pickle for all: StarPilot's, which goes by its key lists."""

    def __init__(self, files: Files, label: str, calls: Calls) -> None:
        self.artifact = files["artifact"]
        self.label, self.call = label, calls
        self.warp = self.artifact[size_of(label)]
        self.metadata = self.roles()
        self.whole = "model" in self.metadata
        first = "on_policy" if "on_policy" in self.order else "policy"
        self.shapes = self.metadata["model" if self.whole else first]["input_shapes"]
        self.seen = self.metadata["model" if self.whole else "vision"]
        self.restart()

    def roles(self) -> Mapping[str, Any]:
        """Metadata by role. Raises ValueError for another format than the runtime knows."""
        if self.artifact["format_version"] != 1:
            raise ValueError(f"format_version {self.artifact['format_version']}")
        roles: Mapping[str, Any] = self.artifact["metadata"]
        if ("model" in roles) is not (self.artifact["model_type"] == "supercombo"):
            raise ValueError(f"a {self.artifact['model_type']} of {', '.join(roles)}")
        return roles

    @property
    def order(self) -> list[str]:
        """The policies, in the order of their outputs."""
        return list(self.artifact.get("policy_order", []))

    @property
    def keys(self) -> Keys:
        """As the artifact has them; without them, those of the first artifacts of the layout."""
        by_warp = self.artifact.get("image_history_pipeline", "warp") == "warp"
        warp = self.artifact.get("warp_input_keys", ("img_q", "big_img_q", "tfm", "big_tfm"))
        return Keys(by_warp, tuple(warp), tuple(self.artifact["policy_input_keys"]))

    def restart(self) -> None:
        """Empty queues."""
        skip, road = self.artifact["frame_skip"], cameras_of(self.seen["input_shapes"])[0]
        channels, *half = self.seen["input_shapes"][road][1:]
        _, steps, *feature = self.shapes["features_buffer"]
        depth = skip * steps if self.whole else skip * (steps - 1) + 1
        self.packed = Packed(self.shapes, feeds_back=self.whole)
        self.matrices = {name: np.zeros((3, 3), np.float32) for name in ("tfm", "big_tfm")}
        images = (skip * (channels // PLANES - 1) + 1, PLANES, *half)
        self.queues = {
            "img_q": zeros(images, np.uint8),
            "big_img_q": zeros(images, np.uint8),
            "feat_q": zeros((depth, 1, int(np.prod(feature))), np.float32),
            "desire_q": zeros((skip * self.shapes[desire_of(self.shapes)][1], 1, PULSES), np.float32),
            "packed_npy_inputs": shared(self.packed.vector),
            **{name: shared(array) for name, array in self.matrices.items()},
        }

    def shots(self, scene: Scene) -> list[Tensor]:
        """The frames where the warp takes them."""
        return [uploaded(frame, place("FRAME_DEV", "WARP_DEV")) for frame in scene.frames]

    def step(self, shots: list[Tensor], scene: Scene) -> Arrays:
        """One frame of both cameras; each network's output (1, N)."""
        by_warp, of_warp, of_policy = self.keys
        for name, array in self.matrices.items():
            array[:] = scene.matrices[name]
        self.packed.fill(scene.values)
        queued = {name: self.queues[name] for name in of_warp}
        seen = self.call(self.label, self.warp, **queued, frame=shots[0], big_frame=shots[1])
        images = dict(zip(("img", "big_img"), seen, strict=True)) if by_warp else {"warped": seen}
        queued = {name: self.queues[name] for name in of_policy}
        outputs = self.call("run_policy", self.artifact["run_policy"], **queued, **images)
        roles = ["model"] if self.whole else ["vision", *self.order]
        rows = {r: checked(o, self.metadata[r]) for r, o in zip(roles, outputs, strict=True)}
        self._read(rows)
        return list(rows.values())

    def _read(self, rows: Mapping[str, Any]) -> None:
        found = {
            name
            for r, row in rows.items()
            for name in heads.parsed(r, row[0], self.metadata[r]["output_slices"])
        }
        if self.artifact.get("behavior_version") in heads.ACTING and "action" not in found:
            raise ValueError(
                f"behaviour {self.artifact['behavior_version']} steers by action, which is missing"
            )
        seen = next(iter(rows.values()))[0]
        self.packed.feed_back(seen[self.seen["output_slices"]["hidden_state"]])


class Iqpilot(Modeld):
    """IQPilot's: metadata of the one network, no lists, and the images' history in the policy."""

    @property
    def order(self) -> list[str]:
        """No policies beside the network."""
        return []

    @property
    def keys(self) -> Keys:
        """What StarPilot's artifacts of the same contract list."""
        queues = ("img_q", "big_img_q", "feat_q", "desire_q", "packed_npy_inputs")
        return Keys(by_warp=False, warp=("tfm", "big_tfm"), policy=queues)

    def roles(self) -> Mapping[str, Any]:
        """The one network's."""
        flat = self.artifact["metadata"]
        return {"model": {name: flat[name] for name in ("input_shapes", "output_shapes", "output_slices")}}


class Openpilot:
    """openpilot's modeld: a file for each network and warp, the policies' histories in numpy."""

    SKIP = 4  # 20 Hz over the 5 Hz of what a policy looks back on

    def __init__(self, files: Files, label: str, calls: Calls) -> None:
        self.files, self.label, self.call = files, label, calls
        policies = ("on_policy", "off_policy", "policy")
        self.policies = [one for one in policies if f"driving_{one}_tinygrad.pkl" in files]
        roles = ("vision", *self.policies)
        self.metadata = {role: files[f"driving_{role}_metadata.pkl"] for role in roles}
        self.shapes = self.metadata[self.policies[0]]["input_shapes"]
        self.restart()

    def restart(self) -> None:
        """Empty queues."""
        self.road, self.wide = cameras_of(self.metadata["vision"]["input_shapes"])
        _, _, *half = self.metadata["vision"]["input_shapes"][self.road]
        self.images = [
            uploaded(np.zeros((PLANES * (self.SKIP + 1), *half), np.uint8), place("WARP_DEV")) for _ in "rw"
        ]
        self.matrices = [np.zeros((3, 3), np.float32) for _ in "rw"]
        self.inputs = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}
        histories = ("features_buffer", desire_of(self.shapes))
        self.past = {
            n: np.zeros((self.SKIP * s[1], s[2]), np.float32)
            for n, s in self.shapes.items()
            if n in histories
        }

    def shots(self, scene: Scene) -> list[Tensor]:
        """The frames where the warp takes them."""
        return [uploaded(frame, place("FRAME_DEV", "WARP_DEV")) for frame in scene.frames]

    def step(self, shots: list[Tensor], scene: Scene) -> Arrays:
        """One frame of both cameras; each network's output (1, N)."""
        for array, name in zip(self.matrices, ("tfm", "big_tfm"), strict=True):
            array[:] = scene.matrices[name]
        turned = zip(self.images, shots, map(shared, self.matrices), strict=True)
        warp = self.files[f"warp_{self.label}_tinygrad.pkl"]
        road_q, road, wide_q, wide = self.call(self.label, warp, *(one for pair in turned for one in pair))
        self.images = [road_q, wide_q]
        seen = self._run("vision", {self.road: road, self.wide: wide})
        self._remember(seen[0, self.metadata["vision"]["output_slices"]["hidden_state"]], scene.values)
        fed = {name: shared(array) for name, array in self.inputs.items()}
        return [seen, *(self._run(role, fed) for role in self.policies)]

    def _run(self, role: str, inputs: Mapping[str, Tensor]) -> Any:
        output = self.call(role, self.files[f"driving_{role}_tinygrad.pkl"], **inputs)
        array = checked(output, self.metadata[role])
        heads.parsed(role, array[0], self.metadata[role]["output_slices"])
        return array

    def _remember(self, hidden: Any, values: Mapping[str, Any]) -> None:
        desire = desire_of(self.shapes)
        for name, newest in (("features_buffer", hidden), (desire, values["desire"])):
            self.past[name] = np.concatenate([self.past[name][1:], np.reshape(newest, (1, -1))])
        for name, array in self.inputs.items():
            if name == "features_buffer":
                array[0] = self.past[name][self.SKIP - 1 :: self.SKIP]
            elif name == desire:
                array[0] = self.past[name].reshape(-1, self.SKIP, PULSES).max(axis=1)
            else:
                array.reshape(-1)[:] = np.ravel(values[name])


class Driver:
    """Driver monitoring: one warp, one network, nothing looked back on."""

    def __init__(self, files: Files, label: str, calls: Calls) -> None:
        self.metadata = files["dmonitoring_model_metadata.pkl"]
        self.model = files["dmonitoring_model_tinygrad.pkl"]
        self.warp, self.label, self.call = files[f"dm_warp_{label}_tinygrad.pkl"], label, calls

    def restart(self) -> None:
        """There is nothing to forget."""

    def shots(self, scene: Scene) -> list[Tensor]:
        """The driver camera's frame where the warp takes it."""
        return [uploaded(frame, place("FRAME_DEV", "WARP_DEV")) for frame in scene.frames]

    def step(self, shots: list[Tensor], scene: Scene) -> Arrays:
        """One frame; the network's output (1, N)."""
        (matrix,) = scene.matrices.values()
        warped = self.call(self.label, self.warp, *shots, shared(matrix))
        calib = shared(np.reshape(scene.values["calib"], self.metadata["input_shapes"]["calib"]))
        output = self.call("dmonitoring_model", self.model, input_img=warped, calib=calib)
        array = checked(output, self.metadata)
        heads.parsed("driver", array[0], self.metadata["output_slices"])
        return [array]


class Caller:
    """Whoever calls a network without a driving contract: by its metadata's input names."""

    def __init__(self, files: Files, label: str, calls: Calls) -> None:
        self.run, self.label, self.call = files["artifact"][label], label, calls
        self.metadata = files["artifact"]["metadata"]["model"]

    def restart(self) -> None:
        """There is nothing to forget."""

    def shots(self, scene: Scene) -> list[Tensor]:
        """The inputs, in the metadata's order."""
        names = self.metadata["input_shapes"]
        return [uploaded(scene.values[name], Device.DEFAULT) for name in names]

    def step(self, shots: list[Tensor], scene: Scene) -> Arrays:
        """One call; all outputs. Raises ValueError when one is of another shape than the metadata says."""
        inputs = dict(zip(self.metadata["input_shapes"], shots, strict=True))
        outputs = [one.numpy() for one in self.call(self.label, self.run, **inputs)]
        said = {name: tuple(shape) for name, shape in self.metadata["output_shapes"].items()}
        if [one.shape for one in outputs] != list(said.values()):
            raise ValueError(f"outputs of {[one.shape for one in outputs]}, output_shapes says {said}")
        return outputs


CLIENTS: dict[str, Callable[[Files, str, Calls], Any]] = {
    "starpilot-single": Modeld,
    "openpilot-split": Openpilot,
    "iqpilot-supercombo": Iqpilot,
    "dmonitoring": Driver,
    "generic": Caller,
}


def drive(layout: str, files: Files, drives: Iterable[Iterator[Scene]]) -> dict[str, Any]:
    """Drive the files as their client does; what the host judges, an error that stopped it included.

    The first frame of each drive is taken twice, from empty queues and out of the same buffers: `again` names
    the drives whose second time differed.
    """
    calls = Calls()
    facts: dict[str, Any] = {"steps": [], "again": [], "stopped": None}
    try:
        for scenes in drives:
            _drive(CLIENTS[layout], files, scenes, calls, facts)
    except Exception as error:
        facts["stopped"] = f"{type(error).__name__}: {error}"[:2000]
    return {**facts, "written": {label: sorted(names) for label, names in calls.written.items()}}


def _drive(
    client: Callable[[Files, str, Calls], Any],
    files: Files,
    scenes: Iterator[Scene],
    calls: Calls,
    facts: dict[str, Any],
) -> None:
    first = next(scenes)
    runtime = client(files, first.label, calls)
    shots = runtime.shots(first)
    made = digest(runtime.step(shots, first))
    runtime.restart()
    if digest(runtime.step(shots, first)) != made:
        facts["again"].append(first.label)
    facts["steps"].append({"label": first.label, "outputs": made})
    for scene in scenes:
        outputs = runtime.step(runtime.shots(scene), scene)
        facts["steps"].append({"label": scene.label, "outputs": digest(outputs)})
