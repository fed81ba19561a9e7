"""Any other network: one ONNX file, one JIT, its inputs by name."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from tinygrad import Tensor

from .capture import jit
from .driving import FORMAT_VERSION, Places
from .feed import Exchange, Step, on_device
from .network import load, networks_of


class Generic:
    """A network without a driving contract."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.networks = networks_of(request)
        (self.model,) = self.networks.values()
        self.places = Places.from_flags()

    def build(self) -> dict[str, Any]:
        """The one file, its JIT not yet captured: `{"artifact": dict}`."""
        load(self.networks)

        def run_model(**inputs: Tensor) -> tuple[Tensor, ...]:
            return tuple(output.contiguous() for output in self.model.outputs(inputs))

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

    def drives(self, files: dict[str, Any], *, seed: int, steps: int) -> list[Iterator[Step]]:
        """One drive: `steps` random inputs."""
        return [self._run(files, np.random.RandomState(seed), steps)]

    def _run(self, files: dict[str, Any], random: np.random.RandomState, steps: int) -> Iterator[Step]:
        for _ in range(steps):
            inputs = {name: self._input(random, spec) for name, spec in self.model.spec["inputs"].items()}
            fed = {name: on_device(array, self.places.model) for name, array in inputs.items()}
            outputs = [output.numpy() for output in files["artifact"]["run_model"](**fed)]
            (role,) = self.networks
            yield Step("run_model", outputs, [], {role: Exchange(list(inputs.values()), outputs)})

    def _input(self, random: np.random.RandomState, spec: dict[str, Any]) -> Any:
        shape, dtype = spec["shape"], np.dtype(spec["dtype"])
        whole = dtype.kind != "f"
        top = 2 if dtype.kind == "b" else 100
        values: Any = random.randint(0, top, shape) if whole else random.uniform(-1, 1, shape)
        return values.astype(dtype)
