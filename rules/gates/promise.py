"""How the captures of each layout must be callable: names, shapes and dtypes of every argument.

Figures follow from the layouts' definition and from the ONNX interface alone, never from the artifact.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rules.worker.nv12 import Nv12

POLICIES = ("on_policy", "off_policy", "policy")
FEATURES, FEATURE = "features_buffer", 512
DESIRE = 8
PLANES = 6  # of one frame
UINT8, FLOAT32 = "uint8", "float32"
MATRIX = (3, 3)
DRIVER_PIXELS = 1440 * 960


@dataclass(frozen=True)
class Argument:
    """One argument of a capture; of a queue, the first axis is how far it looks back."""

    shape: tuple[int, ...]
    dtype: str
    is_queue: bool = False


Call = dict[str, Argument]


def calls(request: Mapping[str, Any]) -> dict[str, Call]:
    """Arguments by name (by number where a runtime calls by position), for each capture by its label."""
    return dict(_LAYOUTS[request["layout"]](request))


def written(request: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """What each capture, by its label, may write to: queues that it moves on; all else is its caller's."""
    if (
        request["layout"] == "openpilot-split"
    ):  # handed back what a warp returned, its next call fills it anew
        return {label: ("0", "3") for label, _ in _frames(request)}
    if request["layout"] not in ("starpilot-single", "iqpilot-supercombo"):
        return {}
    images, policy = ("img_q", "big_img_q"), ("feat_q", "desire_q")
    if request["contract"] == "policy":
        return {"run_policy": (*images, *policy)}
    return {"run_policy": policy, **{label: images for label, _ in _frames(request)}}


def _single(request: Mapping[str, Any]) -> Iterator[tuple[str, Call]]:
    model = Histories(request)
    queues = model.image_queues
    policy = {**model.policy_queues, "packed_npy_inputs": Argument((model.packed,), FLOAT32)}
    if request["contract"] == "warp":
        stack = Argument((1, 2 * PLANES, *model.half), UINT8)
        yield "run_policy", {"img": stack, "big_img": stack, **policy}
    else:
        warped = Argument((2, PLANES, *model.half), UINT8)
        yield "run_policy", {"warped": warped, **queues, **policy}
    for label, frame in _frames(request):
        own = queues if request["contract"] == "warp" else {}
        matrices = dict.fromkeys(("tfm", "big_tfm"), Argument(MATRIX, FLOAT32))
        yield label, {**own, **matrices, "frame": frame, "big_frame": frame}


def _split(request: Mapping[str, Any]) -> Iterator[tuple[str, Call]]:
    model = Histories(request)
    for role, network in request["networks"].items():
        kind = UINT8 if role == "vision" else FLOAT32
        yield role, {name: Argument(tuple(one["shape"]), kind) for name, one in network["inputs"].items()}
    queue = Argument((PLANES * model.image_depth, *model.half), UINT8, is_queue=True)
    for label, frame in _frames(request):
        one = [queue, frame, Argument(MATRIX, FLOAT32)]
        yield label, {str(number): argument for number, argument in enumerate(one + one)}


def _monitoring(request: Mapping[str, Any]) -> Iterator[tuple[str, Call]]:
    image, calibration = Argument((1, DRIVER_PIXELS), UINT8), Argument((1, 3), FLOAT32)
    yield "dmonitoring_model", {"input_img": image, "calib": calibration}
    for label, frame in _frames(request):
        yield label, {"0": frame, "1": Argument(MATRIX, FLOAT32)}


def _generic(request: Mapping[str, Any]) -> Iterator[tuple[str, Call]]:
    (network,) = request["networks"].values()
    inputs = network["inputs"].items()
    yield "run_model", {name: Argument(tuple(one["shape"]), one["dtype"]) for name, one in inputs}


_LAYOUTS = {
    "starpilot-single": _single,
    "iqpilot-supercombo": _single,
    "openpilot-split": _split,
    "dmonitoring": _monitoring,
    "generic": _generic,
}


def _frames(request: Mapping[str, Any]) -> Iterator[tuple[str, Argument]]:
    for width, height in request["cameras"]:
        yield f"{width}x{height}", Argument((Nv12.of(width, height).size,), UINT8)


class Histories:
    """What a driving model looks back on, by its frame skip and its ONNX inputs."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self.skip: int = request["frame_skip"]
        self.half = (request["model_size"][1] // 2, request["model_size"][0] // 2)
        self.networks: Mapping[str, Any] = request["networks"]

    @property
    def whole(self) -> bool:
        """Whether one network does it all, and is fed its own feature back."""
        return "model" in self.networks

    @property
    def order(self) -> list[str]:
        """The policies of a model that has its vision apart."""
        return [role for role in POLICIES if role in self.networks]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The inputs of the policy, or of the whole."""
        inputs = self.networks["model" if self.whole else self.order[0]]["inputs"]
        return {name: tuple(one["shape"]) for name, one in inputs.items()}

    @property
    def keys(self) -> list[str]:
        """Every policy input but images, in ONNX order."""
        return [name for name in self.shapes if "img" not in name]

    @property
    def desire(self) -> str:
        """The desire input: its name starts so, and it is a history of eight flags."""
        return next(n for n in self.keys if n.startswith("desire") and self.shapes[n][-1] == DESIRE)

    @property
    def packed(self) -> int:
        """Numbers in the packed vector: the desire, the inputs without a queue, the feature fed back."""
        plain = [n for n in self.keys if n not in (self.desire, FEATURES)]
        return DESIRE + sum(math.prod(self.shapes[n]) for n in plain) + FEATURE * self.whole

    @property
    def image_depth(self) -> int:
        """The newest frame and all back to the one a skip ago."""
        return self.skip + 1

    @property
    def image_queues(self) -> Call:
        """The queues of both cameras."""
        queue = Argument((self.image_depth, PLANES, *self.half), UINT8, is_queue=True)
        return {"img_q": queue, "big_img_q": queue}

    @property
    def policy_queues(self) -> Call:
        """Features (of a whole they begin one skip earlier) and desires."""
        steps = self.shapes[FEATURES][1]
        features = self.skip * steps if self.whole else self.skip * (steps - 1) + 1
        desires = self.skip * self.shapes[self.desire][1]
        return {
            "feat_q": Argument((features, 1, FEATURE), FLOAT32, is_queue=True),
            "desire_q": Argument((desires, 1, DESIRE), FLOAT32, is_queue=True),
        }
