"""Any other network: one ONNX file, one JIT, its inputs by name."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from tinygrad import Tensor
from tinygrad.uop.ops import UOp

from .capture import jit
from .driving import FORMAT_VERSION, Places
from .feed import Exchange, Scene, Step, on_device
from .network import load, networks_of


def _apart(output: Tensor, handed_in: set[UOp]) -> Tensor:
    """An output in memory of its own: what is an input as it is, or a part of one, would else be no output of
    a kernel, and stay what it was at the capture."""
    return output.clone() if output.uop.base in handed_in else output.contiguous()


class Generic:
    """A network without a driving contract."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.networks = networks_of(request)
        (self.model,) = self.networks.values()
        self.feed: dict[str, list[float]] = request.get("feed", {})
        self.places = Places.from_flags()

    def build(self) -> dict[str, Any]:
        """The one file, its JIT not yet captured: `{"artifact": dict}`."""
        load(self.networks)

        def run_model(**inputs: Tensor) -> tuple[Tensor, ...]:
            handed_in = {tensor.uop.base for tensor in inputs.values()}
            return tuple(_apart(output, handed_in) for output in self.model.outputs(inputs))

        artifact = {
            "format_version": FORMAT_VERSION,
            "model_type": "generic",
            "metadata": {"model": self.model.metadata},
            "run_model": jit(run_model),
        }
        return {"artifact": artifact}

    def captures(self, files: dict[str, Any]) -> dict[str, Any]:
        """The one JIT by its label."""
        return {"run_model": files["artifact"]["run_model"]}

    def scenes(self, *, seed: int, steps: int) -> list[Iterator[Scene]]:
        """One drive: `steps` times an input of random numbers for each name."""
        return [self._scenes(np.random.RandomState(seed), steps)]

    def _scenes(self, random: np.random.RandomState, steps: int) -> Iterator[Scene]:
        for _ in range(steps):
            inputs = self.model.spec["inputs"].items()
            yield Scene("run_model", (), {}, {name: self._input(random, name, spec) for name, spec in inputs})

    def drives(self, files: dict[str, Any], *, seed: int, steps: int) -> list[Iterator[Step]]:
        """One drive of `steps` calls."""
        return [self._run(files, scenes) for scenes in self.scenes(seed=seed, steps=steps)]

    def _run(self, files: dict[str, Any], scenes: Iterator[Scene]) -> Iterator[Step]:
        (role,) = self.networks
        for scene in scenes:
            fed = {name: on_device(array, self.places.model) for name, array in scene.values.items()}
            outputs = [output.numpy() for output in files["artifact"]["run_model"](**fed)]
            yield Step(scene.label, outputs, [], {role: Exchange(list(scene.values.values()), outputs)})

    def _input(self, random: np.random.RandomState, name: str, spec: dict[str, Any]) -> Any:
        """Numbers of an input's own range, ends included; without one, ±1, 0 to 99, or either truth value."""
        shape, dtype = spec["shape"], np.dtype(spec["dtype"])
        usual = {"f": (-1, 1), "b": (0, 1)}
        low, high = self.feed.get(name, usual.get(dtype.kind, (0, 99)))
        values: Any = (
            random.uniform(low, high, shape)
            if dtype.kind == "f"
            else random.randint(int(low), int(high) + 1, shape)
        )
        return np.asarray(values).astype(dtype)
