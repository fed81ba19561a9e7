"""Each operator on its own: what the pinned tinygrad computes wrongly is named before a compile.

The wrong ones are what onnx's own tests and the specifications' older versions brought to light in 0.14.0.
"""

import json
import os
import re
import signal
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from contract import OPERATORS, Project, model
from onnx import TensorProto, helper, numpy_helper

from rules.builders import package, watched
from rules.builders.job import Job
from rules.errors import ArtifactError, WorkspaceError
from rules.keeping.digests import Digests
from rules.operators import holding

FLAGS = {
    "DEV": "CPU:X86",
    "CC": "echo",
    "FLOAT16": "1",
    "IMAGE": "0",
    "NUM_CPU_THREADS": "1",
    "PARALLEL": "0",
}
FLOAT, HALF, INT32, INT64, UINT8 = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.UINT8,
)
F, I = np.float32, np.int64  # noqa: E741


@dataclass(frozen=True)
class Small:
    """A network of one node. `reads` are shapes (float32), (type, shape) in a list, or fixed numbers."""

    operator: str
    opset: int
    reads: tuple[Any, ...]
    attributes: Mapping[str, Any]
    writes: int = 1

    def save(self, path: Path) -> None:
        """Write it as an ONNX file."""
        names, inputs, fixed = [], [], []
        for number, one in enumerate(self.reads):
            names.append("" if one is None else f"x{number}")
            if isinstance(one, np.ndarray | np.generic):
                fixed.append(numpy_helper.from_array(np.asarray(one), names[-1]))
            elif one is not None:
                dtype, shape = one if isinstance(one, list) else (FLOAT, one)
                inputs.append(helper.make_tensor_value_info(names[-1], dtype, shape))
        outputs = [f"y{number}" for number in range(self.writes)]
        node = helper.make_node(self.operator, names, outputs, **self.attributes)
        told = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([node], "one", inputs, told, fixed)
        imports = [helper.make_opsetid("", self.opset)]
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)


def node(operator: str, opset: int, *reads: Any, writes: int = 1, **attributes: Any) -> Small:
    return Small(operator, opset, reads, attributes, writes)


CUBE, IMAGE, SCALES = (2, 3, 4), (1, 1, 4, 4), F([1, 1, 2, 2])
# What it says, between "tinygrad 0.14.0 " and the node.
WRONG = {
    "softmax-11": (node("Softmax", 11, CUBE), "computes Softmax of opset 11 wrongly here"),
    "softmax-1-axis-0": (node("Softmax", 1, CUBE, axis=0), "computes Softmax of opset 1 wrongly here"),
    "logsoftmax-11": (node("LogSoftmax", 11, CUBE), "computes LogSoftmax of opset 11 wrongly here"),
    "hardmax-11": (node("Hardmax", 11, CUBE), "computes Hardmax of opset 11 wrongly here"),
    "eyelike-k": (node("EyeLike", 9, (3, 3), k=1), "wrongly here: expected 0.0, got 1.0|expected 0, got 1"),
    "eyelike-below": (node("EyeLike", 9, (4, 3), k=-1), "wrongly here"),
    "logsumexp": (node("ReduceLogSumExp", 18, CUBE, I([-1])), r"expected [0-9.]+, got inf"),
    "logsumexp-half": (node("ReduceLogSumExp", 11, [HALF, CUBE], axes=[-1]), r"expected [0-9.]+, got inf"),
    "scatternd-add": (
        node("ScatterND", 18, (5, 3), [INT64, (2, 3, 1)], (2, 3, 3), reduction="add"),
        "wrongly",
    ),
    "scatternd-max": (
        node("ScatterND", 18, (5, 3), [INT64, (2, 3, 1)], (2, 3, 3), reduction="max"),
        "wrongly",
    ),
    "upsample-linear": (
        node("Upsample", 9, IMAGE, SCALES, mode="linear"),
        "Upsample of opset 9 wrongly here",
    ),
    "resize-10": (node("Resize", 10, IMAGE, SCALES), "cannot run Resize of opset 10 as it is here"),
    "resize-flat": (node("Resize", 13, (4, 4), None, F([2, 2])), r"expected shape \(8, 8\), got \(4, 4\)"),
    "split-uneven": (
        node("Split", 18, (4, 7), writes=3, axis=1, num_outputs=3),
        r"shape \(4, 3\), got \(4, 2\)",
    ),
    "topk-1": (node("TopK", 1, (3, 5), writes=2, k=2), "cannot run TopK of opset 1"),
    "maxpool-places": (
        node("MaxPool", 12, (1, 2, 5, 5), writes=2, kernel_shape=[2, 2]),
        "MaxPool .* wrongly",
    ),
    "convtranspose-valid": (
        node("ConvTranspose", 11, (1, 2, 3, 3), (2, 3, 3, 3), auto_pad="VALID", strides=[2, 2]),
        r"expected shape \(1, 3, 7, 7\), got \(1, 3, 6, 6\)",
    ),
    "asinh": (node("Asinh", 20, [HALF, (3, 8)]), "expected .*, got -inf"),
    "argmin-uint8": (node("ArgMin", 13, [UINT8, (3, 4)]), "ArgMin of opset 13 wrongly"),
    "reducemean-int": (node("ReduceMean", 13, [INT32, (2, 3)], axes=[1]), "ReduceMean of opset 13 wrongly"),
    "slice-few": (node("Slice", 13, (3, 4), I([0]), I([2])), "cannot run Slice of opset 13"),
    "attention-groups": (
        node("Attention", 23, (2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)),
        "Attention .* wrongly",
    ),
    "centercroppad": (node("CenterCropPad", 18, (4, 5), I([6, 3])), "CenterCropPad of opset 18 wrongly"),
}
RIGHT = {
    "softmax-13": node("Softmax", 13, CUBE),
    "softmax-11-two-axes": node("Softmax", 11, (2, 3)),
    "softmax-half": node("Softmax", 13, [HALF, CUBE]),
    "eyelike": node("EyeLike", 9, (3, 4)),
    "scatternd-constant": node(  # tinygrad overwrites the constant; a compile gives it copies
        "ScatterND", 18, np.arange(15, dtype=F).reshape(5, 3), [INT64, (4, 1)], (4, 3)
    ),
    "scatternd": node("ScatterND", 18, (5, 3), [INT64, (4, 1)], (4, 3)),
    "scatterelements": node("ScatterElements", 18, (5, 3), [INT64, (4, 3)], (4, 3), axis=0, reduction="add"),
    "gather": node("Gather", 13, (4, 3), [INT64, (2, 2)]),
    "gather-table": node("Gather", 13, (4, 3), I([[0, -1], [2, 1]])),
    "groupnorm-18": node("GroupNormalization", 18, (2, 6, 4), F([0.5, 2]), F([1, -1]), num_groups=2),
    "groupnorm-21": node(
        "GroupNormalization", 21, (2, 4, 4), F([0.5, 2, 1, 3]), F([1, -1, 0, 2]), num_groups=2
    ),
    "einsum-rest": node("Einsum", 12, (2, 3, 4), (4, 5), equation="...i,ij->...j"),
    "gathernd": node("GatherND", 13, CUBE, [INT64, (2, 1)], batch_dims=1),
    "onehot": node("OneHot", 11, [INT64, (3,)], I(5), F([0, 1])),
    "resize": node("Resize", 13, IMAGE, None, SCALES, mode="linear"),
    "resize-cubic": node("Resize", 13, IMAGE, None, F([1, 1, 0.6, 0.6]), mode="cubic"),
    "log": node("Log", 13, (3, 8)),
    "sqrt": node("Sqrt", 13, [HALF, (3, 8)]),
    "pow": node("Pow", 13, (9,), F(0.5)),
    "div-int": node("Div", 13, [INT32, (9,)], [INT32, (9,)]),
    "tanh-half": node("Tanh", 13, [HALF, (3, 8)]),
    "exp": node("Exp", 13, (3, 8)),
    "matmul-half": node("MatMul", 13, [HALF, (1, 25, 520)], [HALF, (520, 64)]),
    "conv": node("Conv", 11, (1, 2, 7, 8), (3, 2, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    "layernorm-half": node("LayerNormalization", 17, [HALF, CUBE], [HALF, (4,)]),
    "batchnorm": node("BatchNormalization", 15, (2, 3, 4, 4), (3,), (3,), (3,), (3,)),
    "cast": node("Cast", 13, (3, 8), to=UINT8),
    "matmul-vectors": node("MatMul", 13, (3,), (3,)),
    "quantize": node("QuantizeLinear", 13, (3, 4), F(0.05), np.uint8(128)),
    "slice": node("Slice", 13, (4, 5), I([3]), I([-10]), I([0]), I([-1])),
    "greater-scalar": node("Greater", 13, (), F(0.5)),
    "mul-scalar": node("Mul", 13, (3, 4), ()),
}


def job(folder: Path) -> Job:
    """What the graph hands to the gate: the installed tinygrad and the worker as it is."""
    import tinygrad

    folder.mkdir(parents=True)
    digests = Digests(folder / "digests.log")
    worker = package.packed(folder / "workers", package.digest(digests))
    root = Path(tinygrad.__file__).parent
    return Job("small", {"tinygrad": "0.14.0"}, FLAGS, root, worker, folder, folder / "log")


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the gate says of each small network, by its id; nothing of one that passes. One run for all."""
    folder = tmp_path_factory.mktemp("operators")
    paths = {name: folder / f"{name}.onnx" for name in (*WRONG, *RIGHT)}
    for name, path in paths.items():
        (RIGHT[name] if name in RIGHT else WRONG[name][0]).save(path)
    answer = holding.Asking(job(folder / "job"), paths).ask([])
    assert not any(plan["not_held"] for plan in answer.plans.values())
    found = {}
    for name, plan in answer.plans.items():
        (digest,) = plan["nodes"]
        verdict = answer.verdicts[digest]
        wrong = holding.is_wrong(verdict)
        found[name] = holding.sentence("tinygrad 0.14.0", verdict) if wrong else ""
    return found


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_operator_is_named_with_both_values(name: str, sentences: dict[str, str]) -> None:
    small, told = WRONG[name]
    assert sentences[name].startswith("tinygrad 0.14.0 c")
    assert re.search(told, sentences[name]), sentences[name]
    assert f"{small.operator} of opset {small.opset}" in sentences[name]
    assert all(f"{attribute}=" in sentences[name] for attribute in small.attributes)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_operator_passes(name: str, sentences: dict[str, str]) -> None:
    assert sentences[name] == ""


# ---- a model


def head(folder: Path, operator: str, *rest: str) -> Path:
    """A network that ends in `operator` of opset 11 over (1, 3, 4), after others that are right."""
    folder.mkdir(parents=True)
    steps = [*rest, operator]
    names = ["x", *(f"v{number}" for number in range(len(steps) - 1)), "y"]
    nodes = [helper.make_node(one, [a], [b]) for one, a, b in zip(steps, names, names[1:], strict=False)]
    ends = [helper.make_tensor_value_info(name, FLOAT, (1, 3, 4)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "head", ends[:1], ends[1:])
    imports = [helper.make_opsetid("", 11)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests' workspaces share what they know of operators; here it is what is tested."""
    monkeypatch.delenv(OPERATORS, raising=False)


def generic(name: str, *extra: str) -> str:
    source = f'source = {{ kind = "file", path = "onnx/{name}", format = "generic" }}'
    return model(name, source, 'type = "generic"', *extra)


def test_a_model_is_refused_before_its_compile_unless_it_skips_the_gate(tmp_path: Path) -> None:
    project = Project(tmp_path / "yard", generic("old"))
    head(project.folder / "onnx/old", "Softmax", "Tanh")
    printed = project.doit("candidate:old", fails=True).stdout
    told = (
        r"old: tinygrad 0\.14\.0 computes Softmax of opset 11 wrongly here: expected [0-9.e-]+, got [0-9.e-]+"
    )
    assert re.search(told, printed), printed
    assert "node 'Softmax 1' in model of float32 (1, 3, 4)" in printed
    assert "export the model at opset 13 or newer" in printed
    assert "as the last resort" in printed
    assert "=== compile" not in project.path("logs/old.log").read_text()
    project.edit('type = "generic"', 'type = "generic"\nskip_gates = ["operators", "reference"]')
    project.doit("pkl:old")
    facts = project.record("old_validation")["facts"]
    assert "operators" not in {one["gate"] for one in facts["gates"]}


def test_the_record_tells_how_many_nodes_were_held(tmp_path: Path) -> None:
    project = Project(tmp_path / "yard", generic("new"))
    head(project.folder / "onnx/new", "Sigmoid", "Tanh", "Tanh")
    project.doit("pkl:new")
    first = project.record("new_validation")["facts"]["gates"][0]
    assert (first["gate"], first["subject"], first["passed"]) == ("operators", "2 nodes", True)
    log = project.path("logs/new.log").read_text()
    assert log.count("=== operators") == 1  # the verification found them known


# ---- what is kept


@dataclass
class Kept:
    """A folder of known nodes, and as many jobs as are asked for."""

    folder: Path
    jobs: int = 0

    def hold(self, *paths: Path, toolchain: str = "a", change: Callable[[Job], Job] = lambda job: job) -> int:
        """Hold networks; how many nodes had to run."""
        self.jobs += 1
        one = change(job(self.folder / f"job{self.jobs}"))
        networks = {f"model{number}": path for number, path in enumerate(paths)}
        return holding.Operators(self.folder / "known").hold(one, networks, {"toolchain": toolchain}).ran


def without_worker(job: Job) -> Job:
    return replace(job, worker=Path("/nonexistent/worker.pyz"))


def test_a_node_runs_once_for_all_models_that_have_it(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    first, second = head(tmp_path / "a", "Tanh", "Exp"), head(tmp_path / "b", "Exp", "Tanh", "Tanh")
    third = head(tmp_path / "c", "Sigmoid", "Tanh")
    assert kept.hold(first) == 2
    assert kept.hold(first, change=without_worker) == 0
    assert kept.hold(second, change=without_worker) == 0
    assert kept.hold(third) == 1
    assert kept.hold(first, third, change=without_worker) == 0
    assert kept.hold(first, toolchain="b") == 2


def test_what_is_kept_is_believed_only_as_it_was_written(tmp_path: Path) -> None:
    kept, path = Kept(tmp_path), head(tmp_path / "a", "Tanh")
    assert kept.hold(path) == 1
    (file,) = (tmp_path / "known").rglob("nodes/*.json")
    written = json.loads(file.read_text())
    other = {**written, "node": {**written["node"], "operator": "Exp"}}
    for content in (
        b"",
        b"{",
        b"[]",
        json.dumps(other).encode(),
        json.dumps({**written, "used": 2}).encode(),
    ):
        file.write_bytes(content)
        assert kept.hold(path) == 1
    assert kept.hold(path, change=without_worker) == 0
    file.unlink()
    os.mkfifo(file)  # waited for, before
    with pytest.raises(WorkspaceError, match="is no plain file"):
        kept.hold(path)


def test_wrong_nodes_are_not_kept_and_right_ones_beside_them_are(tmp_path: Path) -> None:
    kept, path = Kept(tmp_path), head(tmp_path / "a", "Softmax", "Tanh")
    with pytest.raises(ArtifactError, match="Softmax of opset 11 wrongly"):
        kept.hold(path)
    files = list((tmp_path / "known").rglob("nodes/*.json"))
    assert [json.loads(one.read_text())["operator"] for one in files] == ["Tanh"]
    with pytest.raises(ArtifactError, match="Softmax of opset 11 wrongly"):
        kept.hold(path)


# ---- children that do not come back


def worker_that(act: str) -> Callable[[Job], Job]:
    """A worker that begins with the first node and then does something else."""

    def change(job: Job) -> Job:
        lines = "import json, os, signal, sys, time\ncase = json.load(open(sys.argv[2]))['cases'][0]\n"
        path = job.scratch / "odd.pyz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("__main__.py", f"{lines}print('1 of 1:', case['node'], flush=True)\n{act}\n")
        return replace(job, worker=path)

    return change


@pytest.mark.parametrize(
    ("act", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", f"was killed by signal {int(signal.SIGKILL)}"),
        ("sys.exit(3)", "ended with exit code 3"),
        ("time.sleep(600)", "did nothing for 2 s and was ended"),
        ("much = bytearray(b'x') * 500_000_000; time.sleep(600)", r"took 0\.[3-5] GB of memory, .*"),
    ],
)
def test_a_child_that_ends_without_an_answer_is_told_as_that(
    act: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "QUIET_S", 2.0)
    monkeypatch.setattr(holding, "LEAST_BYTES", 300_000_000)
    with pytest.raises(ArtifactError) as refused:
        Kept(tmp_path).hold(head(tmp_path / "a", "Tanh"), change=worker_that(act))
    whole = rf"small: the tinygrad that runs its nodes one by one {told}; the last was 1 of 1: Tanh"
    assert re.match(whole, str(refused.value)), refused.value
    assert "wrongly" not in str(refused.value)


def test_a_reference_that_cannot_start_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('no onnxruntime today')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ArtifactError, match=r"the reference that holds its nodes .* no onnxruntime today"):
        Kept(tmp_path / "kept").hold(head(tmp_path / "a", "Tanh"))


def test_an_interrupted_run_ends_the_children(tmp_path: Path) -> None:
    """Another thread holds nodes while the run is told to end: nobody waits for them."""
    ended: list[type[BaseException]] = []

    def hold() -> None:
        try:
            Kept(tmp_path).hold(head(tmp_path / "a", "Tanh"), change=worker_that("time.sleep(600)"))
        except BaseException as error:
            ended.append(type(error))

    thread = threading.Thread(target=hold)
    thread.start()
    while not list(tmp_path.rglob("*.npz")):  # the worker is about to start
        time.sleep(0.05)
    while thread.is_alive():
        watched.interrupt_all()
        thread.join(0.2)
    assert ended == [KeyboardInterrupt]
