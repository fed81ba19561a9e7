"""What a network without a contract is fed: indices within their tables, ranges that the catalog states."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from contract import Project, model
from onnx import TensorProto, helper, numpy_helper

from rules import catalog
from rules.errors import CatalogError, SourceError
from rules.networks import indices
from rules.steps import compile as compiling
from rules.steps.preflight import preflight

ROWS = 7
INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def saved(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, tuple[int, tuple[int, ...]]],
    output: tuple[int | str, ...],
    tensors: dict[str, Any] | None = None,
) -> Path:
    """An ONNX file of opset 17 that declares its output `y` as float32."""
    value = helper.make_tensor_value_info
    kept = [numpy_helper.from_array(np.array(one), name) for name, one in (tensors or {}).items()]
    given = [value(name, kind, shape) for name, (kind, shape) in inputs.items()]
    graph = helper.make_graph(nodes, path.stem, given, [value("y", FLOAT, output)], kept)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


TABLE = np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3)
X = {"x": (FLOAT, (2, 5))}
I4 = {"i": (INT, (4,))}


def made(kind: str, *names: str, **attributes: Any) -> Any:
    """A node; the last name is its output."""
    return helper.make_node(kind, names[:-1], names[-1:], **attributes)


@pytest.mark.parametrize(
    ("nodes", "inputs", "tensors", "found"),
    [
        ([made("Gather", "table", "i", "y")], I4, {"table": TABLE}, {"i": ROWS}),
        ([made("Gather", "table", "i", "y", axis=-1)], I4, {"table": TABLE}, {"i": 3}),
        ([made("Gather", "x", "i", "y", axis=1)], X | I4, {}, {"i": 5}),
        (
            [
                made("Cast", "i", "c", to=INT),
                made("Unsqueeze", "c", "one", "u"),
                made("Gather", "t", "u", "y"),
            ],
            {"i": (FLOAT, (4,))},
            {"t": TABLE, "one": [0]},
            {"i": ROWS},
        ),
        (
            [
                made("Gather", "table", "i", "a"),
                made("Gather", "small", "i", "b"),
                made("Add", "a", "b", "y"),
            ],
            I4,
            {"table": TABLE, "small": TABLE[:2]},
            {"i": 2},
        ),
        ([made("GatherElements", "x", "i", "y", axis=1)], X | {"i": (INT, (2, 5))}, {}, {"i": 5}),
        ([made("GatherND", "x", "i", "y")], X | {"i": (INT, (3, 1))}, {}, {"i": 2}),
        ([made("GatherND", "x", "i", "y", batch_dims=1)], X | {"i": (INT, (2, 1))}, {}, {"i": 5}),
        (
            [made("ScatterND", "x", "i", "u", "y")],
            X | {"i": (INT, (1, 2)), "u": (FLOAT, (1,))},
            {},
            {"i": 2},
        ),
        (
            [made("ScatterElements", "x", "i", "u", "y", axis=1)],
            X | {"i": (INT, (2, 1)), "u": (FLOAT, (2, 1))},
            {},
            {"i": 5},
        ),
        (
            [made("OneHot", "i", "depth", "values", "y")],
            I4,
            {"depth": np.int64(9), "values": np.float32([0, 1])},
            {"i": 9},
        ),
        (
            [made("Concat", "i", "j", "k", axis=0), made("Gather", "table", "k", "y")],
            I4 | {"j": (INT, (2,))},
            {"table": TABLE},
            {"i": ROWS, "j": ROWS},
        ),
        ([made("Tanh", "x", "a"), made("Gather", "a", "i", "y", axis=1)], X | I4, {}, {"i": None}),
        ([made("Mul", "x", "x", "y")], X, {}, {}),
    ],
)
def test_indices_are_traced_to_the_inputs(
    tmp_path: Path, nodes: Any, inputs: Any, tensors: Any, found: dict[str, int | None]
) -> None:
    assert indices.sizes(saved(tmp_path / "m.onnx", nodes, inputs, (4, 3), tensors)) == found


def test_indices_lie_within_their_table_and_ranges_are_the_catalog_s(tmp_path: Path) -> None:
    root = Path(onnx.__file__).parents[1] / "tinygrad"
    path = saved(tmp_path / "m.onnx", [made("Gather", "t", "i", "y")], I4, (4, 3), {"t": TABLE})
    found = preflight("m", path, tinygrad_root=root)
    assert compiling.feed("m", path, found, {}) == {"i": [0, ROWS - 1]}
    assert compiling.feed("m", path, found, {"i": [1, 3]}) == {"i": [1, 3]}
    for name, low, high in (("i", 0, ROWS), ("i", 3, 1), ("j", 0, 1)):
        with pytest.raises(SourceError, match=rf"m: feed\.{name}: "):
            compiling.feed("m", path, found, {name: [low, high]})
    nodes = [made("Tanh", "x", "a"), made("Gather", "a", "i", "y", axis=1)]
    path = saved(tmp_path / "n.onnx", nodes, X | I4, (2, 4))
    found = preflight("n", path, tinygrad_root=root)
    with pytest.raises(
        SourceError, match=r"the input 'i' indexes a table, and n\.onnx does not say its size"
    ):
        compiling.feed("n", path, found, {})
    assert compiling.feed("n", path, found, {"i": [0, 4]}) == {"i": [0, 4]}


def generic(name: str, *extra: str) -> str:
    """A generic model of one file."""
    source = f'source = {{ kind = "file", path = "odd/{name}.onnx", format = "generic" }}\n'
    return model(name, source, 'type = "generic"', *extra)


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Small networks, built: a table of 7 rows; a sum that writes into a copy; a steep curve."""
    project = Project(tmp_path_factory.mktemp("fed"))
    odd = project.folder / "odd"
    saved(odd / "rows.onnx", [made("Gather", "t", "i", "y")], I4, (4, 3), {"t": TABLE})
    saved(odd / "steep.onnx", [made("Tanh", "x", "y")], X, (2, 5))
    scattered = [made("ScatterND", "x", "at", "u", "s"), made("Add", "s", "x", "y")]
    row = np.float32([[0.5, -3.5, 9, 2, 1]])
    saved(odd / "put.onnx", scattered, X, (2, 5), {"at": np.int64([[1]]), "u": row})
    saved(odd / "open.onnx", [made("Mul", "x", "x", "y")], X, ("n", 5))
    saved(odd / "type.onnx", [made("Cast", "x", "y", to=TensorProto.INT32)], X, (2, 5))
    saved(odd / "shape.onnx", [made("Transpose", "x", "y", perm=[1, 0])], X, (2, 5))
    project.catalog = "".join(
        generic(name, *(("feed = { x = [-100, 100] }",) if name == "steep" else ()))
        for name in ("rows", "steep", "put", "shape", "type", "open")
    )
    project.doit("-n", "2", "--continue", fails=True)
    return project


def test_a_table_is_read_where_it_has_rows(fed: Project) -> None:
    """Whole numbers to 99 once: outside of the table, where nobody knows what comes out."""
    facts = fed.record("rows_validation")["facts"]
    largest = max(step["networks"]["model"]["largest"] for step in facts["replay"])
    assert 3 < largest <= TABLE.max()


def test_a_declared_range_is_fed_and_in_the_key(fed: Project) -> None:
    content = fed.record("steep_artifact")["content"]
    assert content["settings"]["feed"] == {"x": [-100, 100]}
    steps = fed.record("steep_validation")["facts"]["replay"]
    assert all(step["networks"]["model"]["largest"] == 1 for step in steps)  # tanh of tens


def test_an_operator_that_assigns_leaves_its_input_alone(fed: Project) -> None:
    """The input is read again after the rows were put in, and is as it was for the next call."""
    gates = fed.record("put_validation")["facts"]["gates"]
    (found,) = [one for one in gates if one["gate"] == "inputs"]
    assert found["value"] == "all as they were"
    assert {one["gate"] for one in gates} >= {"client", "reference", "shapes"}


def test_an_output_of_another_shape_than_declared_is_refused(fed: Project) -> None:
    cause = fed.record("shape_failure")["cause"]
    assert re.search(r"model output y: expected float32 2x5 as declared, got float32 5x2", cause), cause


def test_an_output_of_another_type_than_declared_is_refused(fed: Project) -> None:
    cause = fed.record("type_failure")["cause"]
    assert re.search(r"shapes of model output y: expected float32 2x5 as declared, got int32 2x5", cause), (
        cause
    )


def test_an_artifact_tells_the_shape_that_comes_out(fed: Project) -> None:
    """Where the file leaves a size open, too."""
    gates = fed.record("open_validation")["facts"]["gates"]
    shapes = {one["subject"]: one["value"] for one in gates if one["gate"] == "shapes"}
    assert shapes["artifact: model outputs"] == "y 2x5"
    assert shapes["model output y"] == "float32 2x5"


def test_only_a_generic_model_may_state_what_it_is_fed(tmp_path: Path) -> None:
    source = 'source = { kind = "generated", architecture = "supercombo-24", seed = 1, width = 4 }\n'
    project = Project(tmp_path, model("odd", source, "feed = { x = [0, 1] }"))
    with pytest.raises(CatalogError, match=r'models\.odd\.feed: .*or type = "generic"'):
        catalog.load(project.folder / "models.toml")
