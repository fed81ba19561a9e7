"""ONNX files as they should be, as they are damaged, and as an attacker would make them."""

import base64
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from rules.errors import SourceError
from rules.networks import onnxfile
from rules.networks.onnxfile import OnnxSummary, TensorSpec, output_slices
from rules.networks.operators import implemented
from rules.steps.preflight import Preflight, bounds, check_roles, infer_model_type, preflight

SPEC = importlib.util.find_spec("tinygrad")
assert SPEC is not None and SPEC.origin is not None
TINYGRAD = Path(SPEC.origin).parent

VISION_SLICES = {"pose": slice(0, 12), "hidden_state": slice(12, 524), "pad": slice(-2, None)}
IMAGES = {"img": ("uint8", (1, 12, 128, 256)), "big_img": ("uint8", (1, 12, 128, 256))}
POLICY_INPUTS = {
    "desire_pulse": ("float16", (1, 25, 8)),
    "traffic_convention": ("float16", (1, 2)),
    "features_buffer": ("float16", (1, 25, 512)),
}
NUMBERS = {"uint8": TensorProto.UINT8, "float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}


def slices_text(slices: object) -> str:
    return base64.b64encode(pickle.dumps(slices)).decode()


def make(
    inputs=POLICY_INPUTS, outputs=None, *, slices=None, nodes=None, metadata=None, opsets=(("", 18),), ir=9
):
    """A model of the given interface; its nodes need not compute it, only be well formed."""
    outputs = {"outputs": ("float16", (1, 526))} if outputs is None else outputs
    weight = helper.make_tensor("w", TensorProto.FLOAT16, (4, 2), b"\1\2" * 8, raw=True)
    graph = helper.make_graph(
        nodes or [helper.make_node("Cast", [next(iter(inputs))], [next(iter(outputs))], to=10)],
        "driving",
        [helper.make_tensor_value_info(n, NUMBERS[t], s) for n, (t, s) in inputs.items()]
        + [helper.make_tensor_value_info("w", TensorProto.FLOAT16, (4, 2))],
        [helper.make_tensor_value_info(n, NUMBERS[t], s) for n, (t, s) in outputs.items()],
        [weight],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*pair) for pair in opsets], ir_version=ir
    )
    extra = dict(metadata or {})
    if slices is not None:
        extra["output_slices"] = slices_text(slices)
    helper.set_model_props(model, extra)
    return model


def saved(folder: Path, model, name: str = "driving_policy.onnx") -> Path:
    path = folder / name
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def check(path: Path) -> Preflight:
    return preflight("pop22", path, tinygrad_root=TINYGRAD)


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        check(path)
    assert caught.value.fix
    assert caught.value.what.startswith("pop22: ") and path.name in caught.value.what
    return caught.value.what


def read(folder: Path, model) -> OnnxSummary:
    return onnxfile.read(saved(folder, model))


# The file, read


def test_summary_agrees_with_the_onnx_package(tmp_path):
    inputs = IMAGES | POLICY_INPUTS
    path = saved(tmp_path, make(inputs, slices=VISION_SLICES, metadata={"model_checkpoint": "abc/200"}))
    summary, theirs = onnxfile.read(path), onnx.load(path)

    def specs(values):
        return {
            v.name: TensorSpec(
                helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type).name,
                tuple(d.dim_value for d in v.type.tensor_type.shape.dim),
            )
            for v in values
        }

    names = {tensor.name for tensor in theirs.graph.initializer}
    ours_in_order, theirs_in_order = (
        list(summary.inputs),
        [v.name for v in theirs.graph.input if v.name not in names],
    )
    assert ours_in_order == theirs_in_order
    assert summary.inputs == {n: s for n, s in specs(theirs.graph.input).items() if n not in names}
    assert summary.outputs == specs(theirs.graph.output)
    assert summary.ir_version == theirs.ir_version
    assert summary.opsets == {entry.domain: entry.version for entry in theirs.opset_import}
    assert summary.operators == tuple(sorted({(n.domain, n.op_type) for n in theirs.graph.node}))
    assert summary.metadata == {entry.key: entry.value for entry in theirs.metadata_props}
    assert (summary.initializers, summary.weights_bytes) == (1, 16)


def test_symbols_and_open_dimensions_are_kept(tmp_path):
    summary = read(tmp_path, make({"x": ("float32", ("batch", None, 3))}))
    assert summary.inputs["x"].shape == ("batch", "?", 3)


def test_operators_of_subgraphs_and_constants_are_counted(tmp_path):
    constant = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("v", TensorProto.FLOAT, [3], [1, 2, 3])
    )
    branch = helper.make_graph(
        [constant, helper.make_node("Tanh", ["c"], ["t"], domain="com.acme")],
        "branch",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [3])],
    )
    node = helper.make_node("If", ["desire_pulse"], ["outputs"], then_branch=branch, else_branch=branch)
    summary = read(tmp_path, make(nodes=[node]))
    assert summary.operators == (("", "Constant"), ("", "If"), ("com.acme", "Tanh"))
    assert summary.weights_bytes == 16 + 2 * 12


def test_packed_and_unpacked_dimensions_are_the_same(tmp_path):
    tensor = make().graph.initializer[0].SerializeToString()
    assert tensor.startswith(b"\x08\x04\x08\x02")
    model = make()
    content = model.SerializeToString().replace(b"\x08\x04\x08\x02\x10\x0a", b"\x0a\x02\x04\x02\x10\x0a")
    assert read(tmp_path, content) == read(tmp_path, model)


def test_both_names_of_the_default_domain_are_one(tmp_path):
    assert read(tmp_path, make(opsets=(("ai.onnx", 18),))).opsets == {"": 18}
    with pytest.raises(SourceError, match="opset import '' is there twice"):
        read(tmp_path, make(opsets=(("ai.onnx", 18), ("", 17))))


def test_weights_are_skipped_not_read(tmp_path):
    path = tmp_path / "large.onnx"
    size = 500 << 20
    graph = make().graph
    graph.initializer[0].ClearField("raw_data")
    graph.initializer[0].dims[:] = [size // 2]
    raw = b"\x4a" + varint(size)
    tensor = graph.initializer.pop().SerializeToString()
    head = b"\x2a" + varint(len(tensor) + len(raw) + size) + tensor + raw
    rest = graph.SerializeToString()
    with path.open("wb") as file:  # sparse: half a gigabyte of zeros that take no room
        file.write(b"\x08\x09\x3a" + varint(len(head) + size + len(rest)) + head)
        file.seek(size, os.SEEK_CUR)
        file.write(rest + b"\x42\x02\x10\x12")
    summary = onnxfile.read(path)
    assert (summary.weights_bytes, summary.opsets, list(summary.inputs)) == (
        size,
        {"": 18},
        list(POLICY_INPUTS),
    )


def test_external_weights_are_named_and_must_be_there(tmp_path):
    model = make()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "4096"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    path = saved(tmp_path, model)
    summary = onnxfile.read(path)
    assert (summary.external, summary.weights_bytes) == ({"weights.bin": 4112}, 16)
    assert "no file is there, expected 4,112 bytes" in refusal(path)
    saved(tmp_path, b"\0" * 4111, "weights.bin")
    assert "found 4,111 bytes, expected 4,112" in refusal(path)
    saved(tmp_path, b"\0" * 4112, "weights.bin")
    assert check(path).summary == summary


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "a/../../b", "..\\b"])
def test_external_weights_elsewhere_are_refused(tmp_path, location):
    model = make()
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    assert "expected a file beside the model" in refusal(saved(tmp_path, model))


@pytest.mark.parametrize(
    ("location", "cause"),
    [
        ("", "does not say which"),
        ("x" * 9000, "expected a name that is one on every disk"),
        ("a\0b", "expected a name that is one on every disk"),
        ("weights", "expected a name with a dot in it"),
        ("x.data", "no file is there, expected 16 bytes"),
    ],
)
def test_external_weights_that_cannot_be_are_refused(tmp_path, location, cause):
    model = make()
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    assert cause in refusal(saved(tmp_path, model))


def test_tensors_that_share_an_external_file_need_its_furthest_byte(tmp_path):
    model = make()
    for name, offset in (("a", "64"), ("b", "0")):
        tensor = model.graph.initializer.add(name=name, data_type=TensorProto.FLOAT, dims=[8])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        tensor.external_data.add(key="offset", value=offset)
    summary = read(tmp_path, model)
    assert (summary.external, summary.weights_bytes) == ({"weights.bin": 96}, 16 + 32 + 32)


@pytest.mark.parametrize("offset", ["-1", "ten", "9" * 5000, "١"])
def test_an_external_offset_is_a_count(tmp_path, offset):
    model = make()
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w")
    tensor.external_data.add(key="offset", value=offset)
    assert "expected a byte count" in refusal(saved(tmp_path, model))


def test_a_tensor_that_lacks_data_is_refused(tmp_path):
    model = make()
    model.graph.initializer[0].raw_data = b"\0" * 10
    assert "'w' holds 10 bytes, expected 16" in refusal(saved(tmp_path, model))


# Hostile bytes


def varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def nested(depth: int) -> bytes:
    """Graphs within graphs: graph > node(1) > attribute(5) > g(6)."""
    content = b""
    for _ in range(depth):
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            content = tag + varint(len(content)) + content
    return b"\x08\x09\x3a" + varint(len(content)) + content


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"\x08\x09\x3a" + varint(2 << 30) + b"\0" * 1000, "truncated"),
        (b"\x08\x09\x3a" + varint((1 << 64) - 1), "truncated"),
        (b"\x08" + b"\xff" * 100_000, "runs on past 10 bytes"),
        (b"\x08\x09\x3a\x04\x0a\x7f\x0a\x00" + b"\0" * 200, "runs past the end of its message"),
        (b"\x08\x09\x3b", "does not have"),
        (b"\x08\x09\x00\x00", "does not have"),
        (b"\x08\x09\x38\x01", "wire type 0, expected 2"),
        (nested(2000), "nested more than 16 deep"),
        (b"\x08\x09\x3a\x0d\x5a\x0b\x0a\x01x\x12\x06\x0a\x04\x08\x01\x12\x00" * 2, "two graphs"),
        (b"\x08\x09\x3a\x04\x0a\x02\x22\x00", "names no operator"),
        (b"\x08\x09\x72\x04\x0a\x02\xff\xfe", "not UTF-8"),
        (b"\x08\x09" + b"\x72\x02\x0a\x00" * 2, "metadata key '' is there twice"),
        (
            b"\x08\x09\x72" + varint(2_000_005) + b"\x12" + varint(2_000_000) + b"a" * 2_000_001,
            "over the limit",
        ),
        (b"\x62\x01a", "not an ONNX model"),
    ],
)
def test_hostile_protobuf_is_refused(tmp_path, content, cause):
    assert cause in refusal(saved(tmp_path, content))


def test_endless_fields_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnxfile, "MAX_FIELDS", 1000)
    assert "more than 1000 fields" in refusal(saved(tmp_path, b"\x08\x09" * 1001))


@pytest.mark.parametrize("size", [-1, -(1 << 63)])
def test_negative_dimensions_are_refused(tmp_path, size):
    assert f"dimension of {size}" in refusal(saved(tmp_path, make({"x": ("float32", (1, size))})))
    model = make()
    model.graph.initializer[0].dims[0] = size
    assert f"has {size} as dimension 1" in refusal(saved(tmp_path, model))


def test_endless_dimensions_are_refused(tmp_path):
    model = make()
    model.graph.initializer[0].dims[:] = [1] * 65
    assert "has 1 as dimension 65, expected at most 64" in refusal(saved(tmp_path, model))
    assert "more than 64 dimensions" in refusal(saved(tmp_path, make({"x": ("float32", (1,) * 65)})))


def test_unknown_types_and_values_that_are_no_tensors_are_refused(tmp_path):
    model = make()
    model.graph.input[0].type.tensor_type.elem_type = 99
    assert "element type 99" in refusal(saved(tmp_path, model))
    model.graph.input[0].type.tensor_type.elem_type = 1
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert "'desire_pulse' has no shape" in refusal(saved(tmp_path, model))
    model.graph.input[0].type.sequence_type.elem_type.tensor_type.elem_type = 1
    assert "'desire_pulse' is not a tensor" in refusal(saved(tmp_path, model))


VALID = make(IMAGES, slices=VISION_SLICES, metadata={"model_checkpoint": "abc"}).SerializeToString()


@settings(max_examples=300, deadline=None)
@given(cut=st.integers(0, len(VALID) - 1))
def test_any_truncation_is_refused_or_a_shorter_model(tmp_path_factory, cut):
    path = saved(tmp_path_factory.getbasetemp(), VALID[:cut], "cut.onnx")
    try:
        summary = check(path).summary
    except SourceError:
        return
    assert len(summary.metadata) < 2 and summary.inputs == read(path.parent, VALID).inputs


def test_a_cut_inside_the_graph_is_called_a_truncation(tmp_path):
    graph = onnx.load_from_string(VALID).graph.SerializeToString()
    start = VALID.index(graph)
    for cut in range(start, start + len(graph)):
        cause = f"truncated: it goes on to byte {start + len(graph)} at least, and ends at {cut}"
        assert cause in refusal(saved(tmp_path, VALID[:cut]))


@settings(max_examples=600, deadline=None)
@given(at=st.integers(0, len(VALID) - 1), flip=st.integers(1, 255), cut=st.integers(0, len(VALID)))
def test_flipped_bytes_raise_nothing_but_source_errors(tmp_path_factory, at, flip, cut):
    content = bytearray(VALID)
    content[at] ^= flip
    for number, piece in enumerate((content, content[:cut])):
        path = saved(tmp_path_factory.getbasetemp(), bytes(piece), f"flip{number}.onnx")
        try:
            json.dumps(check(path).as_json())
        except SourceError as error:
            assert error.fix and "\n" not in error.what


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=200), head=st.sampled_from([b"", b"\x08\x09", b"\x08\x09\x3a\x40"]))
def test_random_bytes_raise_nothing_but_source_errors(tmp_path_factory, content, head):
    path = saved(tmp_path_factory.getbasetemp(), head + content, "random.onnx")
    with pytest.raises(SourceError):
        check(path)


# What a file is


def zipped(folder: Path) -> bytes:
    with zipfile.ZipFile(folder / "z", "w") as file:
        file.writestr("a", "b")
    return (folder / "z").read_bytes()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 46882473\n"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "an empty file"),
        (POINTER, f"a Git LFS pointer to sha256:{'ab' * 32}, size 46882473"),
        (POINTER[:43], "a Git LFS pointer to unknown"),
        (pickle.dumps({"a": slice(1)}), "a pickle"),
        (pickle.dumps([1], protocol=2), "a pickle"),
        (b"\xef\xbb\xbf\n<!DOCTYPE html><html>Not found", "an HTML page"),
        (b"<html>", "an HTML page"),
        (b"<?xml version='1.0'?>", "an XML document"),
        (b'{"message": "Not Found"}', 'a text file that begins \'{"message": "Not Found"}\''),
        (b"\x1f\x8b\x08\x00", "a gzip archive"),
        (b"\0" * 4096, "a file of zero bytes"),
        (b"a\0" + b"\0" * 255 + b"ustar", "a tar archive"),
        (b"\x08\x09", "no graph"),
        (b"\x08\x09\x3a\x00\x42\x02\x10\x12", "the graph has no operators"),
    ],
)
def test_the_wrong_kind_of_file_is_called_by_its_name(tmp_path, content, kind):
    assert kind in refusal(saved(tmp_path, content))


def test_names_and_places_that_hold_no_model(tmp_path):
    assert "a zip archive" in refusal(saved(tmp_path, zipped(tmp_path)))
    assert "a macOS side file" in refusal(saved(tmp_path, make(), "._driving_policy.onnx"))
    assert "no file is there" in refusal(tmp_path / "driving_vision.onnx")
    assert "no file is there" in refusal(tmp_path)


# Interface


def test_graphs_without_inputs_outputs_or_known_versions_are_refused(tmp_path):
    node = [helper.make_node("Constant", [], ["outputs"], value_int=1)]
    assert "no inputs" in refusal(saved(tmp_path, make({}, nodes=node)))
    assert "no outputs" in refusal(saved(tmp_path, make(outputs={}, nodes=node)))
    assert "imports opset 99 of 'ai.onnx', expected 1 to" in refusal(
        saved(tmp_path, make(opsets=(("", 99),)))
    )
    assert "imports no opset of 'ai.onnx'" in refusal(saved(tmp_path, make(opsets=(("com.acme", 1),))))
    assert "IR version 77" in refusal(saved(tmp_path, make(ir=77)))
    assert "'x' is float32 (batch, 3), expected a fixed shape" in refusal(
        saved(tmp_path, make({"x": ("float32", ("batch", 3))}))
    )


def test_every_operator_that_tinygrad_lacks_is_listed(tmp_path):
    nodes = [
        helper.make_node("LSTM", ["desire_pulse", "w", "w"], ["a"], hidden_size=1),
        helper.make_node("Gelu", ["a"], ["b"], domain="com.acme"),
        helper.make_node("GRU", ["b", "w", "w"], ["c"], hidden_size=1),
        helper.make_node("Relu", ["c"], ["outputs"]),
    ]
    path = saved(tmp_path, make(nodes=nodes, opsets=(("", 18), ("com.acme", 1))))
    assert refusal(path).endswith("does not implement GRU, LSTM, com.acme.Gelu")


def test_names_from_the_file_cannot_break_the_line(tmp_path):
    node = helper.make_node("Evil\n\x1b[2J", ["desire_pulse"], ["outputs"])
    assert refusal(saved(tmp_path, make(nodes=[node]))).endswith(r"does not implement 'Evil\n\x1b[2J'")


def test_a_versioned_operator_needs_its_version_and_domain(tmp_path):
    ours = implemented(TINYGRAD)
    assert ours.implements("", "Dropout", 6) and not ours.implements("", "Dropout", 5)
    assert ours.implements("com.microsoft", "Attention", 1)
    assert not ours.implements("com.microsoft", "Softmax", 13)
    path = saved(tmp_path, make(nodes=[helper.make_node("Dropout", ["w"], ["outputs"])], opsets=(("", 5),)))
    assert refusal(path).endswith("does not implement Dropout")


def test_operators_agree_with_tinygrad_itself():
    code = (
        "import tinygrad.nn.onnx as o",
        "print(*sorted(o.get_onnx_ops()))",
        "print(*sorted(d.value for d in o.Domain))",
    )
    told = subprocess.run(
        [sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=True
    ).stdout
    names, domains = told.splitlines()
    ours = implemented(TINYGRAD)
    assert sorted(ours.names()) == names.split(" ")
    assert sorted(ours.domains) == domains.split(" ")


def test_a_tinygrad_without_a_runner_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="cannot be read"):
        implemented(tmp_path)
    (tmp_path / "other" / "nn").mkdir(parents=True)
    (tmp_path / "other" / "nn" / "onnx.py").write_text("x = 1\n")
    with pytest.raises(SourceError, match="expected both"):
        implemented(tmp_path / "other")


@pytest.mark.parametrize(
    ("cut", "shown"),
    [
        (slice(0, 527), "[0:527]"),
        (slice(-527, None), "[-527:]"),
        (slice(600, None), "[600:]"),
        (slice(5, 2), "[5:2]"),
        (slice(None, -527), "[:-527]"),
    ],
)
def test_slices_out_of_bounds_are_refused(tmp_path, cut, shown):
    what = refusal(saved(tmp_path, make(slices={"plan": slice(0, 526), "lead": cut})))
    assert f"slice 'lead' is {shown}" in what and "width 526" in what


def test_slices_need_one_output_of_known_width(tmp_path):
    two = {"a": ("float32", (1, 4)), "b": ("float32", (1, 4))}
    assert "found a float32 (1, 4), b float32 (1, 4)" in refusal(
        saved(tmp_path, make(outputs=two, slices={}))
    )
    symbolic = {"a": ("float32", (1, "n"))}
    assert "found a float32 (1, n)" in refusal(saved(tmp_path, make(outputs=symbolic, slices={})))


@given(
    width=st.integers(0, 50), start=st.integers(-60, 60) | st.none(), stop=st.integers(-60, 60) | st.none()
)
def test_bounds_are_those_of_python_when_nothing_is_clipped(width, start, stop):
    first, last = bounds(slice(start, stop), width)
    clipped = slice(start, stop).indices(width)[:2]
    if 0 <= first <= width and 0 <= last <= width:
        assert (first, last) == clipped
    else:
        assert (first, last) != clipped


def test_request_keeps_the_order_and_the_ends_as_written(tmp_path):
    model = make(slices=VISION_SLICES, metadata={"model_checkpoint": "abc/200"})
    passed = check(saved(tmp_path, model))
    request = passed.request()
    assert json.loads(json.dumps(request)) == {
        "inputs": {name: {"dtype": t, "shape": list(s)} for name, (t, s) in POLICY_INPUTS.items()},
        "outputs": {"outputs": {"dtype": "float16", "shape": [1, 526]}},
        "output_slices": {"pose": [0, 12], "hidden_state": [12, 524], "pad": [-2, None]},
        "model_checkpoint": "abc/200",
    }
    assert list(request["inputs"]) == list(POLICY_INPUTS)
    told = json.loads(json.dumps(passed.as_json()))
    assert told["operators"] == ["Cast"] and told["metadata"] == {"model_checkpoint": "abc/200"}
    bare = check(saved(tmp_path, make())).request()
    assert (bare["output_slices"], bare["model_checkpoint"]) == (None, None)


# Slices from untrusted pickles


def from_pickle(content: bytes) -> dict[str, slice] | None:
    return output_slices({"output_slices": base64.b64encode(content).decode()})


def test_real_slices_pass():
    data = os.environ.get("MODELYARD_DATA")
    if not data:
        pytest.skip("MODELYARD_DATA names no folder of real files")
    paths = sorted((Path(data) / "metadata").glob("*.pkl"))
    assert paths
    for path in paths:
        real = pickle.loads(path.read_bytes())[
            "output_slices"
        ]  # ours to trust: published metadata, pinned here
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert from_pickle(pickle.dumps(real, protocol)) == real
        lines = base64.encodebytes(pickle.dumps(real)).decode()
        assert output_slices({"output_slices": lines}) == real


INTEGERS = st.integers(-(1 << 40), 1 << 40) | st.none()


@given(
    slices=st.dictionaries(
        st.text(max_size=20), st.builds(slice, INTEGERS, INTEGERS, st.sampled_from([None, 1]))
    ),
    protocol=st.integers(0, pickle.HIGHEST_PROTOCOL),
)
def test_slices_round_trip(slices, protocol):
    assert from_pickle(pickle.dumps(slices, protocol)) == slices


def test_no_metadata_is_no_slices():
    assert output_slices({"model_checkpoint": "x"}) is None


class Call:
    """Pickles as a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def tuple_bomb(levels: int) -> bytes:
    """A dict whose key is a pair of the pair before, `levels` deep: hashing it takes 2**levels steps."""
    content = b"\x80\x02}q\xffNq\x00"
    for level in range(levels):
        content += b"h" + bytes((level,)) + b"h" + bytes((level,)) + b"\x86q" + bytes((level + 1,))
    return content + b"h\xffh" + bytes((levels,)) + b"Ns."


def test_the_tuple_bomb_is_one():
    assert len(pickle.loads(tuple_bomb(3))) == 1
    with pytest.raises(SourceError, match="a key of type tuple"):
        from_pickle(tuple_bomb(3))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("function", "name"),
    [(os.system, f"{os.name}.system"), (eval, "eval"), (getattr, "getattr"), (range, "range")],
)
def test_the_global_asked_for_is_named_and_not_run(tmp_path, monkeypatch, protocol, function, name):
    monkeypatch.chdir(tmp_path)
    payload = {"a": Call(function, "open('ran', 'w')" if function is eval else "touch ran")}
    with pytest.raises(SourceError, match=name):
        from_pickle(pickle.dumps(payload, protocol))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"(S'touch ran'\nios\nsystem\n.", "uses the opcode STRING|os.system"),
        (b"(ios\nsystem\n.", "os.system"),
        (b"Psome id\n.", "PERSID"),
        (b"\x80\x02N\x51.", "BINPERSID"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (tuple_bomb(60), "memo bomb"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "memo index"),
        (b"\x80\x02}" + b"0" * 3, "POP"),
        (b"N" * 20_000 + b".", "more than 8192 steps"),
        (b"\x80\x02" + b"N" * 70_000 + b".", "expected at most 65536"),
        (b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".", "beyond 62 bits"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "damaged|BINUNICODE8"),
        (b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f}.", "damaged"),
        (b"", "damaged"),
        (b"}", "damaged"),
        (b"\x80\x09}.", "damaged"),
        (b"s.", "damaged"),
        (b"h\x05.", "damaged"),
        (pickle.dumps(slice(1)), "holds a slice, expected a dict"),
        (pickle.dumps({1: slice(1)}), "key of type int"),
        (pickle.dumps({"a": 1}), "holds a int under 'a'"),
        (pickle.dumps({"a": slice}), "holds a type under 'a'"),
        (pickle.dumps({"a": slice(0, 4, 2)}), "steps of 1"),
        (pickle.dumps({"a": slice("b", 4)}), "other than integers"),
        (pickle.dumps({"a": slice(0, slice(1))}), "other than integers"),
        (pickle.dumps({"a": {"b": slice(1)}}), "holds a dict under 'a'"),
        (pickle.dumps({"a": [slice(1)]}), "EMPTY_LIST"),
        (pickle.dumps({"a": slice(True, 2)}), "NEWTRUE"),
        (pickle.dumps({"a": slice(True, 2)}, 0), "other than integers"),
    ],
)
def test_hostile_pickles_are_refused(content, cause):
    with pytest.raises(SourceError, match=cause):
        from_pickle(content)


@pytest.mark.parametrize("text", ["!", "abc", "ä", "a" * 5])
def test_text_that_is_no_base64_is_refused(text):
    with pytest.raises(SourceError, match="base64"):
        output_slices({"output_slices": text})


@settings(max_examples=500, deadline=None)
@given(content=st.binary(max_size=60), at=st.integers(0, 100), flip=st.integers(1, 255))
def test_random_pickles_raise_nothing_but_source_errors(content, at, flip):
    real = bytearray(pickle.dumps(VISION_SLICES))
    real[at % len(real)] ^= flip
    for piece in (content, bytes(real)):
        try:
            found = from_pickle(piece)
        except SourceError:
            continue
        assert all(isinstance(value, slice) for value in found.values())


def test_a_refused_pickle_names_the_model(tmp_path):
    metadata = {"output_slices": slices_text({"a": Call(os.system, "true")})}
    assert f"{os.name}.system" in refusal(saved(tmp_path, make(metadata=metadata)))


# Contracts


@pytest.fixture
def role(tmp_path):
    def passed(inputs, slices=VISION_SLICES, outputs=None):
        return check(saved(tmp_path, make(inputs, outputs, slices=slices)))

    return passed


def contract_refusal(model_type, files):
    with pytest.raises(SourceError) as caught:
        check_roles("pop22", model_type, files)
    assert caught.value.fix
    return caught.value.what


def test_real_contracts_pass(role):
    vision, policy = role(IMAGES), role(POLICY_INPUTS, None)
    check_roles("pop22", "vision_policy", {"driving_vision": vision, "driving_policy": policy})
    for first in ("driving_on_policy", "driving_policy"):
        files = {"driving_vision": vision, first: policy, "driving_off_policy": policy}
        check_roles("pop22", "vision_multi_policy", files)
    check_roles("pop22", "supercombo", {"driving_supercombo": role(IMAGES | POLICY_INPUTS)})
    old = {
        "input_imgs": IMAGES["img"],
        "big_input_imgs": IMAGES["img"],
        "desire": ("float16", (1, 100, 8)),
        "prev_desired_curv": ("float16", (1, 100, 1)),
        "features_buffer": ("float16", (1, 99, 512)),
    }
    check_roles("pop22", "supercombo", {"driving_supercombo": role(old)})
    monitoring = {"input_img": ("uint8", (1, 1382400)), "calib": ("float32", (1, 3))}
    check_roles("dm", "dmonitoring", {"dmonitoring_model": role(monitoring, None)})
    check_roles("toy", "generic", {"anything": role({"x": ("float32", (3,))}, None)})


def test_real_metadata_meets_the_contract(role):
    data = os.environ.get("MODELYARD_DATA")
    if not data:
        pytest.skip("MODELYARD_DATA names no folder of real files")

    def of(name):
        real = pickle.loads((Path(data) / "metadata" / name).read_bytes())
        inputs = {k: ("uint8" if "img" in k else "float16", s) for k, s in real["input_shapes"].items()}
        outputs = {k: ("float16", s) for k, s in real["output_shapes"].items()}
        return role(inputs, real["output_slices"], outputs)

    vision, policy = of("driving_vision_metadata.pkl"), of("driving_policy_metadata.pkl")
    check_roles("pop22", "vision_policy", {"driving_vision": vision, "driving_policy": policy})
    check_roles("dm", "dmonitoring", {"dmonitoring_model": of("dmonitoring_model_metadata.pkl")})
    for version in ("v2", "v4", "v7"):
        check_roles("nn", "supercombo", {"driving_supercombo": of(f"supercombo_metadata_{version}.pkl")})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"img": None}, "inputs named like img: found big_img, expected two"),
        (
            {"img": ("float16", (1, 12, 128, 256))},
            "input 'img': found float16 (1, 12, 128, 256), expected uint8",
        ),
        ({"img": ("uint8", (1, 6, 128, 256))}, "input 'img': found uint8 (1, 6, 128, 256)"),
        ({"img": ("uint8", (1, 12, 64, 256))}, "the shape of 'img', uint8 (1, 12, 64, 256)"),
        ({"wide_img": IMAGES["img"]}, "found img, big_img, wide_img, expected two"),
        ({"big_img": None, "wide_img": IMAGES["img"]}, "one of them with big in its name"),
        ({"desire_pulse": None}, "inputs named like desire: found none among img, big_img"),
        ({"desire": ("float16", (1, 25, 8))}, "found desire_pulse, desire, expected exactly one"),
        ({"desire_pulse": ("float16", (1, 25, 9))}, "input 'desire_pulse': found float16 (1, 25, 9)"),
        ({"features_buffer": None}, "input features_buffer: found only img, big_img"),
        ({"features_buffer": ("float16", (1, 25, 256))}, "found float16 (1, 25, 256), expected (1, N, 512)"),
        ({"features_buffer": ("float16", (25, 512))}, "found float16 (25, 512), expected (1, N, 512)"),
    ],
)
def test_a_supercombo_out_of_contract_is_refused(role, change, found):
    inputs = {name: spec for name, spec in (IMAGES | POLICY_INPUTS | change).items() if spec}
    what = contract_refusal("supercombo", {"driving_supercombo": role(inputs)})
    assert what.startswith("pop22: driving_supercombo: ") and found in what


def test_outputs_and_hidden_state_out_of_contract_are_refused(role):
    policy = role(POLICY_INPUTS, None)
    for vision, found in (
        (role(IMAGES, None), "found no output_slices, expected hidden_state"),
        (role(IMAGES, {"pose": slice(0, 3)}), "found pose, expected hidden_state"),
        (role(IMAGES, {"hidden_state": slice(-100, None)}), "found width 100, expected 512"),
        (role(IMAGES, None, {"a": ("float16", (1, 2)), "b": ("float16", (1, 2))}), "exactly one"),
        (
            role(IMAGES, None, {"a": ("float16", (1, 2, 3))}),
            "found a float16 (1, 2, 3), expected exactly one",
        ),
    ):
        what = contract_refusal("vision_policy", {"driving_vision": vision, "driving_policy": policy})
        assert what.startswith("pop22: driving_vision: ") and found in what


def test_policies_fed_together_have_equal_inputs(role):
    files = {
        "driving_vision": role(IMAGES),
        "driving_on_policy": role(POLICY_INPUTS, None),
        "driving_off_policy": role(POLICY_INPUTS | {"action_t": ("float16", (1, 2))}, None),
    }
    what = contract_refusal("vision_multi_policy", files)
    assert what == (
        "pop22: driving_on_policy: input 'action_t': found none, "
        "expected float16 (1, 2), as in driving_off_policy"
    )


def test_monitoring_needs_both_inputs(role):
    what = contract_refusal(
        "dmonitoring", {"dmonitoring_model": role({"input_img": ("uint8", (1, 9))}, None)}
    )
    assert "input calib: found only input_img" in what


@pytest.mark.parametrize(
    ("roles", "model_type"),
    [
        ({"driving_vision", "driving_policy"}, "vision_policy"),
        ({"driving_vision", "driving_policy", "driving_off_policy"}, "vision_multi_policy"),
        ({"driving_vision", "driving_on_policy", "driving_off_policy"}, "vision_multi_policy"),
        ({"driving_supercombo"}, "supercombo"),
        ({"dmonitoring_model"}, "dmonitoring"),
        ({"mnist"}, "generic"),
    ],
)
def test_the_model_type_follows_from_the_roles(roles, model_type):
    assert infer_model_type(roles) == model_type


@pytest.mark.parametrize(
    ("roles", "cause"),
    [
        (set(), "no ONNX files"),
        ({"driving_vision"}, "lacks driving_policy"),
        ({"driving_policy"}, "lacks driving_vision"),
        ({"driving_off_policy"}, "lacks driving_vision, driving_on_policy or driving_policy"),
        ({"driving_supercombo", "driving_vision"}, "has no part driving_vision"),
        ({"driving_vision", "driving_policy", "mnist"}, "has no part mnist"),
    ],
)
def test_an_incomplete_or_mixed_set_says_why(roles, cause):
    with pytest.raises(SourceError, match=cause):
        infer_model_type(roles)


def test_a_model_type_must_have_its_roles_and_be_known(role):
    assert "lacks driving_policy" in contract_refusal("vision_policy", {"driving_vision": role(IMAGES)})
    assert "model type 'vison', expected one of vision_policy" in contract_refusal("vison", {})
