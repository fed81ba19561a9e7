"""Generated models: real contracts, the same bytes everywhere, and no weight that does nothing."""

import base64
import hashlib
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from contract import PATH
from onnx import TensorProto, numpy_helper

from rules.errors import SourceError
from rules.sources.generated import architectures, generate

WIDTH = 4
ROLES = {
    "dmonitoring": ["dmonitoring_model"],
    "generic-mlp": ["model"],
    "multi-policy": ["driving_vision", "driving_on_policy", "driving_off_policy"],
    "supercombo-24": ["driving_supercombo"],
    "supercombo-99": ["driving_supercombo"],
    "vision-conv+attention": ["driving_vision", "driving_policy"],
    "vision-mixer+gru": ["driving_vision", "driving_policy"],
}
EVERY = [(architecture, role) for architecture, roles in ROLES.items() for role in roles]
# The rounding step of either precision for values from 1 to 2, which bounds what a dead weight could stir up.
HALF_STEP, SINGLE_STEP = 2.0**-10, 2.0**-23
TWINS = {
    ("vision-conv+attention", "driving_vision"): "driving_vision_metadata.pkl",
    ("vision-mixer+gru", "driving_vision"): "driving_vision_metadata.pkl",
    ("multi-policy", "driving_vision"): "driving_vision_metadata.pkl",
    ("vision-conv+attention", "driving_policy"): "driving_policy_metadata.pkl",
    ("supercombo-99", "driving_supercombo"): "supercombo_metadata_v7.pkl",
    ("dmonitoring", "dmonitoring_model"): "dmonitoring_model_metadata.pkl",
}
PINNED = {
    ("generic-mlp", "model"): "55a762b0f21f7fb6027f564bc96915c52e8b4e3b212e416530b3faef0a1df324",
    (
        "vision-conv+attention",
        "driving_vision",
    ): "fa5abbbdc3ba8f23ec8c2fef50fcd26fe90e9c7b7ce56dd666bab5a829919b90",
    (
        "vision-mixer+gru",
        "driving_policy",
    ): "6c873dbb12b4d23e36e059a95922186bf9af6488c5791a9fddedd1d44db4df30",
    (
        "supercombo-99",
        "driving_supercombo",
    ): "dd959dd860d1a940b0be88df90b92cfa6d9327528304ad2e1d6dc359b9e943d0",
}


class OnlySlices(pickle.Unpickler):
    def find_class(self, module, name):
        assert (module, name) == ("builtins", "slice")
        return slice


def model_of(architecture, role, seed=1, width=WIDTH):
    return onnx.load_from_string(generate(architecture, seed=seed, width=width)[role])


def shapes(values):
    return {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}


def properties(model):
    return {entry.key: entry.value for entry in model.metadata_props}


def slices_of(model):
    return OnlySlices(io.BytesIO(base64.b64decode(properties(model)["output_slices"], validate=True))).load()


def feed_for(model, seed, exact=np.float16):
    random = np.random.default_rng(seed)
    feed = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.type.tensor_type.elem_type == TensorProto.UINT8:
            feed[value.name] = random.integers(0, 256, shape, dtype=np.uint8)
        else:
            feed[value.name] = random.uniform(-1, 1, shape).astype(exact)
    return feed


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # a weight that is also an input is meant here
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def run(opened, feed):
    return opened.run(["outputs"], feed)[0]


def distance(one, other):
    return np.abs(one.astype(np.float32) - other.astype(np.float32)).max()


def weights_of(model):
    """The floating-point initializers by name."""
    floating = (TensorProto.FLOAT16, TensorProto.FLOAT)
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type in floating}


def opened_weights(model):
    """A session where each floating-point initializer is also an input, so a run can replace it."""
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.INT64:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(value)
    return session(model)


def single_precision(model):
    """The same network with every float16 made float32."""
    for value in [*model.graph.input, *model.graph.output]:
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            wide = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for node in model.graph.node:
        if node.op_type == "Cast":
            node.attribute[0].i = TensorProto.FLOAT
    return model


def test_lists_every_architecture_in_one_line():
    assert list(architectures()) == sorted(ROLES)
    assert all(summary and "\n" not in summary for summary in architectures().values())


@pytest.mark.parametrize("architecture", ROLES)
def test_makes_the_roles_of_its_layout(architecture):
    assert list(generate(architecture, seed=1, width=WIDTH)) == ROLES[architecture]


@pytest.mark.parametrize(("architecture", "role"), EVERY)
@pytest.mark.parametrize("width", [4, 6, 16])
def test_is_valid_onnx(architecture, role, width):
    onnx.checker.check_model(model_of(architecture, role, width=width), full_check=True)


@pytest.mark.parametrize(("architecture", "role"), TWINS)
def test_contract_equals_the_real_file(architecture, role):
    folder = os.environ.get("MODELYARD_DATA")
    if not folder:
        pytest.skip("MODELYARD_DATA names no folder with the real metadata files")
    real = OnlySlices(io.BytesIO((Path(folder) / "metadata" / TWINS[architecture, role]).read_bytes())).load()
    model = model_of(architecture, role)
    assert slices_of(model) == real["output_slices"]
    assert shapes(model.graph.input) == real["input_shapes"]
    assert shapes(model.graph.output) == real["output_shapes"]


@pytest.mark.parametrize(("architecture", "role"), EVERY)
def test_images_are_bytes_and_all_else_is_half(architecture, role):
    model = model_of(architecture, role)
    for value in model.graph.input:
        kind = TensorProto.UINT8 if "img" in value.name else TensorProto.FLOAT16
        assert value.type.tensor_type.elem_type == kind, value.name
    assert [value.name for value in model.graph.output] == ["outputs"]
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16


@pytest.mark.parametrize(("architecture", "role"), EVERY)
def test_slices_cover_every_column(architecture, role):
    model = model_of(architecture, role)
    columns = shapes(model.graph.output)["outputs"][1]
    covered = {column for cut in slices_of(model).values() for column in range(columns)[cut]}
    assert covered == set(range(columns))
    assert all(len(range(columns)[cut]) for cut in slices_of(model).values())


def test_supercombo_24_has_the_inputs_of_a_new_supercombo():
    assert shapes(model_of("supercombo-24", "driving_supercombo").graph.input) == {
        "img": (1, 12, 128, 256),
        "big_img": (1, 12, 128, 256),
        "desire_pulse": (1, 25, 8),
        "traffic_convention": (1, 2),
        "action_t": (1, 2),
        "features_buffer": (1, 24, 512),
    }


def test_both_policies_of_a_multi_policy_model_take_equal_inputs():
    on, off = (model_of("multi-policy", f"driving_{kind}_policy") for kind in ("on", "off"))
    assert shapes(on.graph.input) == shapes(off.graph.input)
    assert {"plan", "desired_curvature", "action"} <= set(slices_of(on))
    assert "desire_state" in slices_of(off)


@pytest.mark.parametrize("role", ["driving_vision", "driving_policy"])
def test_split_architectures_differ_in_kinds_of_layers(role):
    first, second = (
        [node.op_type for node in model_of(architecture, role).graph.node]
        for architecture in ("vision-conv+attention", "vision-mixer+gru")
    )
    assert set(first) != set(second)
    assert len(first) != len(second)


@pytest.mark.parametrize(("architecture", "role"), EVERY)
def test_width_and_seed_leave_the_depth_alone(architecture, role):
    nodes = [
        [node.op_type for node in model_of(architecture, role, seed=seed, width=width).graph.node]
        for seed, width in ((1, 4), (2, 4), (1, 12))
    ]
    assert nodes[0] == nodes[1] == nodes[2]


def test_a_wider_model_is_larger():
    narrow, wide = (generate("vision-conv+attention", seed=1, width=width) for width in (4, 64))
    assert len(narrow["driving_vision"]) < 200_000
    assert 10_000_000 < len(wide["driving_vision"]) < 20_000_000


@pytest.mark.parametrize(("architecture", "role"), PINNED)
def test_bytes_are_pinned(architecture, role):
    content = generate(architecture, seed=7, width=WIDTH)[role]
    assert hashlib.sha256(content).hexdigest() == PINNED[architecture, role]


@pytest.mark.parametrize(("architecture", "role"), EVERY)
def test_same_call_same_bytes_and_another_seed_other_weights(architecture, role):
    again = [generate(architecture, seed=seed, width=WIDTH)[role] for seed in (1, 1, 2)]
    assert again[0] == again[1]
    first, other = weights_of(onnx.load_from_string(again[0])), weights_of(onnx.load_from_string(again[2]))
    drawn = [name for name in first if first[name].ndim]
    assert drawn
    assert not [name for name in drawn if np.array_equal(first[name], other[name])]


def test_checkpoint_tells_architecture_seed_and_width():
    told = {
        properties(model_of(*made))["model_checkpoint"]
        for made in (
            ("generic-mlp", "model", 1, 4),
            ("generic-mlp", "model", 2, 4),
            ("generic-mlp", "model", 1, 6),
            ("dmonitoring", "dmonitoring_model", 1, 4),
        )
    }
    assert len(told) == 4


@pytest.mark.parametrize(("architecture", "role"), EVERY)
def test_outputs_are_sane(architecture, role):
    model = model_of(architecture, role)
    opened = session(model)
    runs = np.stack([run(opened, feed_for(model, seed))[0] for seed in range(4)]).astype(np.float32)
    assert np.isfinite(runs).all()
    assert np.abs(runs).max() < 4
    assert (np.ptp(runs, axis=0) > 0).all(), "each column varies with the input"
    assert np.std(runs[0]) > 0.1


@pytest.mark.parametrize(("architecture", "role"), EVERY)
def test_every_slice_depends_on_every_image_or_on_the_features(architecture, role):
    model = model_of(architecture, role)
    opened, feed = session(model), feed_for(model, 1)
    other, before = feed_for(model, 2), run(opened, feed_for(model, 1))[0]
    images = [name for name in feed if "img" in name]
    for name in images or [name for name in feed if name in ("features_buffer", "input")]:
        after = run(opened, {**feed, name: other[name]})[0]
        same = [key for key, cut in slices_of(model).items() if np.array_equal(before[cut], after[cut])]
        assert not same, name


@pytest.mark.parametrize(("architecture", "role"), EVERY)
def test_every_input_matters(architecture, role):
    model = model_of(architecture, role)
    opened, feed, other = session(model), feed_for(model, 1), feed_for(model, 2)
    before = run(opened, feed)
    dead = [name for name in feed if np.array_equal(run(opened, {**feed, name: other[name]}), before)]
    assert not dead


@pytest.mark.parametrize(("architecture", "role"), EVERY)
def test_halving_any_initializer_changes_the_output(architecture, role):
    model = model_of(architecture, role)
    weights, feed = weights_of(model), feed_for(model, 3)
    opened = opened_weights(model)
    before = run(opened, feed)
    halves = {name: np.asarray(value / 2) for name, value in weights.items()}
    effects = {name: distance(run(opened, {**feed, name: half}), before) for name, half in halves.items()}
    dead = [name for name, effect in effects.items() if effect < 2 * HALF_STEP]
    assert not dead


@pytest.mark.parametrize(("architecture", "role"), EVERY)
def test_single_elements_change_the_output_in_single_precision(architecture, role):
    model = single_precision(model_of(architecture, role))
    weights, feed = weights_of(model), feed_for(model, 4, np.float32)
    opened = opened_weights(model)
    before, random = run(opened, feed), np.random.default_rng(5)
    dead = []
    for name, value in weights.items():
        for at in random.integers(0, value.size, 2):
            changed = value.copy()
            changed.flat[at] /= 2
            if distance(run(opened, {**feed, name: changed}), before) < 8 * SINGLE_STEP:
                dead.append((name, int(at)))
    assert not dead


@pytest.mark.parametrize(("architecture", "steps"), [("supercombo-24", 24), ("supercombo-99", 99)])
def test_hidden_state_fed_back_stays_bounded(architecture, steps):
    model = model_of(architecture, "driving_supercombo")
    opened, cut = session(model), slices_of(model)["hidden_state"]
    buffer = np.zeros((1, steps, 512), np.float16)
    for seed in range(6):
        out = run(opened, {**feed_for(model, seed), "features_buffer": buffer})
        assert np.abs(out[:, cut]).max() <= 1
        buffer = np.concatenate([buffer[:, 1:], out[:, None, cut]], axis=1)
    assert np.isfinite(out).all()


def test_pose_has_a_usable_standard_deviation():
    model = model_of("vision-conv+attention", "driving_vision")
    pose = run(session(model), feed_for(model, 1))[0, slices_of(model)["pose"]].astype(np.float32)
    deviations = np.exp(pose[6:])
    assert (deviations > 1e-2).all()
    assert (deviations < 1e2).all()


def test_an_unknown_architecture_is_told_the_nearest():
    with pytest.raises(SourceError, match="supercombo_24") as caught:
        generate("supercombo_24", seed=1, width=WIDTH)
    assert "'supercombo-24'" in caught.value.fix


@pytest.mark.parametrize("width", [-2, 0, 2, 5, 258])
def test_a_width_out_of_range_names_both(width):
    with pytest.raises(SourceError, match=f"from 4 to 256, got {width}") as caught:
        generate("generic-mlp", seed=1, width=width)
    told = int(caught.value.fix.rsplit(" ", 1)[1])
    assert generate("generic-mlp", seed=1, width=told)


REPLAY = """
import sys
import numpy as np
from tinygrad import Tensor
from tinygrad.nn.onnx import OnnxRunner
path, feed, out = sys.argv[1:]
inputs = {name: Tensor(value) for name, value in np.load(feed).items()}
np.save(out, OnnxRunner(path)(inputs)["outputs"].numpy())
"""


@pytest.mark.parametrize("role", ["driving_vision", "driving_policy"])
def test_tinygrad_agrees_with_onnxruntime(role, tmp_path):
    model = model_of("vision-conv+attention", role)
    feed = feed_for(model, 6)
    paths = [tmp_path / name for name in ("model.onnx", "feed.npz", "out.npy")]
    paths[0].write_bytes(model.SerializeToString())
    np.savez(paths[1], **feed)
    environment = {
        "PATH": PATH,
        "DEV": "CPU:X86",
        "CC": "echo",  # it is asked for, and not used
        "PYTHONHASHSEED": "0",
        "NUM_CPU_THREADS": "1",
        "PARALLEL": "0",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    command = [sys.executable, "-c", REPLAY, *map(str, paths)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    want = run(session(model), feed).astype(np.float32)
    assert np.load(paths[2]).astype(np.float32) == pytest.approx(want, abs=0.02)
