"""Compile and verify: every model type, the artifact's ABI, hermetic, reproducible, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import CAMERAS, DEPTHS, DRIVING, HEADS, MORE, POLICY, STEPS, TWINS, WARP, Driver
from contract import HOSTILE, ROOT, Project, as_client, generated, model, with_tinygrad

from rules.keeping.digests import Digests, sha256_of
from rules.keeping.store import Store

PROBE = Path(__file__).with_name("probe.py")
MUTATE = Path(__file__).with_name("mutate.py")
FRAMES = Path(__file__).with_name("frames.py")
TYPES = {
    "vision-conv+attention": ("vision_policy", ["vision", "policy"]),
    "vision-mixer+gru": ("vision_policy", ["vision", "policy"]),
    "multi-policy": ("vision_multi_policy", ["vision", "on_policy", "off_policy"]),
    "supercombo-24": ("supercombo", ["model"]),
    "supercombo-99": ("supercombo", ["model"]),
}
BOTH = [*DRIVING, *(f"{one}-p" for one in TWINS)]
VALIDATIONS = [*BOTH, "monitoring", "mlp"]


# ---- every type


@pytest.mark.parametrize("model_id", VALIDATIONS)
def test_a_fresh_process_saw_what_the_compile_saw(everything: Project, model_id: str) -> None:
    made = everything.record(f"{model_id}_artifact")["facts"]
    seen = everything.record(f"{model_id}_validation")["facts"]
    assert len(seen["replay"]) == (8 if model_id == "mlp" else 16)  # eight frames of each camera
    assert made["replay"] == seen["replay"]
    for what in ("outputs", "state") if model_id != "mlp" else ("outputs",):
        assert not {one[what] for one in seen["replay"]} & {one[what] for one in seen["other"]}
    networks = [one for step in seen["replay"] + seen["other"] for one in step["networks"].values()]
    assert all(one["not_finite"] == 0 and one["spread"] > 0 for one in networks)
    assert {device for one in seen["captures"].values() for device in one["devices"]} <= {"CPU", "NPY"}


@pytest.mark.parametrize("model_id", BOTH)
def test_abi(drive: Driver, model_id: str) -> None:
    driven = drive(model_id)
    architecture = DRIVING[model_id.removesuffix("-p")]
    kind, roles = TYPES[architecture]
    whole = kind == "supercombo"
    plain = driven.abi["plain"]
    assert driven.abi["keys"] == [
        *("'format_version'", "'model_type'", "'metadata'", "'frame_skip'", "'policy_input_keys'"),
        *("'image_history_pipeline'", "'warp_input_keys'", "'behavior_version'"),
        *(() if whole else ("'policy_order'",)),
        *("'run_policy'", "(1928, 1208)", "(1344, 760)"),
    ]
    assert plain["format_version"] == 1
    assert plain["model_type"] == kind
    assert plain["frame_skip"] == (1 if architecture == "supercombo-99" else 4)
    assert plain["behavior_version"] == "v11"
    assert plain["image_history_pipeline"] == driven.contract
    assert plain["warp_input_keys"] == [n for n in WARP[driven.contract] if "frame" not in n]
    handed = ("img", "big_img", "warped")  # what the warp made
    assert plain["policy_input_keys"] == [n for n in POLICY[driven.contract] if n not in handed]
    assert plain.get("policy_order") == (None if whole else [role for role in roles if role != "vision"])
    assert list(driven.abi["metadata"]) == roles


@pytest.mark.parametrize("model_id", BOTH)
def test_starpilot_s_runtime_drives_it(everything: Project, drive: Driver, model_id: str) -> None:
    """By what the artifact says of itself; the probe, which goes by the documents, gets the same numbers."""
    artifact = everything.path(f"compiled/{model_id}_driving_tinygrad.pkl")
    told, arrays = as_client("starpilot", drive.folder, artifact)
    architecture = DRIVING[model_id.removesuffix("-p")]
    for camera in CAMERAS:
        assert told["heads"][camera] == [sorted({*HEADS, *MORE.get(architecture, ())})] * 10
        for step in range(STEPS):
            for index, output in enumerate(drive(model_id).outputs(camera, step)):
                assert (arrays[f"{camera}.{step}.out.{index}"] == output).all()


def test_the_driver_s_runtime_watches(everything: Project, tmp_path: Path) -> None:
    told, arrays = as_client("dmonitoring", tmp_path, everything.path("driver-monitoring"))
    assert {camera: len(frames) for camera, frames in told["heads"].items()} == dict.fromkeys(CAMERAS, 10)
    assert {len(heads) for frames in told["heads"].values() for heads in frames} == {19}
    assert len({arrays[name].tobytes() for name in arrays}) == 20  # every frame, on either camera, its own


@pytest.mark.parametrize(
    ("changed", "missing"),
    [("policy_input_keys", "desire_pulse"), ("warp_input_keys", "frame")],
)
def test_a_runtime_dies_of_a_list_that_names_no_queue(
    everything: Project, tmp_path: Path, changed: str, missing: str
) -> None:
    """What every artifact of ours said once: ONNX inputs, and the frames among the warp's queues."""
    mutated = tmp_path / "mutated.pkl"
    source = everything.path("compiled/pop_driving_tinygrad.pkl")
    with_tinygrad(MUTATE, f"old_{changed}", source, mutated, "{}")
    with pytest.raises(AssertionError, match=f"KeyError: '{missing}'"):
        as_client("starpilot", tmp_path, mutated)


@pytest.mark.parametrize("model_id", BOTH)
def test_captures_insist_on_the_contract(drive: Driver, model_id: str) -> None:
    """The driver has fed queues of the documented depths: a JIT refuses any other shape."""
    driven = drive(model_id)
    dtypes = driven.abi["dtypes"]
    assert sorted(driven.abi["arguments"]["run_policy"]) == sorted(POLICY[driven.contract])
    for camera in ("(1928, 1208)", "(1344, 760)"):
        assert sorted(driven.abi["arguments"][camera]) == sorted(WARP[driven.contract])
        assert dtypes[camera]["tfm"] == dtypes[camera]["big_tfm"] == ["float", "NPY"]
        assert dtypes[camera]["frame"] == dtypes[camera]["big_frame"] == ["unsigned char", "CPU"]
    assert dtypes["run_policy"]["packed_npy_inputs"] == ["float", "NPY"]
    assert dtypes["run_policy"]["feat_q"] == dtypes["run_policy"]["desire_q"] == ["float", "CPU"]
    images = [name for name in POLICY[driven.contract] if "img" in name]
    assert all(dtypes["run_policy"][name] == ["unsigned char", "CPU"] for name in images)


@pytest.mark.parametrize("model_id", BOTH)
def test_queues_and_outputs(drive: Driver, model_id: str) -> None:
    driven = drive(model_id)
    architecture = DRIVING[model_id.removesuffix("-p")]
    _, features, desires = DEPTHS[architecture]
    assert driven.arrays["1344x760.0.feat_q"].shape == (features, 1, 512)
    assert driven.arrays["1344x760.0.desire_q"].shape == (desires, 1, 8)
    outputs = driven.outputs("1344x760", 8)
    assert len(outputs) == len(TYPES[architecture][1])
    assert all(one.dtype == "float32" and one.shape[0] == 1 for one in outputs)
    newest = driven.arrays["1344x760.8.feat_q"][-1, 0]
    fed_back = 7 if TYPES[architecture][0] == "supercombo" else 8  # a supercombo is fed the frame before
    assert (newest == driven.outputs("1344x760", fed_back)[0][0, driven.hidden]).all()


@pytest.mark.parametrize("model_id", ["pop", "elm3", "oak", "ash-p"])
def test_readme_example(everything: Project, model_id: str) -> None:
    """An artifact needs nothing but tinygrad and numpy."""
    said = with_tinygrad(FRAMES, everything.path(f"compiled/{model_id}_driving_tinygrad.pkl")).splitlines()
    assert len(said) == 3
    assert all("True" in line and "False" not in line for line in said)
    imported = [line for line in FRAMES.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert {line.split()[1] for line in imported} == {"math", "pickle", "sys", "numpy", "tinygrad"}


def test_dtype_warnings_are_noted_once_as_information(everything: Project) -> None:
    notes = everything.record("pop_artifact")["facts"]["notes"]
    assert len(notes) == len(set(notes)) > 0
    log = everything.path("logs/pop.log").read_text()
    for note in notes:
        assert log.count(note) == 1
        assert f"information: {note}" in log


def test_artifacts_hold_no_path_of_this_machine(everything: Project) -> None:
    places = (str(everything.folder), str(ROOT), str(Path.home()))
    for path in sorted(everything.path("compiled").glob("*.pkl")):
        content = path.read_bytes()
        assert not [place for place in places if place.encode() in content], path.name


# ---- hermetic, reproducible


def test_neither_shell_nor_place_can_change_an_artifact(everything: Project, tmp_path: Path) -> None:
    """Another workspace, of another length, with a hostile environment: every byte is as it was."""
    catalog = (
        model("pop", generated("vision-conv+attention"), 'since = "v22"')
        + model("mlp", generated("generic-mlp"), 'type = "generic"')
        + "[monitoring]\n"
        + generated("dmonitoring")
        + '[release.v22]\ncontract = "warp"\n'
    )
    project = Project(tmp_path / "another place, lönger" / "with spaces", catalog)
    python = tmp_path / "python"
    python.mkdir()
    (python / "sitecustomize.py").write_text("import os\nos.environ['IMAGE'] = '1'\n")
    hostile = {
        **HOSTILE,
        "HOME": str(tmp_path / "home"),
        "PYTHONPATH": f"{ROOT}:{python}",
        "TMPDIR": str(tmp_path),
    }
    project.doit("-n", "2", env=hostile)
    names = ["compiled/pop_driving_tinygrad.pkl", "compiled/mlp_tinygrad.pkl"]
    names += [f"driver-monitoring/{name}" for name in everything.files("driver-monitoring")]
    assert len(names) == 7
    for name in names:
        assert project.path(name).read_bytes() == everything.path(name).read_bytes(), name
    for record in ("pop_artifact", "pop_validation", "mlp_artifact", "monitoring_source"):
        assert project.record(record)["key"] == everything.record(record)["key"]
    assert not (tmp_path / "home").exists()


def test_a_tinygrad_in_the_way_is_not_compiled_with(yard: Project, tmp_path: Path) -> None:
    """PYTHONPATH may hold any `tinygrad`; the pinned one is used, and nothing is stale."""
    other = tmp_path / "python" / "tinygrad"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('not this one')\n")
    (other / "tensor.py").write_text("")
    assert yard.made("pkl:mlp", env={"PYTHONPATH": f"{ROOT}:{other.parent}"}) == []


def test_two_ids_with_one_source_are_compiled_once(yard: Project) -> None:
    yard.catalog = yard.catalog + model("mlp2", generated("generic-mlp"), 'type = "generic"')
    assert yard.made("pkl:mlp2") == ["candidate:mlp2", "onnx:mlp2", "pkl:mlp2"]
    assert yard.record("mlp2_artifact")["made"] == "restored"
    assert (
        yard.path("compiled/mlp2_tinygrad.pkl").read_bytes()
        == yard.path("compiled/mlp_tinygrad.pkl").read_bytes()
    )
    assert not yard.path("logs/mlp2.log").exists()


def test_a_damaged_worker_package_is_not_run(yard: Project) -> None:
    """The key vouches for the worker's sources, so what runs must be those."""
    packages = sorted(yard.path(".store/workers").glob("*.pyz"))
    assert packages
    for package in packages:
        package.chmod(0o644)
        package.write_bytes(package.read_bytes()[:1000])
    yard.edit('architecture = "generic-mlp", seed = 1', 'architecture = "generic-mlp", seed = 2')
    assert "pkl:mlp" in yard.made("pkl:mlp")


# ---- refused


def plant(yard: Project, model_id: str, how: str, name: str) -> None:
    """Put an altered candidate in place of the compiled one, as a compile that pickled wrongly would."""
    record = yard.record(f"{model_id}_artifact")
    candidate = yard.path(record["outputs"][0]["path"])
    made = yard.folder / "altered"
    if how == "cut":
        made.write_bytes(candidate.read_bytes()[:-100])
    else:
        with_tinygrad(PROBE, "poison", candidate, made, how)
    assert made.read_bytes() != candidate.read_bytes()
    digests = Digests(yard.folder / "digests.log")
    record["outputs"][0] |= {"sha256": sha256_of(made), "size": made.stat().st_size}
    yard.path(f"results/{model_id}_artifact.json").write_text(json.dumps(record))
    sha256 = Store(yard.path(".store"), digests).put(made)
    candidate.unlink()
    shutil.copyfile(Store(yard.path(".store"), digests).path_of(sha256), candidate)
    assert candidate.name == name


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("scale", "differ from the compile's own"),
        ("nan", "not finite"),
        ("zero", "0 as the largest"),
        ("cut", "verify"),
    ],
)
def test_a_candidate_that_misbehaves_never_gets_the_final_name(yard: Project, how: str, told: str) -> None:
    plant(yard, "mlp", how, "mlp_tinygrad.pkl")
    good = yard.path("compiled/mlp_tinygrad.pkl").read_bytes()
    done = yard.doit("pkl:mlp", fails=True)
    assert "mlp" in done.stdout
    assert told in done.stdout
    assert yard.path("compiled/mlp_tinygrad.pkl").read_bytes() == good
    failure = yard.record("mlp_failure")
    assert failure["step"] == "pkl:mlp"
    assert told in failure["cause"]
    assert failure["next"].startswith("doit ")
    assert failure["log"] == "logs/mlp.log"
    assert failure["log_tail"]


def test_a_refused_candidate_without_an_earlier_artifact_leaves_no_final_name(yard: Project) -> None:
    plant(yard, "pop-p", "scale", "pop-p_driving_tinygrad.pkl")
    yard.path("compiled/pop-p_driving_tinygrad.pkl").unlink()
    yard.path("results/pop-p_validation.json").unlink()
    done = yard.doit("--continue", "pkl:pop-p", "pkl:mlp", fails=True)
    assert not yard.path("compiled/pop-p_driving_tinygrad.pkl").exists()
    assert "1 failed (pkl:pop-p)" in done.stdout


def test_one_failing_model_never_stops_the_others(yard: Project) -> None:
    plant(yard, "mlp", "nan", "mlp_tinygrad.pkl")
    yard.catalog = yard.catalog + model("mlp2", generated("generic-mlp", seed=2), 'type = "generic"')
    done = yard.doit("--continue", "pkl:mlp", "pkl:mlp2", fails=True)
    assert yard.path("compiled/mlp2_tinygrad.pkl").exists()
    assert "1 failed (pkl:mlp)" in done.stdout
    assert "mlp_failure.json" in yard.files("results")
    assert "mlp2_failure.json" not in yard.files("results")
