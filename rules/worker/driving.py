"""Driving models in the layout `starpilot-single`: one policy JIT and one warp JIT for each camera."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinygrad import Device, Tensor

from . import queues, warp
from .capture import jit
from .feed import Arrays, Noise, Scene, Step, matrix, on_device, on_host
from .network import FEATURES_INPUT, HIDDEN, IMAGE, Network, load, networks_of
from .nv12 import Nv12
from .witness import Witness

FORMAT_VERSION = 1
MATRICES = ("tfm", "big_tfm")
FRAMES = ("frame", "big_frame")
PREVIOUS = "prev_feat"  # what a supercombo is fed of its own output before
POLICY_ORDER = ("on_policy", "off_policy", "policy")
IMAGE_QUEUES = ("img_q", "big_img_q")
POLICY_QUEUES = ("feat_q", "desire_q", "packed_npy_inputs")
# By contract: what a runtime keeps in its queues for the two JITs, and what it hands over of the frames.
WARP_KEYS = {"warp": (*IMAGE_QUEUES, *MATRICES), "policy": MATRICES}
POLICY_KEYS = {"warp": POLICY_QUEUES, "policy": (*IMAGE_QUEUES, *POLICY_QUEUES)}
IMAGES = {"warp": ("img", "big_img"), "policy": ("warped",)}


@dataclass(frozen=True)
class Places:
    """Which device holds what: networks on `model`, warps on `warp`, camera frames on `frame`."""

    model: str
    warp: str
    frame: str

    @classmethod
    def from_flags(cls) -> "Places":
        """Read WARP_DEV and FRAME_DEV, which compile scripts honour and tinygrad does not."""
        model = Device.DEFAULT
        warp_device = device_of(os.environ.get("WARP_DEV")) or model
        return cls(model, warp_device, device_of(os.environ.get("FRAME_DEV")) or warp_device)


def device_of(target: str | None) -> str | None:
    """The device that a target names: "CPU:X86" is CPU, "USB+AMD:LLVM" is AMD."""
    return target.rpartition("+")[2].split(":")[0] if target else None


class Driving:
    """One driving model: its networks, its histories, and the two functions that get captured."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.contract: str = request["contract"]
        self.model_size: tuple[int, int] = tuple(request["model_size"])
        self.cameras = [tuple(camera) for camera in request["cameras"]]
        self.networks = networks_of(request)
        self.places = Places.from_flags()
        self.policies = {role: self.networks[role] for role in POLICY_ORDER if role in self.networks}
        self.whole: Network | None = self.networks.get("model")
        self.history = self._history()

    @property
    def chain(self) -> dict[str, Network]:
        """The networks by role, in the order they run."""
        return {"model": self.whole} if self.whole else {"vision": self.networks["vision"], **self.policies}

    @property
    def images(self) -> Network:
        """The network that sees the images."""
        return self.whole or self.networks["vision"]

    @property
    def policy(self) -> Network:
        """The network whose inputs the packed vector feeds (all policies of a model share them)."""
        return self.whole or next(iter(self.policies.values()))

    def _history(self) -> queues.History:
        shapes = self.policy.shapes
        return queues.History(
            frame_skip=self.request["frame_skip"],
            feature_steps=shapes[FEATURES_INPUT][1],
            desire_steps=shapes[self.policy.desire_key][1],
            feeds_back=self.whole is not None,
        )

    @property
    def policy_inputs(self) -> list[str]:
        """Every ONNX input of the policy but the images, in ONNX order."""
        return [name for name in self.policy.shapes if IMAGE not in name]

    @property
    def packed_inputs(self) -> dict[str, tuple[int, ...]]:
        """What the packed float32 vector holds, in order: name → shape."""
        own_queue = (self.policy.desire_key, FEATURES_INPUT)
        packed: dict[str, tuple[int, ...]] = {"desire": (queues.DESIRES,)}
        packed |= {n: self.policy.shapes[n] for n in self.policy_inputs if n not in own_queue}
        if self.history.feeds_back:
            packed[PREVIOUS] = (1, queues.FEATURES)
        return packed

    def unpack(self, vector: Tensor) -> dict[str, Tensor]:
        """The packed vector's parts, each in its own shape."""
        parts: dict[str, Tensor] = {}
        start = 0
        for name, shape in self.packed_inputs.items():
            stop = start + int(np.prod(shape))
            parts[name] = vector[start:stop].reshape(shape)
            start = stop
        return parts

    def new_queues(self) -> dict[str, Tensor]:
        """Empty queues, all of them on the networks' device: a runtime knows one place for its queues."""
        half = (self.model_size[1] // 2, self.model_size[0] // 2)
        shapes = {
            "img_q": ((self.history.image_depth, 6, *half), np.uint8),
            "big_img_q": ((self.history.image_depth, 6, *half), np.uint8),
            "feat_q": ((self.history.feature_depth, 1, queues.FEATURES), np.float32),
            "desire_q": ((self.history.desire_depth, 1, queues.DESIRES), np.float32),
        }
        return {  # copied: a kernel that fills them would have to be lowered first
            name: on_device(np.zeros(shape, dtype), self.places.model)
            for name, (shape, dtype) in shapes.items()
        }

    def warp_function(self, camera: tuple[int, int]) -> Any:
        """The function captured for one camera, under the contract's argument names."""
        layout = Nv12.of(*camera)

        def planes(frame: Tensor, matrix: Tensor) -> Tensor:
            place = self.places.warp
            return warp.driving_planes(frame.to(place), matrix.to(place), layout, self.model_size)

        def warp_with_history(
            img_q: Tensor, big_img_q: Tensor, tfm: Tensor, big_tfm: Tensor, frame: Tensor, big_frame: Tensor
        ) -> tuple[Tensor, ...]:
            pairs = ((img_q, planes(frame, tfm)), (big_img_q, planes(big_frame, big_tfm)))
            pushed = [queues.push(queue, entry.to(self.places.model)) for queue, entry in pairs]
            return tuple(queues.image_stack(queue, self.history.frame_skip).contiguous() for queue in pushed)

        def warp_only(tfm: Tensor, big_tfm: Tensor, frame: Tensor, big_frame: Tensor) -> Tensor:
            return planes(frame, tfm).cat(planes(big_frame, big_tfm)).contiguous()

        return warp_with_history if self.contract == "warp" else warp_only

    def policy_function(self) -> Any:
        """The function captured as `run_policy`, under the contract's argument names."""

        def run_policy(
            img: Tensor, big_img: Tensor, feat_q: Tensor, desire_q: Tensor, packed_npy_inputs: Tensor
        ) -> tuple[Tensor, ...]:
            place = self.places.model
            return self._think(
                img.to(place), big_img.to(place), feat_q, desire_q, packed_npy_inputs.to(place)
            )

        def run_policy_with_images(
            warped: Tensor,
            img_q: Tensor,
            big_img_q: Tensor,
            feat_q: Tensor,
            desire_q: Tensor,
            packed_npy_inputs: Tensor,
        ) -> tuple[Tensor, ...]:
            warped = warped.to(self.places.model)
            pushed = (queues.push(img_q, warped[0:1]), queues.push(big_img_q, warped[1:2]))
            road, wide = (queues.image_stack(queue, self.history.frame_skip) for queue in pushed)
            return self._think(road, wide, feat_q, desire_q, packed_npy_inputs.to(self.places.model))

        return run_policy if self.contract == "warp" else run_policy_with_images

    def _think(
        self, img: Tensor, big_img: Tensor, feat_q: Tensor, desire_q: Tensor, vector: Tensor
    ) -> tuple[Tensor, ...]:
        packed = self.unpack(vector)
        skip = self.history.frame_skip
        queues.push(desire_q, packed.pop("desire").reshape(1, 1, -1))
        stacks = dict(zip(self.images.image_keys, (img, big_img), strict=True))
        others = {self.policy.desire_key: queues.desires(desire_q, skip)}
        if self.whole is not None:
            queues.push(feat_q, packed.pop(PREVIOUS).reshape(1, 1, -1))
            others[FEATURES_INPUT] = queues.features(feat_q, skip)
            return (self.whole({**stacks, **others, **packed}).contiguous(),)
        seen = self.networks["vision"](stacks).contiguous()
        hidden = seen[:, self.images.slice_of(HIDDEN)]
        queues.push(feat_q, hidden.reshape(1, 1, -1))
        others[FEATURES_INPUT] = queues.features(feat_q, skip)
        decided = [network({**others, **packed}).contiguous() for network in self.policies.values()]
        return (seen, *decided)

    def head(self) -> dict[Any, Any]:
        """What the artifact says of itself, before its JITs."""
        head: dict[Any, Any] = {
            "format_version": FORMAT_VERSION,
            "model_type": self.request["kind"],
            "metadata": {role: network.metadata for role, network in self.networks.items()},
            "frame_skip": self.history.frame_skip,
            "policy_input_keys": list(POLICY_KEYS[self.contract]),
            "image_history_pipeline": self.contract,
            "warp_input_keys": list(WARP_KEYS[self.contract]),
        }
        if self.request.get("behavior_version"):
            head["behavior_version"] = self.request["behavior_version"]
        if self.whole is None:
            head["policy_order"] = list(self.policies)
        return head

    def build(self) -> dict[str, Any]:
        """The one file of the layout, its JITs not yet captured: `{"artifact": dict}`."""
        load(self.networks)
        artifact = self.head()
        artifact["run_policy"] = jit(self.policy_function())
        for camera in self.cameras:
            artifact[camera] = jit(self.warp_function(camera))
        return {"artifact": artifact}

    def captures(self, files: dict[str, Any]) -> dict[str, Any]:
        """The JITs of the file by label: `run_policy`, then one for each camera."""
        artifact = files["artifact"]
        warps = {"{}x{}".format(*camera): artifact[camera] for camera in self.cameras}
        return {"run_policy": artifact["run_policy"], **warps}

    def at_work(self, files: Mapping[str, Any], camera: tuple[int, int]) -> "Session":
        """The artifact ready for its first frame of one camera."""
        return Session(self, files["artifact"], camera)

    def scenes(self, *, seed: int, steps: int) -> list[Iterator[Scene]]:
        """Of each camera, what a runtime is fed from outside in `steps` frames."""
        return [self._scenes(camera, np.random.RandomState(seed), steps) for camera in self.cameras]

    def _scenes(self, camera: Any, random: np.random.RandomState, steps: int) -> Iterator[Scene]:
        noise = Noise(random, Nv12.of(*camera).size)
        for step in range(steps):
            matrices = {name: matrix(random, camera, self.model_size) for name in MATRICES}
            frames = (noise(2 * step), noise(2 * step + 1))
            yield Scene("{}x{}".format(*camera), frames, matrices, self._values(random, step))

    def _values(self, random: np.random.RandomState, step: int) -> dict[str, Any]:
        """One step's policy inputs but the feature fed back: a desire pulse now and then, small values."""
        values: dict[str, Any] = {
            name: random.uniform(-1, 1, shape).astype(np.float32)
            for name, shape in self.packed_inputs.items()
            if name != PREVIOUS
        }
        values["desire"] = np.zeros(queues.DESIRES, np.float32)
        values["desire"][step % queues.DESIRES] = float(step % 3 == 1)
        if "traffic_convention" in values:
            values["traffic_convention"] = np.array([1, 0], np.float32)
        return values

    def drives(self, files: dict[str, Any], *, seed: int, steps: int) -> list[Iterator[Step]]:
        """Of each camera, `steps` frames through its warp and the networks, from empty queues."""
        scenes = zip(self.cameras, self.scenes(seed=seed, steps=steps), strict=True)
        return [self._drive(files, camera, scene) for camera, scene in scenes]

    def _drive(self, files: Mapping[str, Any], camera: Any, scenes: Iterator[Scene]) -> Iterator[Step]:
        session, witness = self.at_work(files, camera), Witness(self.chain, self.history)
        previous = np.zeros(queues.FEATURES, np.float32)
        for scene in scenes:
            road, wide = (on_device(frame, self.places.frame) for frame in scene.frames)
            values = {**scene.values, PREVIOUS: previous}
            arrays = session.step((road, wide), scene.matrices, values)
            previous = arrays[0][0, self.images.slice_of(HIDDEN)].copy()
            passed = witness.take(session.planes, values, arrays)
            yield Step(scene.label, arrays, session.state, passed)


class Session:
    """An artifact at work on one camera: its queues, and what a runtime refills in place for every frame."""

    def __init__(self, unit: Driving, artifact: Mapping[Any, Any], camera: tuple[int, int]) -> None:
        self.unit = unit
        self.artifact = artifact
        self.camera = camera
        self.matrices: dict[str, Any] = {name: np.zeros((3, 3), np.float32) for name in MATRICES}
        self.vector = np.zeros(sum(map(int, map(np.prod, unit.packed_inputs.values()))), np.float32)
        self.fed: dict[str, Tensor] = {name: on_host(array) for name, array in self.matrices.items()}
        self.fed["packed_npy_inputs"] = on_host(self.vector)
        self.restart()

    def restart(self) -> None:
        """Forget every frame seen so far."""
        self.queues = self.unit.new_queues()
        self.fed |= self.queues

    def step(
        self, shots: tuple[Tensor, Tensor], matrices: Mapping[str, Any], values: Mapping[str, Any]
    ) -> Arrays:
        """One frame of both cameras, uint8 on the frames' device; returns each network's output (1, N).

        `matrices` holds `tfm` and `big_tfm`, `values` every name of the unit's `packed_inputs`.
        """
        contract, fed = self.unit.contract, self.fed
        self._refill(values)
        warped = self.warp(shots, matrices)
        fed |= zip(IMAGES[contract], warped if contract == "warp" else (warped,), strict=True)
        names = (*IMAGES[contract], *POLICY_KEYS[contract])
        outputs = self.artifact["run_policy"](**{name: fed[name] for name in names})
        return [tensor.numpy() for tensor in outputs]

    def warp(self, shots: tuple[Tensor, Tensor], matrices: Mapping[str, Any]) -> Any:
        """The warp alone: all that a runtime runs of a frame that it will not publish."""
        for name, array in self.matrices.items():
            array[:] = matrices[name]
        named = {name: self.fed[name] for name in WARP_KEYS[self.unit.contract]}
        return self.artifact[self.camera](**named, **dict(zip(FRAMES, shots, strict=True)))

    def _refill(self, values: Mapping[str, Any]) -> None:
        start = 0
        for name, shape in self.unit.packed_inputs.items():
            size = int(np.prod(shape))
            self.vector[start : start + size] = np.ravel(values[name])
            start += size

    @property
    def state(self) -> Arrays:
        """What the queues hold."""
        return [queue.numpy() for queue in self.queues.values()]

    @property
    def planes(self) -> Arrays:
        """What the warps made of the newest frames: road, then wide, each uint8 (1, 6, H/2, W/2)."""
        if self.unit.contract == "policy":
            both = self.fed["warped"].numpy()
            return [both[0:1], both[1:2]]
        stacks = (self.fed[name].numpy() for name in ("img", "big_img"))
        return [stack[:, stack.shape[1] // queues.FRAMES_PER_IMAGE :] for stack in stacks]
