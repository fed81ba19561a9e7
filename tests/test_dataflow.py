"""What a capture would freeze: bounds, shapes and counts computed from the data are refused by name."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from contract import Project, model
from onnx import TensorProto, helper, numpy_helper

from rules.errors import SourceError
from rules.networks.operators import read_on_host
from rules.steps.preflight import preflight

SPEC = importlib.util.find_spec("tinygrad")
assert SPEC is not None and SPEC.origin is not None
TINYGRAD = Path(SPEC.origin).parent

# By the documents of the operators: the inputs that decide a shape, an axis, a bound or a count, or that
# tinygrad takes as a number though a kernel could read them (Pad's value, Dropout's ratio).
READ = {
    "AffineGrid": [1],
    "BlackmanWindow": [0],
    "CenterCropPad": [1],
    "Compress": [1],
    "ConstantOfShape": [0],
    "CumSum": [1],
    "Dropout": [1, 2],
    "Expand": [1],
    "HammingWindow": [0],
    "HannWindow": [0],
    "MaxUnpool": [2],
    "NonZero": [0],
    "OneHot": [1],
    "Pad": [1, 2, 3],
    "Range": [0, 1, 2],
    "ReduceL1": [1],
    "ReduceL2": [1],
    "ReduceLogSum": [1],
    "ReduceLogSumExp": [1],
    "ReduceMax": [1],
    "ReduceMean": [1],
    "ReduceMin": [1],
    "ReduceProd": [1],
    "ReduceSum": [1],
    "ReduceSumSquare": [1],
    "Reshape": [1],
    "Resize": [1, 2, 3],
    "Slice": [1, 2, 3, 4],
    "Split": [1],
    "Squeeze": [1],
    "Tile": [1],
    "TopK": [1],
    "Trilu": [1],
    "Unsqueeze": [1],
    "Upsample": [1],
}
CONSTANTS = {
    "two": np.float32([2]),
    "zero": np.int64([0]),
    "nought": np.float32(0),
    "one": np.int64([1]),
    "last": np.int64([-1]),
    "four": np.int64([4]),
}


def node(kind: str, *names: str, name: str = "", **attributes: Any) -> Any:
    """A node of one output, the last of the names."""
    return helper.make_node(kind, names[:-1], names[-1:], name=name, **attributes)


def network(path: Path, *nodes: Any, opset: int = 18, default: str = "") -> Path:
    """An ONNX file: `x` float32 (4, 4) to `y` of the same shape; an input `default` that has a value, too."""
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, (4, 4))]
    if default:
        inputs.append(value(default, TensorProto.INT64, (1,)))
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in CONSTANTS.items()]
    outputs = [value("y", TensorProto.FLOAT, (4, 4))]
    graph = helper.make_graph(list(nodes), "graph", inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return path


def branch(kind: str, value: str, *shape: int | str, output: str) -> Any:
    """A subgraph of one node that takes the outer `x`."""
    info = helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)
    return helper.make_graph([node(kind, "x", value, output, name=f"inner {kind}")], output, [], [info])


def choice(condition: str, first: Any, second: Any, *, output: str = "y") -> Any:
    """An If."""
    return node("If", condition, output, name="choice", then_branch=first, else_branch=second)


def passes(path: Path) -> None:
    """Preflight finds nothing."""
    preflight("pop", path, tinygrad_root=TINYGRAD)


COMPUTED = (
    node("ReduceMax", "x", "most", keepdims=0),
    node("Greater", "most", "two", "is_large"),
    node("Cast", "is_large", "start", to=TensorProto.INT64),
)


# ---- refused, by name


def test_a_bound_that_is_computed_from_the_data_is_refused_by_name(tmp_path: Path) -> None:
    cut = node("Slice", "x", "start", "four", "one", "y", name="cut")
    with pytest.raises(SourceError) as caught:
        passes(network(tmp_path / "model.onnx", *COMPUTED, cut))
    assert caught.value.what == (
        "pop: model.onnx: Slice 'cut' takes its input 1, 'start', from the values of the model's input 'x':"
        " a capture reads it once and keeps it for ever"
    )
    assert "fixed" in str(caught.value.fix)


@pytest.mark.parametrize(("kind", "position"), [(kind, one) for kind in READ for one in READ[kind]])
def test_each_input_that_is_read_on_the_host_is_refused(tmp_path: Path, kind: str, position: int) -> None:
    names = ["one"] * (max(READ[kind]) + 1)
    names[position] = "start"
    found = node(kind, *names, "y", name="odd one")
    told = f"{kind} 'odd one' takes its input {position}, 'start', from the values of the model's input 'x'"
    with pytest.raises(SourceError, match=told):
        passes(network(tmp_path / "model.onnx", *COMPUTED, found))


def test_the_pinned_tinygrad_reads_these_inputs_on_the_host_and_no_others() -> None:
    optimizers = {"Adam", "Adagrad", "Momentum", "ImageDecoder"}  # of other domains, or of encoded pictures
    found = read_on_host(TINYGRAD)
    assert found.keys() - optimizers == READ.keys() | {"If"}
    assert {kind: sorted(found[kind]) for kind in READ if kind != "NonZero"} == {
        kind: places for kind, places in READ.items() if kind != "NonZero"
    }


def test_a_node_without_a_name_and_several_of_them(tmp_path: Path) -> None:
    nodes = [node("Slice", "x", "start", "start", "one", "part"), node("Expand", "part", "start", "y")]
    with pytest.raises(SourceError, match=r"a Slice without a name takes .*, and so do 2 other inputs"):
        passes(network(tmp_path / "model.onnx", *COMPUTED, *nodes))


def test_a_value_that_passes_through_a_branch_is_followed(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [node("Identity", "start", "kept")],
        "inner",
        [],
        [helper.make_tensor_value_info("kept", TensorProto.INT64, (1,))],
    )
    constant = node("Constant", "yes", value=numpy_helper.from_array(np.array(True)))
    chosen = choice("yes", inner, inner, output="chosen")
    cut = node("Slice", "x", "chosen", "four", "one", "y", name="cut")
    with pytest.raises(SourceError, match=r"Slice 'cut' takes its input 1, 'chosen', from .* 'x'"):
        passes(network(tmp_path / "model.onnx", *COMPUTED, constant, chosen, cut))


def test_what_a_branch_reads_is_looked_at(tmp_path: Path) -> None:
    same = branch("Expand", "start", 4, 4, output="grown"), branch("Add", "two", 4, 4, output="sum")
    with pytest.raises(SourceError, match=r"Expand 'inner Expand' takes its input 1, 'start', from .* 'x'"):
        passes(network(tmp_path / "model.onnx", *COMPUTED, choice("is_large", *same)))


@pytest.mark.parametrize("shape", [("rows", 4), (1, 4, 4), (4, 3)])
def test_a_choice_between_shapes_is_refused(tmp_path: Path, shape: tuple[int | str, ...]) -> None:
    branches = branch("Add", "two", 4, 4, output="sum"), branch("Mul", "two", *shape, output="product")
    with pytest.raises(SourceError, match=r"If 'choice' takes its input 0, 'is_large', from .* 'x'"):
        passes(network(tmp_path / "model.onnx", *COMPUTED, choice("is_large", *branches)))


def test_a_choice_between_branches_that_declare_no_shape_is_no_damage(tmp_path: Path) -> None:
    branches = branch("Add", "two", 4, 4, output="sum"), branch("Mul", "two", 4, 4, output="product")
    for one in branches:
        one.output[0].ClearField("type")
    path = network(tmp_path / "model.onnx", *COMPUTED, choice("is_large", *branches))
    with pytest.raises(SourceError, match=r"If 'choice' takes its input 0, 'is_large', from") as told:
        passes(path)
    assert "for an If, with branches that declare equal shapes" in told.value.fix


# ---- what follows from shapes, or from the file, is not


SHAPES = (
    node("Shape", "x", "shape"),
    node("Gather", "shape", "zero", "rows"),
    node("Concat", "rows", "last", "target", axis=0),
)


@pytest.mark.parametrize(
    "nodes",
    [
        [*SHAPES, node("Reshape", "x", "target", "y")],
        [*SHAPES, node("Mul", "rows", "one", "size"), node("Slice", "x", "zero", "size", "y")],
        [node("Size", "x", "size"), node("Range", "zero", "size", "one", "r"), node("Add", "x", "r", "y")],
        [node("EyeLike", "x", "eye"), node("NonZero", "eye", "places"), node("Gather", "x", "places", "y")],
        [*SHAPES, node("ConstantOfShape", "shape", "blank"), node("Add", "x", "blank", "y")],
        [*COMPUTED, node("Gather", "x", "start", "y")],
        [*COMPUTED, node("Add", "x", "most", "y")],
        [node("TopK", "x", "four", "y")],
    ],
)
def test_what_follows_from_shapes_passes(tmp_path: Path, nodes: list[Any]) -> None:
    passes(network(tmp_path / "model.onnx", *nodes))


def test_an_input_that_has_a_value_in_the_file_is_a_constant(tmp_path: Path) -> None:
    passes(network(tmp_path / "model.onnx", node("TopK", "x", "four", "y"), default="four"))


def test_a_choice_between_equal_shapes_and_a_static_shape_are_compiled_right(tmp_path: Path) -> None:
    """The eight inputs that an artifact is verified with take both branches, and onnxruntime agrees."""
    sign = [node("ReduceSum", "x", "sum", keepdims=0), node("Greater", "sum", "nought", "is_large")]
    branches = branch("Add", "two", 4, 4, output="more"), branch("Mul", "two", 4, 4, output="times")
    nodes = [*SHAPES, *sign, choice("is_large", *branches, output="chosen")]
    nodes.append(node("Reshape", "chosen", "target", "y"))
    source = 'source = { kind = "file", path = "both.onnx", format = "generic" }\n'
    project = Project(tmp_path / "yard", model("both", source, 'type = "generic"'))
    network(project.folder / "both.onnx", *nodes)
    project.doit("pkl:both")
    facts = project.record("both_validation")["facts"]
    (error,) = [one["value"] for one in facts["gates"] if one["subject"] == "model.output 0"]
    assert error < 1e-6
