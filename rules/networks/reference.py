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
from typing import TYPE_CHECKING, Any

from rules.builders.watched import Watched
from rules.errors import ArtifactError
from rules.keeping import files

if TYPE_CHECKING:
    from rules.networks.drift import Drift

FLOAT, HALF = 1, 10  # onnx.TensorProto
DTYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
POSE = "pose"
POSE_COLUMNS = 12  # translation, rotation, then the log-stds of both

Arrays = list[Any]  # of numpy


# ---- in doit's process


class Reference:
    """The child at work; see `prepared`."""

    def __init__(self, process: "subprocess.Popen[bytes]", watch: Watched, log: Path, label: str) -> None:
        self._process = process
        self._watch = watch
        self._log = log
        self._label = label

    def compare(self, observed: Path, sha256: str) -> dict[str, Any]:
        """How far the outputs in the file `observed` are from what they should be; see `judged`.

        Raises ArtifactError when a network cannot be run, or the file is not the one that was sent.
        """
        self._watch.works = True
        answer, _ = self._process.communicate(json.dumps([str(observed), sha256]).encode())
        if self._process.returncode:
            raise self._error(self._process.returncode)
        found: dict[str, Any] = json.loads(answer)
        return found

    def _error(self, code: int) -> ArtifactError:
        """A network that onnxruntime cannot run is the model's own; one that was killed proves nothing."""
        who = f"{self._label}: the reference"
        if self._watch.why:
            return ArtifactError(f"{who} {self._watch.why}", fix=self._watch.advice)
        if code < 0:
            return ArtifactError(
                f"{who} was killed by signal {-code}",
                fix="see who killed it (no memory left? dmesg tells), then try again",
            )
        lines = [line for line in files.tail(self._log, files.CHUNK).splitlines() if line.strip()]
        return ArtifactError(
            f"{who} cannot be run: {lines[-1] if lines else f'it failed with exit code {code}'}",
            fix='mend that, or have the model say skip_gates = ["reference", "pose"]',
        )


@contextmanager
def prepared(
    networks: Mapping[str, Any], log: Path, label: str, most_bytes: int | None = None
) -> Iterator[Reference]:
    """A child that loads the networks of a request (`{role: {"path": …, "output_slices": …}}`) meanwhile.

    It may take `most_bytes` of memory. It is gone when the block ends.
    """
    arguments = [sys.executable, "-s", "-P", "-m", "rules.networks.reference", json.dumps(networks)]
    pipe = subprocess.PIPE
    with files.appending(log) as errors:
        process = subprocess.Popen(arguments, env=_environment(), stdin=pipe, stdout=pipe, stderr=errors)
    with process, Watched(process, most_bytes, works=False) as watch:
        yield Reference(process, watch, log, label)


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
        import onnxruntime  # type: ignore[import-untyped]

        from rules.networks.whole import loaded

        model = loaded(Path(spec["path"]))
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
            one.name: np.asarray(array, kinds.get(one.type, array.dtype), order="C")
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
    """Of each head (`vision.pose`) how far it drifted in all steps (see `drift.Verdict`), and of each network
    with a pose what is odd about it.
    """
    drifts: dict[str, Drift] = {}
    for (_, _, role), arrays in steps.items():
        network = networks[role]
        expected = network.heads(network(arrays["in"]))
        for name, found in network.heads(arrays["out"]).items():
            _drift(drifts, f"{role}.{name}", network, expected[name]).take(found, expected[name])
    rows = {
        role: [network.heads(one["out"])[POSE] for (_, _, of), one in steps.items() if of == role]
        for role, network in networks.items()
        if _has_pose(network)
    }
    return {
        "heads": {name: drift.verdict.as_json() for name, drift in drifts.items()},
        "poses": {role: pose_of(found) for role, found in rows.items() if found},
    }


def _drift(drifts: "dict[str, Drift]", label: str, network: Network, expected: Any) -> "Drift":
    from rules.networks import drift, groups

    if label not in drifts:
        name = label.partition(".")[2]
        of_head = name in network.slices
        partitions = groups.of_head(name, expected.size) if of_head else groups.of_output(expected.shape)
        drifts[label] = drift.Drift(partitions, expected.size)
    return drifts[label]


def _has_pose(network: Network) -> bool:
    start, stop = network.slices.get(POSE, (0, 0))
    return stop is not None and start is not None and stop - start == POSE_COLUMNS


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
