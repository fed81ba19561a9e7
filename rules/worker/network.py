"""One ONNX network as a function of tensors, and what its request says about it."""

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tinygrad import Tensor, dtypes

from .runner import Runner

IMAGE = "img"
WIDE = "big"
FEATURES_INPUT = "features_buffer"
HIDDEN = "hidden_state"


@dataclass
class Network:
    """One ONNX file. `spec` is the request's summary of it (see `rules/steps/preflight.py`); the file
    itself is read only when the network runs, so that checking an artifact needs no ONNX at all."""

    path: str
    spec: dict[str, Any]
    computed: dict[str, tuple[int, ...]] = field(default_factory=dict)  # output shapes, once `runner` is read

    @cached_property
    def runner(self) -> Runner:
        """The file, its weights on the device: a capture that had to read them would run them apart.

        Walking the graph once, without computing it, lets the runner read the shapes and axes it keeps as
        constants; during a capture tinygrad forbids that.
        """
        runner = Runner(self.path, self.shapes)
        if weights := runner.stored:
            Tensor.realize(*weights)
        outputs = runner({name: self._blank(spec) for name, spec in self.spec["inputs"].items()})
        self.computed = {name: tuple(map(int, output.shape)) for name, output in outputs.items()}
        return runner

    def _blank(self, spec: dict[str, Any]) -> Tensor:
        return Tensor.zeros(*spec["shape"], dtype=getattr(dtypes, spec["dtype"]))

    def __call__(self, inputs: dict[str, Tensor]) -> Tensor:
        """The network's single output as float32 (1, N)."""
        (output,) = self.runner(inputs).values()
        return output.cast(dtypes.float32)

    def outputs(self, inputs: dict[str, Tensor]) -> tuple[Tensor, ...]:
        """All outputs, in ONNX order; floats in the precision that the file declares.

        With IMAGE set, tinygrad computes in float32 what is declared as float16. Another kind of number is
        left as it is, and refused by a gate.
        """
        specs = self.spec["outputs"].values()
        pairs = zip(self.runner(inputs).values(), specs, strict=True)
        return tuple(_in_precision(output, spec["dtype"]) for output, spec in pairs)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Input shapes by name, in ONNX order."""
        return {name: tuple(spec["shape"]) for name, spec in self.spec["inputs"].items()}

    @property
    def image_keys(self) -> tuple[str, str]:
        """Names of the road and the wide image input: both contain `img`, the wide one also `big`."""
        images = [name for name in self.spec["inputs"] if IMAGE in name]
        (road,) = (name for name in images if WIDE not in name)
        (wide,) = (name for name in images if WIDE in name)
        return road, wide

    @property
    def desire_key(self) -> str:
        """Name of the desire input; it starts with `desire` and is a history of 8 flags."""
        (key,) = (n for n, shape in self.shapes.items() if n.startswith("desire") and shape[-1:] == (8,))
        return key

    def slice_of(self, name: str) -> slice:
        """Where the named part of the output lies."""
        start, stop = self.spec["output_slices"][name]
        return slice(start, stop)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the runtimes read: checkpoint, slices and shapes (of outputs, those that come out), in the
        field's own form."""
        slices = self.spec["output_slices"] or {}
        return {
            "model_checkpoint": self.spec["model_checkpoint"],
            "output_slices": {name: slice(*bounds) for name, bounds in slices.items()},
            "input_shapes": self.shapes,
            "output_shapes": self.computed,
        }


def _in_precision(output: Tensor, declared: str) -> Tensor:
    wanted = getattr(dtypes, declared, output.dtype)
    floats = dtypes.is_float(output.dtype) and dtypes.is_float(wanted)
    return output.cast(wanted) if floats else output


def networks_of(request: dict[str, Any]) -> dict[str, Network]:
    """The request's networks by role, in the request's order."""
    return {role: Network(spec["path"], spec) for role, spec in request["networks"].items()}


def load(networks: dict[str, Network]) -> None:
    """Read every network's weights now."""
    for network in networks.values():
        _ = network.runner


class DtypeNotes:
    """Collects tinygrad's `mismatch on dtype` warnings: the runtime feeds float32 to float16 inputs, so
    they are expected; each is noted once, as information."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __enter__(self) -> "DtypeNotes":
        self._catch = warnings.catch_warnings()
        self._catch.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._show  # type: ignore[assignment]
        return self

    def __exit__(self, *exc: object) -> None:
        self._catch.__exit__(*exc)  # type: ignore[arg-type]

    def _show(self, message: Warning | str, *rest: object) -> None:
        text = str(message)
        if text in self.notes:
            return
        self.notes.append(text)
        print(f"information: {text}" if "mismatch on dtype" in text else f"warning: {text}", flush=True)
