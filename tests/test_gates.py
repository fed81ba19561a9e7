"""Verification: each gate refuses an artifact that no other gate would, and says what is wrong with it."""

import base64
import hashlib
import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from contract import Project, generated, model, with_tinygrad
from jsonschema import Draft202012Validator
from onnx import TensorProto, helper, numpy_helper

from rules import catalog
from rules.catalog import FlagSet, Limits
from rules.errors import ArtifactError
from rules.gates import form
from rules.gates.evidence import Evidence
from rules.graph import Unit
from rules.keeping.digests import Digests, sha256_of
from rules.keeping.store import Store
from rules.keys import key_of
from rules.networks import reference
from rules.steps.verify import GATES, SKIPPABLE, check_released
from rules.tasks import Yard

MUTATE = Path(__file__).with_name("mutate.py")
SCHEMAS = Path(catalog.__file__).parents[1] / "schemas"
COLUMNS = 12
RELEASE = '[release.v22]\ncontract = "warp"\n'
NAN, HUGE = float("nan"), 1000.0


# ---- networks that do as they should not


def network(path: Path, *nodes: Any, slices: dict[str, slice] | None = None, outputs: int = 1) -> None:
    """An ONNX file, `input` (1, 12) → `out0`, … each (1, 12), float32."""
    rows = {
        "row": np.linspace(1, 2, COLUMNS),
        "nothing": np.zeros(COLUMNS),
        "gap": [NAN] + [0.0] * (COLUMNS - 1),
        "far": [HUGE] * 3 + [0.0] * (COLUMNS - 3),
        "mean": np.full((COLUMNS, COLUMNS), 1 / COLUMNS),
    }
    tensors = [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in rows.items()]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes),
        path.stem,
        [value("input", TensorProto.FLOAT, (1, COLUMNS))],
        [value(f"out{number}", TensorProto.FLOAT, (1, COLUMNS)) for number in range(outputs)],
        [one for one in tensors if any(one.name in node.input for node in nodes)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if slices is not None:
        entry = made.metadata_props.add()
        entry.key, entry.value = "output_slices", base64.b64encode(pickle.dumps(slices)).decode()
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path)


def node(kind: str, *names: str) -> Any:
    """A node; the last name is its output."""
    return helper.make_node(kind, names[:-1], names[-1:])


ODD = {  # model → (the gate that refuses it, what it says)
    "gap": ("finite", "12 numbers|1 numbers not finite"),
    "nil": ("zero", "0 as the largest"),
    "flat": ("constant", "a spread of 0"),
    "deaf": ("seed", "the same outputs"),
    "far": ("pose", "translation: expected at most 200, got 1732"),
}


def odd_networks(folder: Path) -> None:
    """Each is compiled faithfully, so that artifact and reference agree."""
    network(folder / "gap.onnx", node("Add", "input", "gap", "out0"))
    other = node("Add", "input", "row", "out1")
    network(folder / "nil.onnx", node("Mul", "input", "nothing", "out0"), other, outputs=2)
    network(folder / "flat.onnx", node("MatMul", "input", "mean", "out0"))
    blank = node("Mul", "input", "nothing", "blank")
    network(folder / "deaf.onnx", blank, node("Add", "blank", "row", "out0"))
    network(folder / "far.onnx", node("Add", "input", "far", "out0"), slices={"pose": slice(0, COLUMNS)})


def mixed_networks(folder: Path) -> None:
    """`mixed` and `other` give six large numbers and six small ones, a thousandth of them; the small ones of
    `other` stand one place on, as an EyeLike that does not look at its `k` moves them."""
    for name, shift in (("mixed", 0), ("other", 1)):
        large, small = np.vsplit(np.eye(COLUMNS, dtype=np.float32), 2)
        weights = np.vstack([1000 * large, np.roll(small, shift, axis=0)])
        constant = helper.make_node("Constant", [], ["weights"], value=numpy_helper.from_array(weights))
        network(folder / f"{name}.onnx", constant, node("MatMul", "input", "weights", "out0"))


def odd_model(name: str, *extra: str) -> str:
    """Its table in the catalog."""
    source = f'source = {{ kind = "file", path = "odd/{name}.onnx", format = "generic" }}\n'
    return model(name, source, 'type = "generic"', *extra)


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One good driving artifact, two good small ones, and the odd ones, compiled. Read only."""
    tables = model("pop", generated("vision-conv+attention"), 'since = "v22"')
    tables += model("mlp", generated("generic-mlp"), 'type = "generic"')
    tables += model("mlp2", generated("generic-mlp", seed=2), 'type = "generic"')
    others = [*ODD, "mixed", "other"]
    project = Project(tmp_path_factory.mktemp("gated"), tables + "".join(map(odd_model, others)) + RELEASE)
    odd_networks(project.folder / "odd")
    mixed_networks(project.folder / "odd")
    project.doit("-n", "2", "pkl:pop", "pkl:mlp", "pkl:mlp2", *(f"candidate:{name}" for name in others))
    return project


@pytest.fixture
def yard(gated: Project, tmp_path: Path) -> Project:
    """A copy of it."""
    return gated.copy(tmp_path / "yard")


def refusals(text: str) -> set[str]:
    """The gates that refuse, by what doit printed or a failure record holds."""
    told = re.search(r"verify refuses the artifact: (.*)", text)
    assert told, text
    return {re.match(r"[a-z]+", fault)[0] for fault in told[1].split("; ")}  # type: ignore[index]


def request_of(project: Project, model_id: str) -> dict[str, Any]:
    """The worker's request for a compile."""
    graph = Yard(project.folder / "models.toml", project.workspace).graph
    unit, source = Unit.of(graph.catalog.models[model_id]), graph.steps[f"onnx:{model_id}"]
    return graph._request("compile", unit, source, {})


def plant(project: Project, model_id: str, made: Path, facts: dict[str, Any] | None = None) -> None:
    """Put `made` where the compile left its candidate, with the compile's facts unless others are given."""
    record = project.record(f"{model_id}_artifact")
    candidate = project.path(record["outputs"][0]["path"])
    record["outputs"][0] |= {"sha256": sha256_of(made), "size": made.stat().st_size}
    record["facts"] |= facts or {}
    project.path(f"results/{model_id}_artifact.json").write_text(json.dumps(record))
    store = Store(project.path(".store"), Digests(project.folder / "digests.log"))
    blob = store.path_of(store.put(made))
    candidate.unlink()
    shutil.copyfile(blob, candidate)


def mutated(project: Project, model_id: str, how: str) -> Path:
    """The model's candidate with one thing changed."""
    record = project.record(f"{model_id}_artifact")
    source, made = project.path(record["outputs"][0]["path"]), project.folder / "mutated"
    if how == "cut":
        made.write_bytes(source.read_bytes()[:-100])
    elif how == "padded":
        made.write_bytes(source.read_bytes() + b"\0" * 100)
    else:
        asked = project.folder / "request.json"
        asked.write_text(json.dumps(request_of(project, model_id)))
        with_tinygrad(MUTATE, how, source, made, asked)
    assert made.read_bytes() != source.read_bytes()
    return made


# ---- each gate, alone


@pytest.mark.parametrize(
    ("gate", "model_id", "how", "told"),
    [
        ("container", "mlp", "cut", "expected read to its end, got "),
        ("container", "mlp", "padded", "100 trailing bytes from byte "),
        ("format", "mlp", "newer_format", "format_version: expected 1, got 2"),
        ("format", "pop", "without_a_key", r"got none of \(1344, 760\)"),
        ("format", "pop", "another_contract", "image_history_pipeline: expected warp, got policy"),
        ("devices", "pop", "warp_elsewhere", "1344x760: expected CPU, NPY, got CPU:1, NPY"),
        ("arguments", "mlp", "renamed_argument", "run_model: expected input, got frames"),
        ("shapes", "mlp", "float_argument", "input: expected float16 1x16, got float32 1x16"),
        ("shapes", "pop", "swapped_cameras", "1344x760 frame: expected uint8 2428928, got uint8 4804608"),
        ("depth", "pop", "another_skip", "frame_skip: expected 4, got 2"),
        ("slices", "mlp", "long_slice", "model.right: expected 4:8 of 8 columns, got 4:9"),
        ("size", "mlp", "ballast", "got 17,[0-9,]+ bytes|got 18,[0-9,]+ bytes"),
        ("client", "pop", "old_policy_input_keys", "it stops after 0: KeyError: 'desire_pulse'"),
        ("client", "pop", "old_warp_input_keys", "it stops after 0: KeyError: 'frame'"),
        ("client", "pop", "too_few_keys", "it stops after 0: .*args mismatch in JIT"),
        ("inputs", "mlp", "writes_to_its_input", "run_model: .*got writes to input"),
        (
            "replay",
            "mlp",
            "wrong_later",
            "outputs of step 2, .*outputs of step 7 differ from the compile's own",
        ),
    ],
)
def test_a_changed_artifact_is_refused_by_one_gate_alone(
    yard: Project, gate: str, model_id: str, how: str, told: str
) -> None:
    plant(yard, model_id, mutated(yard, model_id, how))
    final = yard.path(yard.record(f"{model_id}_validation")["outputs"][0]["path"])
    before = final.read_bytes()
    printed = yard.doit(f"pkl:{model_id}", fails=True).stdout
    assert refusals(printed) == {gate}
    assert re.search(told, printed), printed
    assert final.read_bytes() == before
    assert refusals(yard.record(f"{model_id}_failure")["cause"]) == {gate}


@pytest.mark.parametrize(
    ("flags", "found", "refused"),
    [
        ({"DEV": "QCOM"}, {"run_policy": ["NPY", "QCOM"], "1928x1208": ["NPY", "QCOM"]}, []),
        ({"DEV": "QCOM"}, {"run_policy": ["NPY", "QCOM"], "1928x1208": ["CPU", "NPY"]}, ["1928x1208"]),
        ({"DEV": "QCOM"}, {"run_policy": ["CPU", "QCOM"], "1928x1208": ["QCOM"]}, ["run_policy"]),
        ({"DEV": "QCOM"}, {"run_policy": ["NPY"], "1928x1208": ["QCOM"]}, ["run_policy"]),
        (
            {"DEV": "USB+AMD:LLVM", "WARP_DEV": "QCOM"},
            {"run_policy": ["AMD", "NPY", "QCOM"], "1928x1208": ["NPY", "QCOM"]},
            [],
        ),
        (
            {"DEV": "USB+AMD:LLVM", "WARP_DEV": "QCOM"},
            {"run_policy": ["NPY", "QCOM"], "1928x1208": ["AMD", "NPY", "QCOM"]},
            ["run_policy", "1928x1208"],
        ),
        (
            {"DEV": "USB+AMD:LLVM", "WARP_DEV": "QCOM", "FRAME_DEV": "CPU"},
            {"run_policy": ["AMD", "QCOM"], "1928x1208": ["CPU", "NPY", "QCOM"]},
            [],
        ),
    ],
)
def test_devices_by_flag_set(flags: dict[str, str], found: dict[str, list[str]], refused: list[str]) -> None:
    """A warp captured on CPU has shipped in a QCOM set."""
    assert refused_devices(flags, found) == refused


def test_a_warp_that_keeps_the_queues_finds_them_on_the_networks_device() -> None:
    flags = {"DEV": "USB+AMD:LLVM", "WARP_DEV": "QCOM"}
    found = {"run_policy": ["AMD", "NPY"], "1928x1208": ["AMD", "NPY", "QCOM"]}
    single = {"layout": "starpilot-single"}
    assert refused_devices(flags, found, **single, contract="warp") == []
    assert refused_devices(flags, found, **single, contract="policy") == ["1928x1208"]


def refused_devices(flags: dict[str, str], found: dict[str, list[str]], **request: str) -> list[str]:
    """The captures that the gate on devices refuses."""
    captures = {label: {"devices": devices} for label, devices in found.items()}
    evidence = Evidence(
        request={"cameras": [[1928, 1208]], **request},
        made={},
        seen={"captures": captures},
        flags=FlagSet("some", flags, None),
        limits=Limits(),
        sizes={},
        weights=0,
    )
    return [one.subject for one in form.devices(evidence) if not one.passed]


def test_the_model_of_another_name_is_refused_by_the_reference_alone(yard: Project) -> None:
    """Compiled well, replayed well, and yet not what its ONNX files say."""
    other = yard.record("mlp2_artifact")
    made = yard.folder / "other"
    shutil.copyfile(yard.path(other["outputs"][0]["path"]), made)
    plant(yard, "mlp", made, other["facts"])
    printed = yard.doit("pkl:mlp", fails=True).stdout
    assert refusals(printed) == {"reference"}
    assert re.search(r"model\.left \(column \d\): expected 0\.02, got [0-9.]+; ", printed)


def test_what_is_wrong_beside_large_numbers_is_refused_by_the_reference_alone(yard: Project) -> None:
    """As a share of the head's largest number it is a thousandth."""
    yard.doit("pkl:mixed", "pkl:other")
    other = yard.record("other_artifact")
    plant(yard, "mixed", yard.path(other["outputs"][0]["path"]), other["facts"])
    printed = yard.doit("pkl:mixed", fails=True).stdout
    assert refusals(printed) == {"reference"}
    assert re.search(r"model\.output 0 \(index \d+ of axis 1\): expected 0\.02, got [0-9.]+", printed), (
        printed
    )


def test_a_history_that_is_read_wrongly_is_refused_by_the_reference_alone(yard: Project) -> None:
    """The first run and the replay agree with each other; only the witness knows what was fed."""
    asked, made, told = (yard.folder / name for name in ("request.json", "made", "told.json"))
    asked.write_text(json.dumps(request_of(yard, "pop")))
    with_tinygrad(MUTATE, "short_memory", told, made, asked)
    plant(yard, "pop", made, json.loads(told.read_text()))
    printed = yard.doit("pkl:pop", fails=True).stdout
    assert refusals(printed) == {"reference"}
    assert "policy.plan" in printed
    assert "vision." not in printed


def test_scaled_weights_are_refused_by_replay_and_reference(yard: Project) -> None:
    plant(yard, "mlp", mutated(yard, "mlp", "scaled_weights"))
    assert refusals(yard.doit("pkl:mlp", fails=True).stdout) == {"replay", "reference"}


def test_odd_networks_are_each_refused_by_one_gate_alone(yard: Project) -> None:
    yard.doit("--continue", *(f"pkl:{name}" for name in ODD), fails=True)
    for name, (gate, told) in ODD.items():
        cause = yard.record(f"{name}_failure")["cause"]
        assert refusals(cause) == {gate}, cause
        assert re.search(told, cause), cause
        assert not yard.path(f"compiled/{name}_tinygrad.pkl").exists()


def test_every_gate_has_been_seen_to_refuse_alone() -> None:
    marks = test_a_changed_artifact_is_refused_by_one_gate_alone.pytestmark  # type: ignore[attr-defined]
    seen = {row[0] for row in marks[0].args[1]} | {gate for gate, _ in ODD.values()} | {"reference"}
    seen.add("operators")  # tests/test_operators.py
    assert seen == set(GATES)


def test_what_was_built_with_other_key_lists_is_stale_and_why_says_so(yard: Project) -> None:
    record = yard.record("pop_artifact")
    del record["content"]["settings"]["form"]
    record["key"] = key_of(record["content"])
    yard.path("results/pop_artifact.json").write_text(json.dumps(record))
    told = yard.doit("why", "pop", "candidate").stdout
    assert "form nothing → key lists name the runtime's queues; nothing else" in told


# ---- limits and exceptions that the catalog states


def test_a_model_may_skip_a_gate_by_name(yard: Project) -> None:
    yard.edit(odd_model("nil"), odd_model("nil", 'skip_gates = ["zero"]'))
    yard.doit("pkl:nil")
    facts = yard.record("nil_validation")["facts"]
    assert facts["skipped"] == ["zero"]
    assert {one["gate"] for one in facts["gates"]} == set(GATES) - {"zero", "pose", "depth", "slices"}
    yard.edit('skip_gates = ["zero"]', 'skip_gates = ["finite"]')
    refused = yard.doit("pkl:nil", fails=True)
    assert "models.nil.skip_gates[0]" in refused.stderr


def test_limits_come_from_the_catalog(yard: Project) -> None:
    yard.catalog = yard.catalog + "[verify]\npose = { translation = 2000 }\nsize = { least = 1000 }\n"
    printed = yard.doit("pkl:mlp", fails=True).stdout
    assert refusals(printed) == {"size"}
    yard.edit("least = 1000", "least = 0.5")
    yard.doit("pkl:far")
    found = yard.record("far_validation")["facts"]["gates"]
    (translation,) = [one for one in found if one["subject"] == "model translation"]
    assert 1700 < translation["value"] < 1800
    assert translation["limit"] == "at most 2000"


def test_tolerance_is_that_of_the_flag_set_and_the_head(yard: Project) -> None:
    yard.edit('DEV = "CPU:X86"\n', 'DEV = "CPU:X86"\ntolerance = { default = 0.03, right = 1e-9 }\n')
    printed = yard.doit("pkl:mlp", fails=True).stdout
    assert re.search(r"reference of model\.right \(column \d\): expected 1e-09, got [0-9.e-]+;", printed)
    yard.edit("right = 1e-9", "right = 0.01")
    yard.doit("pkl:mlp")
    gates = yard.record("mlp_validation")["facts"]["gates"]
    limits = {one["subject"]: one["limit"] for one in gates if one["gate"] == "reference"}
    left, right = (limits.pop(f"model.{head} correlation") for head in ("left", "right"))
    assert limits == {"model.left": 0.03, "model.right": 0.01}
    assert (left, right) == pytest.approx((0.955, 0.995))


def test_float32_all_through_is_held_to_float32(yard: Project) -> None:
    """Without float16 in the flags or the file, the default is a ten-thousandth."""
    yard.catalog = yard.catalog + "[verify]\npose = { translation = 2000 }\n"
    yard.edit("FLOAT16 = 1", "FLOAT16 = 0")
    yard.doit("pkl:far")
    gates = yard.record("far_validation")["facts"]["gates"]
    head, correlation = (one for one in gates if one["gate"] == "reference")
    assert (head["subject"], head["limit"]) == ("model.pose", 1e-4)
    assert head["value"] < 1e-6
    assert 1 - 1e-6 < correlation["limit"] <= correlation["value"]


def test_the_catalog_knows_the_gates_that_may_be_skipped() -> None:
    schema = json.loads((SCHEMAS / "models.schema.json").read_text())
    assert schema["$defs"]["skip_gates"]["items"]["enum"] == list(SKIPPABLE)
    assert set(SKIPPABLE) < set(GATES)


# ---- the record


def test_the_record_lists_every_gate_with_value_and_limit(gated: Project) -> None:
    facts = gated.record("pop_validation")["facts"]
    assert {one["gate"] for one in facts["gates"]} == set(GATES)
    assert facts["verified_on"]["device"] == "CPU"
    assert facts["reference"].startswith("onnxruntime ")
    for gate in ("replay", "devices", "shapes"):
        subjects = " ".join(one["subject"] for one in facts["gates"] if one["gate"] == gate)
        assert "1928x1208" in subjects
        assert "1344x760" in subjects
    heads = {one["subject"] for one in facts["gates"] if one["gate"] == "reference"}
    assert {"vision.pose", "vision.lane_lines", "policy.plan", "policy.desire_state"} <= heads
    assert {f"{head} correlation" for head in heads if not head.endswith(" correlation")} <= heads
    (plan,) = [one for one in facts["gates"] if one["subject"] == "policy.plan"]
    assert re.fullmatch(r"(std )?(position|velocity|acceleration|euler|rate)\.[xyz]", plan["group"])
    assert [len(facts[name]) for name in ("replay", "other")] == [16, 2]


def test_records_are_as_their_schema_says(gated: Project) -> None:
    schema = json.loads((SCHEMAS / "record.schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    kinds = {f"_{kind}": kind for kind in ("source", "artifact", "validation", "failure")}
    for path in sorted(gated.path("results").glob("*.json")):
        kind = next((kind for end, kind in kinds.items() if path.stem.endswith(end)), "record")
        checker = Draft202012Validator({"$ref": f"#/$defs/{kind}", "$defs": schema["$defs"]})
        assert list(checker.iter_errors(json.loads(path.read_text()))) == []


def test_what_was_verified_elsewhere_is_not_released(yard: Project) -> None:
    path = yard.path("results/pop_validation.json")
    record = json.loads(path.read_text())
    record["facts"]["verified_on"]["device"] = "CL"
    path.write_text(json.dumps(record))
    printed = yard.doit("release:v22", fails=True).stdout
    assert "pop: no release takes it: expected it to be verified on CPU, got CL" in printed
    assert "doit -a pkl:pop" in printed
    assert not yard.path("manifests").exists()


def test_an_artifact_of_which_no_device_is_told_is_not_released() -> None:
    flags = FlagSet("qcom", {"DEV": "QCOM"}, "device:QCOM")
    check_released("pop", {"verified_on": {"device": "QCOM"}}, flags)
    for facts in ({}, {"verified_on": None}, {"verified_on": {"device": "CPU"}}):
        with pytest.raises(ArtifactError, match="expected it to be verified on QCOM"):
            check_released("pop", facts, flags)


# ---- the reference


def half_network(path: Path) -> None:
    """float16 in every place that may hold it: input, output, initializer, constant, cast, a branch."""
    tensor = numpy_helper.from_array(np.array([0.1, 0.2, 0.3], np.float16), "weight")
    constant = numpy_helper.from_array(np.array([1 / 3], np.float16), "third")
    value = helper.make_tensor_value_info
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["inner"], value=constant), node("Mul", "sum", "inner", "product")],
        "branch",
        [],
        [value("product", TensorProto.FLOAT16, (1, 3))],
    )
    graph = helper.make_graph(
        [
            node("Add", "input", "weight", "sum"),
            helper.make_node("If", ["yes"], ["chosen"], then_branch=branch, else_branch=branch),
            helper.make_node("Cast", ["chosen"], ["out"], to=TensorProto.FLOAT16),
        ],
        "half",
        [value("input", TensorProto.FLOAT16, (1, 3))],
        [value("out", TensorProto.FLOAT16, (1, 3))],
        [tensor, numpy_helper.from_array(np.array(True), "yes")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_the_reference_computes_in_float32(tmp_path: Path) -> None:
    half_network(tmp_path / "half.onnx")
    found = reference.Network({"path": str(tmp_path / "half.onnx"), "output_slices": None})
    assert found.half
    given = np.array([[1.0001, 2, 3]], np.float32)  # 1.0001 is 1 in float16
    weight = np.array([0.1, 0.2, 0.3], np.float16).astype(np.float64)
    (out,) = found([given])
    assert out.dtype == np.float32
    expected = (given.astype(np.float64) + weight) * float(np.float16(1 / 3))
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_the_reference_takes_and_gives_single_numbers(tmp_path: Path) -> None:
    path, value = tmp_path / "scalar.onnx", helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["a", "b"], ["out"])]
    ends = [value(name, TensorProto.FLOAT, ()) for name in ("a", "b", "out")]
    graph = helper.make_graph(nodes, "scalar", ends[:2], ends[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    (out,) = reference.Network({"path": str(path), "output_slices": None})([np.float32(1), np.float32(2)])
    assert (out.shape, float(out)) == ((), 3)


def test_pose_by_hand() -> None:
    rows = [np.array([3, 4, 0, 0, 0, 1, 0, 0, 0, -1, -1, 12.0]), np.array([0.0] * 12)]
    found = reference.pose_of(rows)
    assert found["translation"] == pytest.approx(5)
    assert found["rotation"] == pytest.approx(1)
    assert found["translation_std"] == pytest.approx(3**0.5)
    assert found["rotation_std"] == pytest.approx(np.exp(11), rel=1e-4)  # the exponent is clipped
    assert found["least_std"] == pytest.approx(np.exp(-1))
    assert reference.pose_of([np.array([NAN] + [0.0] * 11)])["translation"] is None


def test_what_the_worker_observed_is_checked_before_it_is_read(tmp_path: Path) -> None:
    half_network(tmp_path / "half.onnx")
    networks = {"model": {"path": str(tmp_path / "half.onnx"), "output_slices": None}}
    observed = tmp_path / "observed.npz"
    given = np.array([[1, 2, 3]], np.float16)
    np.savez(observed, **{"cam/1/model/in/0": given, "cam/1/model/out/0": given})
    sha256 = hashlib.sha256(observed.read_bytes()).hexdigest()
    with reference.prepared(networks, tmp_path / "log", "pop") as child:
        assert child.compare(observed, sha256)["heads"]["model.output 0"]["error"] > 0.5
    with (
        reference.prepared(networks, tmp_path / "log", "pop") as child,
        pytest.raises(ArtifactError, match=f"expected sha256 {'0' * 64}, got {sha256}"),
    ):
        child.compare(observed, "0" * 64)


def test_a_reference_that_cannot_run_names_the_cause(tmp_path: Path) -> None:
    networks = {"model": {"path": str(tmp_path / "gone.onnx"), "output_slices": None}}
    with (
        reference.prepared(networks, tmp_path / "log", "pop") as child,
        pytest.raises(ArtifactError, match=r"pop: the reference cannot be run: .*gone\.onnx"),
    ):
        child.compare(tmp_path / "observed.npz", "0" * 64)
