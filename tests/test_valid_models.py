"""Valid ONNX files that exporters write: they compile and give the right numbers, or are refused by name."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import Project, model, with_tinygrad
from onnx import TensorProto, helper, numpy_helper

from rules.errors import SourceError
from rules.steps.preflight import preflight

TINYGRAD = Path(importlib.util.find_spec("tinygrad").origin).parent

FLOAT = TensorProto.FLOAT
CUSTOM = ("my.company", 1)
OPSETS = [("", 18), CUSTOM]
SOURCE = "source = {{ kind = 'file', path = 'onnx/{}', format = 'generic' }}\n"
RUN = """
import json, pickle, sys
import numpy as np
from tinygrad import Tensor
artifact = pickle.load(open(sys.argv[1], "rb"))
fed = np.load(sys.argv[2])
def tensor(array): return Tensor(np.atleast_1d(array), device="NPY").to("CPU").realize().reshape(array.shape)
inputs = {name: tensor(fed[name]) for name in fed.files}
np.savez(sys.argv[3], *[one.numpy() for one in artifact["run_model"](**inputs)])
"""


def value(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def onnx_model(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], tensors: list[Any] | None = None
) -> Any:
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors or [])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*one) for one in OPSETS], ir_version=10
    )


def delimited(number: int, content: bytes) -> bytes:
    """A protobuf field of up to 16,383 bytes."""
    low, high = len(content) & 0x7F, len(content) >> 7
    return bytes([number << 3 | 2, low | 0x80, high]) + content


def with_tensor(network: Any, tensor: bytes) -> bytes:
    """A model's bytes with one more initializer, as it is."""
    graph = network.graph.SerializeToString() + delimited(5, tensor)
    network.ClearField("graph")
    return bytes(network.SerializeToString() + delimited(7, graph))


# ---- a network that has, of everything that is odd and valid, one


WEIGHTS = np.linspace(-1, 1, 48, dtype=np.float32).reshape(12, 4)
GROUPS = np.array([0.5, 2], np.float32)
TABLE = np.array([[0, 3], [-1, 1]], np.int64)
HALVES = np.array([0.5, -1.25, 3, 100], np.float16)
BOUNDS = {"from": 3, "to": 7, "along": 1}
PACKED = np.array([1, -2, 4, 8], np.float32)


def outside() -> Any:
    """The weights, in a file beside the model."""
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[12, 4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "model.onnx.data"), ("offset", "64"), ("length", "192")):
        tensor.external_data.add(key=key, value=text)
    return tensor


def one_by_one() -> Any:
    """float16 in int32_data, by its bits."""
    tensor = TensorProto(name="halves", data_type=TensorProto.FLOAT16, dims=[4])
    tensor.int32_data.extend(HALVES.view(np.uint16).tolist())
    return tensor


def odd() -> bytes:
    nodes = [
        helper.make_node("Einsum", ["x", "w"], ["product"], equation="...i,ij->...j"),
        helper.make_node("Reshape", ["x", "channels"], ["rows"]),
        helper.make_node("GroupNormalization", ["rows", "two", "two"], ["grouped"], num_groups=2),
        helper.make_node("Gather", ["x", "table"], ["gathered"], axis=1),
        helper.make_node("Concat", ["nothing", "x"], ["whole"], axis=1),
        helper.make_node("Mul", ["product", "s"], ["scaled"]),
        helper.make_node("Add", ["product", "packed"], ["added"]),
        helper.make_node("Cast", ["halves"], ["wide"], to=FLOAT),
        helper.make_node("Mul", ["product", "wide"], ["by_halves"]),
        helper.make_node("Neg", ["whole"], ["negated"]),
        helper.make_node("Identity", ["x"], ["kept"]),
        helper.make_node("Slice", ["x", "from", "to", "along"], ["cut"]),
    ]
    tensors = [
        outside(),
        one_by_one(),
        numpy_helper.from_array(np.array([1, 4, 3], np.int64), "channels"),
        numpy_helper.from_array(GROUPS, "two"),
        numpy_helper.from_array(TABLE, "table"),
        *(numpy_helper.from_array(np.array([at], np.int64), one) for one, at in BOUNDS.items()),
        TensorProto(name="nothing", data_type=FLOAT, dims=[1, 0]),
    ]
    outputs = [value("product", "N", 4), value("grouped", 1, 4, 3), value("gathered", "N", 2, 2)]
    outputs += [value("negated", "N", 12), value("scaled", "N", 4), value("added", "N", 4)]
    outputs += [value("by_halves", "N", 4), value("kept", "N", 12), value("cut", "N", 4)]
    network = onnx_model(nodes, [value("x", "N", 12), value("s")], outputs, tensors)
    packed = TensorProto(name="packed", data_type=FLOAT, raw_data=PACKED.tobytes()).SerializeToString()
    return with_tensor(network, delimited(1, b"\x04") + packed)


def expected(x: Any, s: Any) -> list[Any]:
    product = x @ WEIGHTS
    rows = x.reshape(1, 2, 6)
    spread = np.sqrt(rows.var(-1, keepdims=True) + 1e-5)
    normed = ((rows - rows.mean(-1, keepdims=True)) / spread).reshape(1, 4, 3)
    each = np.repeat(GROUPS, 2).reshape(1, 4, 1)
    found = [product, normed * each + each, x[:, TABLE], -x, product * s, product + PACKED]
    return [*found, product * HALVES.astype(np.float32), x, x[:, 3:7]]


def scalar() -> Any:
    nodes = [helper.make_node("Abs", ["x"], ["y"]), helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0)]
    return onnx_model(nodes, [value("x", 3, 4)], [value("z")])


def wrong() -> Any:
    """Twelve numbers as five: nothing that reads shapes alone looks at it."""
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("Reshape", ["y", "s"], ["z"], name="last"),
    ]
    five = numpy_helper.from_array(np.array([5], np.int64), "s")
    return onnx_model(nodes, [value("x", 3, 4)], [value("z", 5)], [five])


def fixed() -> Any:
    """What it gives stands in the file."""
    weights = numpy_helper.from_array(PACKED, "w")
    return onnx_model(
        [helper.make_node("Identity", ["w"], ["y"])], [value("x", 4)], [value("y", 4)], [weights]
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """All of them: two are compiled and verified, two are refused."""
    project = Project(tmp_path_factory.mktemp("valid"))
    whole = {"odd": odd(), **{one.__name__: one().SerializeToString() for one in (scalar, wrong, fixed)}}
    tables = []
    for name, content in whole.items():
        (project.folder / "onnx" / name).mkdir(parents=True)
        (project.folder / "onnx" / name / "model.onnx").write_bytes(content)
        more = {"odd": "shapes = { x = [1, 12] }", "wrong": 'skip_gates = ["operators"]'}.get(name, "")
        tables.append(model(name, SOURCE.format(name), 'type = "generic"', more))
    (project.folder / "onnx/odd/model.onnx.data").write_bytes(b"\xff" * 64 + WEIGHTS.tobytes())
    project.catalog = "".join(tables)
    project.edit("FLOAT16 = 1\n", "")
    (project.folder / "told").write_text(project.doit("-n", "2", "--continue", "pkl", fails=True).stdout)
    return project


def run(project: Project, model_id: str, folder: Path, **inputs: Any) -> list[Any]:
    (folder / "run.py").write_text(RUN)
    np.savez(folder / "fed.npz", **inputs)
    artifact = project.path(f"compiled/{model_id}_tinygrad.pkl")
    with_tinygrad(folder / "run.py", artifact, folder / "fed.npz", folder / "out.npz")
    with np.load(folder / "out.npz") as found:
        return [found[name] for name in found.files]


def test_what_exporters_write_gives_the_right_numbers(built, tmp_path):
    x, s = np.linspace(-1, 1, 12, dtype=np.float32).reshape(1, 12), np.array(-3, np.float32)
    found = run(built, "odd", tmp_path, x=x, s=s)
    for one, right in zip(found, expected(x, s), strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-5, atol=1e-5)
        assert one.shape == right.shape


def test_an_output_may_be_a_single_number(built, tmp_path):
    (found,) = run(built, "scalar", tmp_path, x=np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    assert found.shape == ()
    assert found == pytest.approx(72 / 11)


def test_weights_beside_a_model_lie_beside_it_in_the_workspace_and_change_what_is_built(built):
    outputs = {one["name"]: one for one in built.record("odd_source")["outputs"]}
    assert outputs["model.onnx.data"]["path"] == "onnx/odd/model.onnx.data"
    assert outputs["model.onnx.data"]["size"] == 256
    assert "odd" not in built.doit_any("outdated").stdout
    keyed = built.record("odd_artifact")["content"]["inputs"]["onnx"]
    assert keyed["model.onnx.data"] == outputs["model.onnx.data"]["sha256"]
    data = built.folder / "onnx/odd/model.onnx.data"
    before = data.read_bytes()
    try:
        data.write_bytes(before[:-1] + b"\0")
        assert "model.onnx.data" in built.doit("why", "odd").stdout
        assert "pkl:odd" in built.doit_any("outdated").stdout
    finally:
        data.write_bytes(before)


# ---- refused by name


def test_a_failure_in_a_compile_names_node_and_operator(built):
    told = (built.folder / "told").read_text()
    assert "wrong: compile failed: RuntimeError: node last: Reshape of opset 18: ValueError: size mi" in told


def test_a_network_of_which_no_kernel_comes_is_told_so(built):
    told = (built.folder / "told").read_text()
    assert (
        "fixed: compile failed: RuntimeError: no kernel comes of it, so there is nothing to compile" in told
    )


def refusal(folder: Path, network: Any) -> SourceError:
    path = folder / "model.onnx"
    path.write_bytes(network if isinstance(network, bytes) else network.SerializeToString())
    with pytest.raises(SourceError) as caught:
        preflight("m", path, tinygrad_root=TINYGRAD)
    return caught.value


def test_an_input_that_no_runtime_can_feed_is_named(tmp_path):
    network = onnx_model([helper.make_node("Neg", ["self"], ["y"])], [value("self", 2)], [value("y", 2)])
    told = refusal(tmp_path, network)
    assert "an input is called 'self'" in told.what
    assert "another name" in told.fix


@pytest.mark.parametrize(
    ("shape", "offered"),
    [
        (("unk__214", 2048), "shapes = { bytes = [1, 2048] }"),
        (("batch", "time", 8), "each N the size that it is run with: shapes = { bytes = [1, N, 8] }"),
        ((None, 3), "doit add … --shape bytes=1,3"),
    ],
)
def test_an_open_size_is_answered_with_what_to_write(tmp_path, shape, offered):
    network = onnx_model([helper.make_node("Neg", ["bytes"], ["y"])], [value("bytes", *shape)], [value("y")])
    told = refusal(tmp_path, network)
    assert "input 'bytes'" in told.what
    assert offered in told.fix
