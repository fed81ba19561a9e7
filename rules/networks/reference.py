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
from typing import Any

from rules.errors import ArtifactError
from rules.keeping import files

FLOAT, HALF = 1, 10  # onnx.TensorProto
DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
SMALLEST_SCALE = 0.1  # below this a head's own size says more about cancellation than about precision
POSE = "pose"
POSE_COLUMNS = 12  # translation, rotation, then the log-stds of both

Arrays = list[Any]  # of numpy


# ---- in doit's process


class Reference:
    """The child at work; see `prepared`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path, label: str) -> None:
        self._process = process
        self._log = log
        self._label = label

    def compare(self, observed: Path, sha256: str) -> dict[str, Any]:
        """How far the outputs in the file `observed` are from what they should be; see `judged`.

        Raises ArtifactError when a network cannot be run, or the file is not the one that was sent.
        """
        answer, _ = self._process.communicate(json.dumps([str(observed), sha256]).encode())
        if self._process.returncode:
            lines = [line for line in files.text_of(self._log).splitlines() if line.strip()]
            raise ArtifactError(
                f"{self._label}: the reference cannot be run: {lines[-1] if lines else 'it was killed'}",
                fix='mend that, or have the model say skip_gates = ["reference", "pose"]',
            )
        found: dict[str, Any] = json.loads(answer)
        return found


@contextmanager
def prepared(networks: Mapping[str, Any], log: Path, label: str) -> Iterator[Reference]:
    """A child that loads the networks of a request (`{role: {"path": …, "output_slices": …}}`) meanwhile."""
    arguments = [sys.executable, "-s", "-P", "-m", "rules.networks.reference", json.dumps(networks)]
    pipe = subprocess.PIPE
    with files.appending(log) as errors:
        process = subprocess.Popen(arguments, env=_environment(), stdin=pipe, stdout=pipe, stderr=errors)
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
        self.slices: Mapping[str, list[int | None]] = spec["output_slices"] or {}
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        content = model.SerializeToString()
        del model  # onnxruntime makes a copy of its own
        self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def __call__(self, inputs: Arrays) -> Arrays:
        """All outputs in the file's order, for inputs in its order."""
        import numpy as np

        kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64}
        wanted = self.session.get_inputs()
        fed = {
            one.name: np.ascontiguousarray(array.astype(kinds.get(one.type, array.dtype), copy=False))
            for one, array in zip(wanted, inputs, strict=True)
        }
        found: Arrays = self.session.run(None, fed)
        return found

    def heads(self, outputs: Arrays) -> dict[str, Any]:
        """Outputs cut by the slices; whole outputs, by number, of a network without any."""
        if len(outputs) == 1 and self.slices:
            row = outputs[0].reshape(-1)
            return {name: row[slice(*ends)] for name, ends in self.slices.items()}
        return {f"output {number}": array for number, array in enumerate(outputs)}


Steps = dict[tuple[str, int, str], dict[str, Arrays]]


def steps_of(observed: Path) -> Steps:
    """What the worker saw: by camera, step and role, the arrays `in` and `out` of one network, in order."""
    import numpy as np

    found: Steps = {}
    with np.load(observed, allow_pickle=False) as arrays:
        for name in sorted(arrays.files, key=lambda one: (len(one), one)):  # …/2 before …/10
            label, step, role, side, _ = name.rsplit("/", 4)
            found.setdefault((label, int(step), role), {}).setdefault(side, []).append(arrays[name])
    return found


def judged(networks: Mapping[str, Network], steps: Steps) -> dict[str, Any]:
    """Of each head (`vision.pose`) the worst drift, and of each network with a pose what is odd about it.

    A drift is the largest difference over the largest expected number of the head in all steps; it is None
    where one side is finite and the other is not.
    """
    drifts: dict[str, Drift] = {}
    for (_, _, role), arrays in steps.items():
        if "in" in arrays:
            network = networks[role]
            expected = network.heads(network(arrays["in"]))
            for name, found in network.heads(arrays["out"]).items():
                drifts.setdefault(f"{role}.{name}", Drift()).take(found, expected[name])
    rows = {
        role: [network.heads(one["out"])[POSE] for (_, _, of), one in steps.items() if of == role]
        for role, network in networks.items()
        if _has_pose(network)
    }
    return {
        "heads": {name: drift.value for name, drift in drifts.items()},
        "poses": {role: pose_of(found) for role, found in rows.items() if found},
    }


def _has_pose(network: Network) -> bool:
    start, stop = network.slices.get(POSE, (0, 0))
    return stop is not None and start is not None and stop - start == POSE_COLUMNS


class Drift:
    """The worst of one head so far."""

    def __init__(self) -> None:
        self.difference = 0.0
        self.scale = SMALLEST_SCALE
        self.comparable = True

    def take(self, found: Any, expected: Any) -> None:
        """Take in one step of the head."""
        import numpy as np

        finite = np.isfinite(expected)
        self.comparable &= found.shape == expected.shape and bool((np.isfinite(found) == finite).all())
        if self.comparable and finite.any():
            expected, found = expected[finite].astype(np.float64), found[finite].astype(np.float64)
            self.difference = max(self.difference, float(np.abs(found - expected).max()))
            self.scale = max(self.scale, float(np.abs(expected).max()))

    @property
    def value(self) -> float | None:
        """Largest difference over largest expected number; see `judged`."""
        return self.difference / self.scale if self.comparable else None


def pose_of(rows: list[Any]) -> dict[str, float | None]:
    """Largest norms over all steps, in metres and radians a second, and the least standard deviation.

    A row is translation (3), rotation (3), then their log-stds; the exponent is clipped at 11. A value is
    None when it is no number.
    """
    import numpy as np

    found = np.array(rows, np.float64)
    stds = np.exp(np.minimum(found[:, 6:], 11.0))
    worst = {
        "translation": np.linalg.norm(found[:, :3], axis=1).max(),
        "rotation": np.linalg.norm(found[:, 3:6], axis=1).max(),
        "translation_std": np.linalg.norm(stds[:, :3], axis=1).max(),
        "rotation_std": np.linalg.norm(stds[:, 3:], axis=1).max(),
        "least_std": stds.min(),
    }
    return {name: float(value) if np.isfinite(value) else None for name, value in worst.items()}


def main(arguments: list[str]) -> int:
    """`python -m rules.networks.reference NETWORKS`: waits for the file to judge, answers on stdout."""
    import hashlib
    import resource

    networks = {role: Network(spec) for role, spec in json.loads(arguments[0]).items()}
    import onnxruntime

    path, sha256 = json.load(sys.stdin)
    with Path(path).open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        print(f"{path}: expected sha256 {sha256}, got {found}", file=sys.stderr)
        return 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    about = {
        "half": any(network.half for network in networks.values()),
        "version": f"onnxruntime {onnxruntime.__version__}",
        "peak_bytes": peak if sys.platform == "darwin" else 1024 * peak,
    }
    print(json.dumps({**judged(networks, steps_of(Path(path))), **about}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
