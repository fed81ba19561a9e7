"""What a model's outputs should be: its ONNX files run by onnxruntime in float32, in a process of its own.

onnxruntime and onnx are heavy, and doit's process imports neither. The child loads the networks while the
artifact is still being driven, and is then told where that left what it observed.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rules.errors import ArtifactError

FLOAT, HALF = 1, 10  # onnx.TensorProto
DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
SMALLEST_SCALE = 0.1  # below this a head's own size says more about cancellation than about precision
POSE = "pose"
POSE_COLUMNS = 12  # translation, rotation, then the log-stds of both


# ---- in doit's process


class Reference:
    """The child at work; see `prepared`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, label: str) -> None:
        self._process = process
        self._log = log
        self._label = label

    def judge(self, observed: Path) -> dict[str, Any]:
        """How far the outputs in `observed` are from what they should be.

        Returns `{"heads": {"vision.pose": drift, …}, "poses": {…}, "half": bool, "version": str, …}`; see
        `compared`. Raises ArtifactError when a network cannot be run.
        """
        answer, _ = self._process.communicate(f"{observed}\n".encode())
        if self._process.returncode:
            lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
            raise ArtifactError(
                f"{self._label}: onnxruntime cannot run the reference: {lines[-1] if lines else 'killed'}",
                fix=f'read {self._log}, or name "reference" in the model\'s skip_gates',
            )
        found: dict[str, Any] = json.loads(answer)
        return found


@contextmanager
def prepared(networks: Mapping[str, Any], log: Path, label: str) -> Iterator[Reference]:
    """Start loading the networks of a request (`{role: {"path": …, "output_slices": …}}`)."""
    arguments = [sys.executable, "-s", "-P", "-m", "rules.reference", json.dumps(networks)]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=_environment()
        )
    try:
        yield Reference(process, log, label)
    finally:
        process.kill()
        process.communicate()


def _environment() -> dict[str, str]:
    """Nothing of the shell's: only where this package is found, as this process found it."""
    return {"PYTHONPATH": ":".join(path for path in sys.path if path), "LC_ALL": "C.UTF-8"}


# ---- in the child


def widened(model: Any) -> bool:
    """Turn every float16 of an onnx.ModelProto into float32, in place; whether there was any.

    Types of values, tensors and type attributes are rewritten, in subgraphs and functions too.
    """
    return sum([_widen_graph(model.graph), *(_widen_nodes(one.node) for one in model.functions)]) > 0


def _widen_graph(graph: Any) -> int:
    values = [*graph.input, *graph.output, *graph.value_info]
    found = sum(_widen_type(one.type) for one in values)
    found += sum(_widen_tensor(tensor) for tensor in graph.initializer)
    return found + _widen_nodes(graph.node)


def _widen_type(kind: Any) -> int:
    if not kind.HasField("tensor_type") or kind.tensor_type.elem_type != HALF:
        return 0
    kind.tensor_type.elem_type = FLOAT
    return 1


def _widen_tensor(tensor: Any) -> int:
    import numpy as np
    from onnx import numpy_helper

    if tensor.data_type != HALF:
        return 0
    wide = numpy_helper.to_array(tensor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    return 1


def _widen_nodes(nodes: Iterable[Any]) -> int:
    return sum(_widen_attribute(attribute) for node in nodes for attribute in node.attribute)


def _widen_attribute(attribute: Any) -> int:
    found = sum(_widen_graph(graph) for graph in [*attribute.graphs, attribute.g])
    found += sum(_widen_tensor(tensor) for tensor in [*attribute.tensors, attribute.t])
    if attribute.name in DTYPE_ATTRIBUTES and attribute.i == HALF:
        attribute.i = FLOAT
        found += 1
    return found


class Network:
    """One ONNX file in float32."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        import onnx
        import onnxruntime  # type: ignore[import-untyped]

        model = onnx.load(spec["path"])
        self.half = widened(model)
        self.slices: dict[str, list[int | None]] = spec["output_slices"] or {}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        content = model.SerializeToString()
        self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """All outputs in the file's order, for inputs in its order."""
        import numpy as np

        kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64}
        wanted = self.session.get_inputs()
        fed = {
            one.name: np.ascontiguousarray(array.astype(kinds.get(one.type, array.dtype), copy=False))
            for one, array in zip(wanted, inputs, strict=True)
        }
        found: list[Any] = self.session.run(None, fed)
        return found

    def heads(self, outputs: list[Any]) -> dict[str, Any]:
        """Outputs cut by the slices; whole outputs, by number, of a network without any."""
        if len(outputs) == 1 and self.slices:
            row = outputs[0].reshape(-1)
            return {name: row[slice(*ends)] for name, ends in self.slices.items()}
        return {f"output {number}": array for number, array in enumerate(outputs)}
