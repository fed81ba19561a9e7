"""Static inspection: real artifacts told apart, our own described, damage and hostile bytes judged."""

import hashlib
import json
import os
import pickle
import pickletools
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from assembler import DTYPE, NODE, Call, New, assembled, emitted, jit, number, text
from contract import Project, generated, model
from fuzz_inspection import fuzz, fuzz_loading, out_of_band, samples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sandbox import Sandbox, made

from rules.commands.inspect import Inspect, lines
from rules.errors import ArtifactError
from rules.inspection import Report, inspect, opcodes
from rules.inspection.artifact import expectations
from rules.releasing.parts import split

DATA = os.environ.get("MODELYARD_DATA")
needs_data = pytest.mark.skipif(DATA is None, reason="MODELYARD_DATA names no folder with real artifacts")
relaxed = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def real(name: str) -> Path:
    return Path(DATA or "") / name


POLICY = ["big_img", "desire_q", "feat_q", "img", "packed_npy_inputs"]
WARP = ["big_frame", "big_img_q", "big_tfm", "frame", "img_q", "tfm"]


def driving(**changes: Any) -> dict[Any, Any]:
    return {
        "format_version": 1,
        "model_type": "supercombo",
        "metadata": {"model": {"input_shapes": {"img": (1, 12, 128, 256)}}},
        "frame_skip": 4,
        "behavior_version": "v15",
        "image_history_pipeline": "warp",
        "warp_input_keys": WARP,
        "run_policy": jit(POLICY, "QCOM"),
        (1928, 1208): jit(WARP, "QCOM", 1),
        (1344, 760): jit(WARP, "QCOM", 1),
        **changes,
    }


@pytest.fixture
def put(tmp_path: Path) -> Any:
    def written(content: bytes, name: str = "x_tinygrad.pkl") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return written


def shown(report: Report) -> str:
    return "\n".join(lines(report))


# ---- real artifacts


@needs_data
def test_the_two_real_artifacts_are_told_apart() -> None:
    monitoring = inspect(real("artifacts/dm_warp_1344x760_tinygrad.pkl"))
    driving_warp = inspect(real("artifacts/warp_1344x760_tinygrad.pkl"))
    assert (monitoring.verdict, driving_warp.verdict) == ("ok", "ok")
    assert (monitoring.layout, monitoring.role) == ("dm", "warp")
    assert (driving_warp.layout, driving_warp.role) == ("openpilot-split", "warp")
    assert monitoring.jits[0].devices == ("NPY", "QCOM")
    assert driving_warp.jits[0].devices == ("CPU", "NPY")
    assert monitoring.cameras == driving_warp.cameras == ("1344x760",)
    assert driving_warp.contract == "warp"
    assert expectations(monitoring, ["QCOM"]) == []
    assert expectations(driving_warp, ["QCOM"]) == ["expected device QCOM, got jit captured on CPU"]


@needs_data
def test_real_artifacts_say_that_another_tinygrad_built_them() -> None:
    report = inspect(real("artifacts/warp_1344x760_tinygrad.pkl"))
    assert "CapturedJit takes 6 arguments, 0.14.0's takes 4" in report.tinygrad
    assert "0.14.0 pickles no ExecItem" in report.tinygrad
    assert "does NOT load with the tinygrad here, it needs another: " in shown(report)
    other = inspect(real("artifacts/dm_warp_1344x760_tinygrad.pkl"))
    assert "CallInfo takes 6 arguments, 0.14.0's takes 5" in other.tinygrad


@needs_data
def test_real_artifacts_show_inputs_and_kernels() -> None:
    (monitoring,) = inspect(real("artifacts/dm_warp_1344x760_tinygrad.pkl")).jits
    assert [(one.shape, one.dtype, one.device) for one in monitoring.inputs] == [
        ((2428928,), "uint8", "QCOM"),
        ((3, 3), "float32", "NPY"),
    ]
    assert monitoring.kernels == 1
    (warp,) = inspect(real("artifacts/warp_1344x760_tinygrad.pkl")).jits
    assert warp.arguments == ("0", "1", "2", "3", "4", "5")
    assert warp.inputs[0].shape == (30, 128, 256)
    assert warp.kernels == 10


@needs_data
@pytest.mark.parametrize("name", ["driving_policy", "driving_vision", "dmonitoring_model"])
def test_real_metadata(name: str) -> None:
    report = inspect(real(f"metadata/{name}_metadata.pkl"))
    assert (report.verdict, report.layout, report.globals) == ("ok", "metadata", ("builtins.slice",))
    assert report.shapes["model"]


@needs_data
def test_nothing_is_imported_to_inspect() -> None:
    program = (
        "import sys; from pathlib import Path; from rules.inspection import inspect;"
        "report = inspect(Path(sys.argv[1])); assert report.verdict == 'ok';"
        "bad = {'tinygrad', 'numpy', 'pickle', '_pickle', 'onnx'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(real("artifacts/warp_1344x760_tinygrad.pkl"))], check=True
    )


# ---- artifacts that this project makes


def test_an_artifact_of_ours_needs_no_other_tinygrad(tmp_path: Path) -> None:
    project = Project(tmp_path, model("small", generated("generic-mlp"), 'type = "generic"'))
    project.doit("pkl:small")
    report = inspect(project.path("compiled/small_tinygrad.pkl"))
    captures = project.record("small_artifact")["facts"]["captures"]
    assert (report.verdict, report.layout, report.model_type) == ("ok", "generic", "generic")
    assert report.tinygrad == ()
    (one,) = report.jits
    (recorded_jit,) = captures.values()
    assert list(captures) == [one.label]
    assert list(one.devices) == recorded_jit["devices"]
    assert list(one.arguments) == list(recorded_jit["inputs"])
    assert one.kernels == recorded_jit["kernels"]
    declared = report.shapes["model"]
    assert {i.name: list(i.shape or ()) for i in one.inputs} == declared
    assert report.weights_bytes > 0
    _is_told_as_recorded(project, Path("artifacts/compiled/small_tinygrad.pkl"))


def _is_told_as_recorded(project: Project, path: Path) -> None:
    """By its sha256, and by what the workspace's record says of it, which a copy elsewhere has none of."""
    artifact = project.folder / path
    sha256 = hashlib.sha256(artifact.read_bytes()).hexdigest()
    told = project.doit("inspect", str(path)).stdout
    assert told.startswith("small_tinygrad.pkl: ok as data; loads with the tinygrad here\n")
    assert sha256 in told and "it is what results/small_validation.json says" in told
    known = json.loads(project.doit("inspect", "--json", str(path)).stdout)
    assert (known["sha256"], known["loads"], known["record"]["met"]) == (sha256, True, True)
    copy = str(shutil.copy(artifact, project.folder / "small_tinygrad.pkl"))
    assert json.loads(project.doit("inspect", "--json", copy).stdout)["record"] is None
    changed = artifact.read_bytes() + b"x"
    artifact.unlink()  # the store has the same bytes
    artifact.write_bytes(changed)
    told = project.doit("inspect", str(path), fails=True).stdout
    found = hashlib.sha256(changed).hexdigest()
    assert f"it is not what results/small_validation.json says: expected sha256 {sha256}, got {found}" in told


# ---- meaning


def test_a_driving_artifact_is_described(put: Any) -> None:
    report = inspect(put(assembled(driving())))
    assert (report.verdict, report.layout, report.contract) == ("ok", "starpilot-single", "warp")
    assert (report.format_version, report.model_type, report.frame_skip) == (1, "supercombo", 4)
    assert (report.cameras, report.behavior_version) == (("1928x1208", "1344x760"), "v15")
    policy = report.jits[0]
    assert (policy.label, policy.devices, policy.kernels) == ("run_policy", ("QCOM",), 2)
    assert policy.arguments == tuple(POLICY)
    assert policy.inputs[0].shape == (3, 5)
    assert report.weights_bytes == 3 * 16
    assert json.loads(json.dumps(report.as_json()))["jits"][1]["label"] == "1928x1208"


def test_a_lone_cpu_warp_in_a_qcom_artifact_fails_the_expectation(put: Any) -> None:
    report = inspect(put(assembled(driving() | {(1344, 760): jit(WARP, "CPU")})))
    assert expectations(report, ["QCOM"]) == ["expected device QCOM, got 1344x760 captured on CPU"]
    assert expectations(report, ["qcom", "CPU"]) == []


def test_a_contract_that_contradicts_the_arguments_is_inconsistent(put: Any) -> None:
    report = inspect(put(assembled(driving(image_history_pipeline="policy"))))
    assert report.verdict.startswith("inconsistent contract: image_history_pipeline: policy")
    assert report.exit_code == 1


def test_the_contract_is_known_by_arguments_alone(put: Any) -> None:
    older = {k: v for k, v in driving().items() if k not in ("image_history_pipeline", "warp_input_keys")}
    assert inspect(put(assembled(older))).contract == "warp"
    newer = older | {"run_policy": jit(["warped", "feat_q"], "QCOM")}
    newer |= {
        camera: jit(["tfm", "big_tfm", "frame", "big_frame"], "QCOM")
        for camera in ((1928, 1208), (1344, 760))
    }
    assert inspect(put(assembled(newer))).contract == "policy"


@pytest.mark.parametrize(
    ("names", "layout"),
    [
        (["input_img", "calib"], ("dm", "model")),
        (["big_img", "img"], ("openpilot-split", "vision")),
        (["desire", "features_buffer"], ("openpilot-split", "policy")),
        (["big_frame", "big_tfm", "frame", "tfm"], ("openpilot-split", "warp")),
        (["audio"], ("generic", None)),
    ],
)
def test_single_jits_are_known_by_their_arguments(
    put: Any, names: list[str], layout: tuple[str, Any]
) -> None:
    report = inspect(put(assembled(jit(names, "CPU"))))
    assert (report.layout, report.role) == layout


def test_iqpilot_has_no_format_version(put: Any) -> None:
    held = {key: value for key, value in driving().items() if key != "format_version"}
    assert inspect(put(assembled(held))).layout == "iqpilot-supercombo"


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_numpy_arrays_are_honest(put: Any, protocol: int) -> None:
    import numpy as np

    held = {"matrix": np.eye(3, dtype=np.float32), "scalar": np.float64(2), "turned": np.ones((2, 3)).T}
    report = inspect(put(pickle.dumps(held, protocol)))
    assert report.verdict == "ok"
    assert any(name.startswith("numpy.") for name in report.globals)


FRAMES = {"1344x760": 2_428_928, "1928x1208": 4_804_608}


@pytest.mark.parametrize("camera", FRAMES)
def test_a_camera_is_that_of_the_frames(put: Any, camera: str) -> None:
    content = assembled(jit(["0", "1"], "QCOM", frame=FRAMES[camera]))
    report = inspect(put(content, f"dm_warp_{camera}_tinygrad.pkl"))
    assert (report.verdict, report.cameras) == ("ok", (camera,))
    unnamed = inspect(put(content, "dm_warp_tinygrad.pkl"))
    assert (unnamed.verdict, unnamed.cameras) == ("ok", (camera,))


@pytest.mark.parametrize(
    ("name", "frame", "problem"),
    [
        (
            "9999x9999",
            2_428_928,
            "the name says 9999x9999, its frames of 2,428,928 bytes are those of 1344x760",
        ),
        (
            "1344x760",
            4_804_608,
            "the name says 1344x760, its frames of 4,804,608 bytes are those of 1928x1208",
        ),
        (
            "1344x760",
            4_804_609,
            "the name says 1344x760, its frames of 4,804,609 bytes are of no camera known",
        ),
    ],
)
def test_a_name_that_contradicts_the_frames_is_told(put: Any, name: str, frame: int, problem: str) -> None:
    report = inspect(put(assembled(jit(["0", "1"], "QCOM", frame=frame)), f"dm_warp_{name}_tinygrad.pkl"))
    assert report.verdict.startswith(f"inconsistent camera: {problem}")
    assert name not in report.cameras
    assert report.exit_code == 1


def test_a_camera_that_the_artifact_does_not_tell_is_not_taken_from_the_name(put: Any) -> None:
    report = inspect(put(assembled(jit(["0", "1"], "QCOM")), "dm_warp_1344x760_tinygrad.pkl"))
    assert (report.verdict, report.cameras) == ("ok", ())


def test_a_key_that_contradicts_its_frames_is_told(put: Any) -> None:
    exchanged = {
        (1928, 1208): jit(WARP, "QCOM", frame=FRAMES["1344x760"]),
        (1344, 760): jit(WARP, "QCOM", frame=FRAMES["1344x760"]),
    }
    report = inspect(put(assembled(driving() | exchanged)))
    assert report.verdict.startswith("inconsistent camera: the key says 1928x1208")
    assert len(report.problems) == 1


@needs_data
def test_a_real_warp_that_was_renamed_is_told(put: Any) -> None:
    content = real("artifacts/warp_1344x760_tinygrad.pkl").read_bytes()
    report = inspect(put(content, "warp_9999x9999_tinygrad.pkl"))
    assert report.verdict.startswith("inconsistent camera: the name says 9999x9999")
    assert report.cameras == ("1344x760",)
    assert report.jits[0].inputs[1].shape == (2_428_928,)


def test_output_slices_are_shown(put: Any, capsys: pytest.CaptureFixture[str]) -> None:
    slices = {"plan": slice(0, 990), "pad": slice(-2, None), "odd": slice(1, 9, 2)}
    metadata = {"output_slices": slices, "input_shapes": {"img": (1, 2)}}
    told = "plan [0:990], pad [-2:], odd [1:9:2]"
    path = put(pickle.dumps(metadata), "driving_policy_metadata.pkl")
    assert f"model heads    {told}" in shown(inspect(path))
    assert Inspect().parse_execute([str(path), "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)["output_slices"]
    assert as_json == {"model": {"plan": [0, 990, None], "pad": [-2, None, None], "odd": [1, 9, 2]}}
    by_role = inspect(put(pickle.dumps({"metadata": {"policy": metadata}, "run_policy": None})))
    assert f"policy heads   {told}" in shown(by_role)
    flat = inspect(put(pickle.dumps({"metadata": metadata, "run_policy": None})))
    assert list(flat.output_slices) == ["model"]
    assert flat.shapes == {"model": {"img": [1, 2]}}


# ---- damage


def test_a_truncated_file(put: Any) -> None:
    report = inspect(put(pickle.dumps(list(range(1000)), 4)[:-5]))
    assert report.verdict.startswith("truncated at byte")
    assert report.exit_code == 2


def test_trailing_bytes(put: Any) -> None:
    sound = pickle.dumps({}, 4)
    report = inspect(put(sound + b"xyz"))
    assert (report.verdict, report.exit_code) == (f"trailing bytes: 3 after byte {len(sound)}", 1)


def test_a_git_lfs_pointer(put: Any) -> None:
    oid = "a" * 64
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 12\n"
    report = inspect(put(pointer.encode()))
    assert report.verdict == f"not a pickle, it is a Git LFS pointer (oid sha256:{oid}, size 12)"
    assert report.exit_code == 2


@pytest.mark.parametrize(
    "content", [b"", b"\x08\x07\x12\x07pytorch", b"<!DOCTYPE html>", b"PK\x03\x04", b"\x80"]
)
def test_what_is_no_pickle(put: Any, content: bytes) -> None:
    report = inspect(put(content))
    assert report.verdict.startswith(("not a pickle", "truncated at byte 1"))
    assert report.exit_code == 2


def test_a_missing_file_and_a_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected an artifact, got nothing"):
        inspect(tmp_path / "none.pkl")
    with pytest.raises(ArtifactError, match="got a folder"):
        inspect(tmp_path)


# ---- parts


@pytest.fixture
def in_parts(tmp_path: Path) -> Path:
    whole = tmp_path / "m_tinygrad.pkl"
    whole.write_bytes(assembled(driving()))
    split(whole, tmp_path / "parts", part_size=1000, force=True)
    return tmp_path / "parts" / whole.name


@pytest.mark.parametrize("suffix", ["", ".sha256", ".p00", ".p02"])
def test_parts_are_read_through_any_of_their_names(in_parts: Path, suffix: str) -> None:
    report = inspect(in_parts.with_name(in_parts.name + suffix))
    assert (report.verdict, report.layout, report.name) == ("ok", "starpilot-single", "m_tinygrad.pkl")
    assert len(report.files) > 3
    assert report.sha256 is not None


def test_a_changed_part_is_found_by_the_sha256(in_parts: Path) -> None:
    part = in_parts.with_name(in_parts.name + ".p01")
    content = bytearray(part.read_bytes())
    content[content.index(b"tinygrad")] ^= 1
    part.chmod(0o644)
    part.write_bytes(content)
    report = inspect(in_parts)
    assert any(one.what.startswith("wrong sha256: expected") for one in report.problems)
    assert report.exit_code != 0


def test_a_missing_part_is_named(in_parts: Path) -> None:
    in_parts.with_name(in_parts.name + ".p01").unlink()
    report = inspect(in_parts)
    assert (report.verdict, report.exit_code) == ("part m_tinygrad.pkl.p01 is missing", 2)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "other.pkl", "a\0b"])
def test_a_checksum_that_names_another_place_is_refused(in_parts: Path, name: str) -> None:
    checksum = in_parts.with_name(in_parts.name + ".sha256")
    checksum.write_text(f"{'0' * 64}  {name}\n")
    report = inspect(checksum)
    assert report.exit_code == 2
    assert report.problems[0].kind == "checksum"


def test_native_chunks_are_read(tmp_path: Path) -> None:
    content = assembled(driving())
    (tmp_path / "m.pkl.chunk01of02").write_bytes(content[:700])
    (tmp_path / "m.pkl.chunk02of02").write_bytes(content[700:])
    (tmp_path / "m.pkl.chunkmanifest").write_text("2")
    assert inspect(tmp_path / "m.pkl.chunkmanifest").layout == "starpilot-single"
    (tmp_path / "m.pkl.chunk02of02").unlink()
    assert inspect(tmp_path / "m.pkl.chunk01of02").verdict == "chunk m.pkl.chunk02of02 is missing"


# ---- out of band


def test_out_of_band_is_walked_to_the_end(put: Any) -> None:
    report = inspect(put(out_of_band({}, [b"a" * 100, b"", b"b"])))
    assert (report.verdict, report.out_of_band, report.payload_bytes) == ("ok", True, 101)


def test_out_of_band_weights_are_counted(put: Any) -> None:
    dtype = Call("tinygrad.dtype.DType", 14, 32, "float", "f")
    raw = emitted(Call("tinygrad.device.Buffer", "AMD", 4, dtype, None, None, "HERE", 1))
    raw = b"\x80\x05" + raw.replace(text("HERE"), b"\x97") + b"."
    content = struct.pack("<q", len(raw)) + raw + struct.pack("<q", 4000) + bytes(4000)
    assert inspect(put(content)).weights_bytes == 4000


@pytest.mark.parametrize("cut", [1, 50, 105, 109, 115, 118])
def test_a_truncated_tail_is_never_zeros(put: Any, cut: int) -> None:
    report = inspect(put(out_of_band({}, [b"a" * 100, b"b" * 10])[:-cut]))
    assert report.verdict.startswith(("truncated at byte", "out-of-band buffer 1 is missing"))
    assert report.exit_code == 2


@pytest.mark.parametrize("length", [-1, -(2**63), 2**63 - 1, 2**31, 0])
@pytest.mark.parametrize("where", ["opcodes", "buffer"])
def test_impossible_out_of_band_lengths(put: Any, length: int, where: str) -> None:
    content = bytearray(out_of_band({}, [b"a" * 100]))
    at = 0 if where == "opcodes" else len(content) - 108
    content[at : at + 8] = struct.pack("<q", length)
    report = inspect(put(bytes(content)))
    assert report.exit_code == 2
    assert report.verdict != "ok"


def test_buffers_that_nothing_uses(put: Any) -> None:
    report = inspect(put(out_of_band({}, [b"a"]) + struct.pack("<q", 3) + b"abc"))
    assert report.verdict == "trailing bytes: 1 out-of-band buffer that nothing uses"


# ---- hostile

IMPORT_OS = b"cos\nsystem\n"
HOSTILE = {
    "reduce": b"\x80\x02" + IMPORT_OS + b"X\x04\0\0\0true\x85R.",
    "protocol 0": IMPORT_OS + b"(S'true'\ntR.",
    "inst": b"\x80\x02(X\x04\0\0\0trueios\nsystem\n.",
    "obj": b"\x80\x02(" + IMPORT_OS + b"X\x04\0\0\0trueo.",
    "newobj_ex": b"\x80\x04" + IMPORT_OS + b")}\x92.",
    "named only": b"\x80\x02" + IMPORT_OS + b".",
    "thrown away": b"\x80\x02" + IMPORT_OS + b"X\x04\0\0\0true\x85R0N.",
    "stack global": b"\x80\x04" + text("os") + text("system") + b"\x93.",
    "then truncated": b"\x80\x02" + IMPORT_OS + b"X\x04\0\0\0true\x85R",
    "then garbage": b"\x80\x02" + IMPORT_OS + b"X\x04\0\0\0true\x85R\xff",
}


@pytest.mark.parametrize("how", HOSTILE)
def test_a_call_of_the_shell_is_named(put: Any, how: str) -> None:
    report = inspect(put(HOSTILE[how]))
    assert report.verdict == "suspicious global os.system"
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (Call("tinygrad.helpers.subprocess.run", ["true"]), "global tinygrad.helpers.subprocess.run"),
        (Call("tinygrad.helpers._reconstruct_code"), "global tinygrad.helpers._reconstruct_code"),
        (Call("tinygrad.runtime.ops_disk.DiskDevice"), "global tinygrad.runtime.ops_disk.DiskDevice"),
        (Call("tinygradevil.device.Buffer"), "global tinygradevil.device.Buffer"),
        (Call("builtins.getattr", "a", "b"), "global builtins.getattr"),
        (Call("builtins.eval", "1"), "global builtins.eval"),
        (Call("builtins.bytearray", 10**12), "call of builtins.bytearray with 1000000000000"),
        (Call("builtins.list", Call("builtins.range", 10**12)), "call of builtins.list"),
        (
            Call("builtins.set", Call("builtins.range", 10**12)),
            "call of builtins.set with what builtins.range returns",
        ),
        (Call("tinygrad.device.Buffer", "DISK:/etc/x", 4), "device 'DISK:/etc/x'"),
        (
            New("tinygrad.device.BufferSpec", state={"external_ptr": 4096}),
            "external_ptr 4096 set on what tinygrad.device.BufferSpec returns",
        ),
    ],
)
def test_dangerous_calls_in_trusted_places_are_named(put: Any, value: Any, verdict: str) -> None:
    report = inspect(put(assembled([value, 1])))
    assert (report.verdict, report.exit_code) == (f"suspicious {verdict}", 1)


@pytest.mark.parametrize(
    ("content", "verdict"),
    [
        (b"\x80\x02Pid\n.", "suspicious persistent id 'id'"),
        (b"\x80\x02\x82\x01.", "suspicious extension code 1"),
        (
            b"\x80\x04" + emitted(Call("functools.partial", Call("builtins.slice", 1))) + b".",
            "functools.partial",
        ),
        (b"\x80\x04" + emitted(Call("builtins.slice", 1)) + b")R.", "call of what builtins.slice returns"),
        (b"\x80\x04" + text("builtins") + text("slice") + b"\x93}b.", "state set on builtins.slice"),
        (b"\x80\x04NN\x93.", "computed import"),
    ],
)
def test_other_ways_to_run_code_are_named(put: Any, content: bytes, verdict: str) -> None:
    report = inspect(put(content))
    assert verdict in report.verdict
    assert report.exit_code == 1


def sets_item(target: bytes) -> bytes:
    return b"\x80\x04" + target + text("k") + b"Ns."


TENSOR = New("tinygrad.tensor.Tensor", state=(None, {"uop": number(1), "is_param": True, "grad": None}))
SPEC_ARGUMENTS = {"slot": 1, "dtype": DTYPE, "addrspace": None, "device": "CPU"}
# Each loads, or fails late, having done something that an artifact has no business doing.
EFFECTS: dict[str, tuple[bytes, str]] = {
    "an item set on a tensor writes to its device": (
        sets_item(emitted(TENSOR)),
        "suspicious items set on what tinygrad.tensor.Tensor returns",
    ),
    "a parameter on a disk": (
        assembled(New("tinygrad.uop.ops.ParamArg", state={**SPEC_ARGUMENTS, "device": "DISK:/tmp/x"})),
        "suspicious device 'DISK:/tmp/x'",
    ),
    "a parameter on a disk, among others": (
        assembled(New("tinygrad.uop.ops.ParamArg", state={**SPEC_ARGUMENTS, "device": ("CPU", "disk:/x")})),
        "suspicious device 'disk:/x'",
    ),
    "a parameter on no known device": (
        assembled(New("tinygrad.uop.ops.ParamArg", state={**SPEC_ARGUMENTS, "device": "CPU:/tmp/x"})),
        "suspicious device 'CPU:/tmp/x' set on what tinygrad.uop.ops.ParamArg returns",
    ),
    "a node that names a disk": (
        assembled(Call(NODE, Call("tinygrad.uop.Ops", 5), DTYPE, (), "DISK:/tmp/x", None, None)),
        "suspicious device 'DISK:/tmp/x'",
    ),
    "a disk in a long text": (b"\x80\x04" + text("DISK:" + "x" * 5000) + b".", "suspicious device 'DISK:x"),
    "a tensor that is called": (
        assembled(Call("tinygrad.tensor.Tensor", [1, 2], "CPU")),
        "suspicious call of tinygrad.tensor.Tensor",
    ),
    "a tensor of no node": (
        assembled(New("tinygrad.tensor.Tensor", state=(None, {"uop": "x"}))),
        "suspicious uop 'x' set on what tinygrad.tensor.Tensor returns",
    ),
    "a field that no version has": (
        assembled(New("tinygrad.uop.ops.ParamArg", state={**SPEC_ARGUMENTS, "__class__": None})),
        "suspicious field '__class__' set on what tinygrad.uop.ops.ParamArg returns",
    ),
    "state of a class that takes none": (
        assembled(Call(NODE, Call("tinygrad.uop.Ops", 5), DTYPE, (), 1, None, None, state={"op": 1})),
        "suspicious state set on what tinygrad.uop.ops.UOp returns",
    ),
    "an enumeration made anew": (
        assembled(Call("tinygrad.uop.Ops", "NAME", "A B")),
        "suspicious call of tinygrad.uop.Ops with 2 arguments",
    ),
    "a captured function": (
        assembled(Call("tinygrad.engine.jit._TinyJit", "function", None)),
        "suspicious call of tinygrad.engine.jit._TinyJit with 'function'",
    ),
    "a program without machine code is compiled": (
        assembled(
            Call(
                "tinygrad.engine.realize.CompiledRunner",
                New("tinygrad.renderer.ProgramSpec", state={"name": "x", "src": "x", "lib": None}),
            )
        ),
        "suspicious call of tinygrad.engine.realize.CompiledRunner",
    ),
    "a buffer larger than its content": (
        assembled(Call("tinygrad.device.Buffer", "CPU", 10**9, DTYPE, None, None, b"x" * 8, 0)),
        "suspicious call of tinygrad.device.Buffer",
    ),
    "a buffer over memory that is there": (
        assembled(Call("tinygrad.device.Buffer", "CPU", 4, DTYPE, 4096, None, None, 0)),
        "suspicious call of tinygrad.device.Buffer with 4096",
    ),
    "a class where a value stands": (
        assembled(Call(NODE, Call("tinygrad.uop.Ops", 5), DTYPE, ([],), None, None, None)),
        "suspicious call of tinygrad.uop.ops.UOp",
    ),
    "partial": (assembled(Call("functools.partial", 1)), "suspicious global functools.partial"),
    "operator": (assembled(Call("operator.attrgetter", "x")), "suspicious global operator.attrgetter"),
    "copyreg": (assembled(Call("copyreg._reconstructor", 1)), "suspicious global copyreg._reconstructor"),
    "a dotted name": (
        b"\x80\x04" + text("tinygrad.tensor") + text("Tensor.from_url") + b"\x93.",
        "suspicious global tinygrad.tensor.Tensor.from_url",
    ),
    "a class that reads tar files": (
        assembled(New("tinygrad.nn.state.TensorIO")),
        "suspicious global tinygrad.nn.state.TensorIO",
    ),
    "items of a list": (sets_item(b"]"), "suspicious items set on a list"),
    "items of a tuple": (sets_item(b")"), "suspicious items set on a tuple"),
    "members of a dict": (b"\x80\x04}Na.", "suspicious items added to a dict"),
    "members of a tensor": (
        b"\x80\x04" + emitted(TENSOR) + b"Na.",
        "suspicious items added to what tinygrad.tensor.Tensor returns",
    ),
    "members of a set that is a list": (b"\x80\x04](N\x90.", "suspicious items added to a list"),
    "a list appended to a set": (b"\x80\x04\x8fNa.", "suspicious items added to a set"),
    "a tensor as a key": (
        b"\x80\x04}" + emitted(TENSOR) + b"Ns.",
        "suspicious key: what tinygrad.tensor.Tensor returns",
    ),
    "an array of objects": (
        assembled(Call("numpy.dtype", "O8", False, True)),
        "suspicious call of numpy.dtype with 'O8'",
    ),
    "keywords": (
        b"\x80\x04" + text("builtins") + text("slice") + b"\x93)}\x92.",
        "suspicious call of builtins.slice with keywords",
    ),
    "a class of Python 2": (b"\x80\x02(ibuiltins\nset\n.", "suspicious call of builtins.set as Python 2"),
    "an object of Python 2": (b"\x80\x02(cbuiltins\nset\no.", "suspicious call of builtins.set as Python 2"),
}


@pytest.mark.parametrize("how", EFFECTS)
def test_what_loading_does_is_judged(put: Any, how: str) -> None:
    content, verdict = EFFECTS[how]
    report = inspect(put(content))
    assert report.verdict.startswith(verdict)
    assert report.exit_code == 1


def test_a_value_that_the_memo_replaces_is_judged_as_what_it_is(put: Any) -> None:
    tensor = emitted(TENSOR)
    report = inspect(put(b"\x80\x04}q\x000" + tensor + b"q\x000h\x00" + text("k") + b"Ns."))
    assert report.verdict == "suspicious items set on what tinygrad.tensor.Tensor returns"


BOMBS = {
    "2 GB of bytes": b"\x80\x03B\xff\xff\xff\x7f",
    "exabytes of bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**63),
    "a huge frame": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
    "a huge text": b"\x80\x02X\xff\xff\xff\xff",
    "a huge integer": b"\x80\x02\x8b\xff\xff\xff\x7f",
    "a negative integer size": b"\x80\x02\x8b\xff\xff\xff\xff.",
    "a memo index": b"\x80\x02Nr\xff\xff\xff\xff.",
    "a spelled memo index": b"\x80\x02Np99999999999\n.",
    "a spelled number": b"\x80\x02L" + b"9" * 5000 + b"L\n.",
    "an endless line": b"\x80\x02V" + b"x" * 100_000,
    "marks": b"\x80\x02" + b"(" * 1_000_000 + b".",
    "repeated dup": b"\x80\x02N" + b"2" * 2_000_000 + b".",
    "nested tuples": b"\x80\x02N" + b"\x85" * 3_500_000 + b".",
    "empty lists": b"\x80\x02" + b"]0" * 3_500_000 + b"N.",
    "dictionary items": b"\x80\x04}" + (b"(" + b"NN" * 400_000 + b"u") * 10 + b".",
    "list items": b"\x80\x04]" + (b"(" + b"N" * 800_000 + b"e") * 5 + b".",
    "floats": b"\x80\x04](" + (b"G@" + bytes(7)) * 900_000 + b"e" + b"N" * 3_000_000 + b".",
    "keys": b"\x80\x04}(" + b"".join(text(f"k{i}") + b"N" for i in range(2000)) + b"u.",
    "lines": b"\x80\x02(" + b"".join(b"V%d" % i + b"x" * 4000 + b"\n" for i in range(4000)) + b"t.",
    "jits": assembled({f"k{i}": jit(["x"], "CPU") for i in range(100)}),
    "imports": b"\x80\x02" + b"".join(b"cm\nA%d\n0" % i for i in range(10_100)) + b"N.",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused(put: Any, bomb: str) -> None:
    report = inspect(put(BOMBS[bomb]))
    assert report.exit_code in (1, 2)
    assert report.problems[-1].kind in ("bomb", "truncated", "malformed")


def test_a_dictionary_of_millions_is_told_in_a_sentence(put: Any) -> None:
    report = inspect(put(BOMBS["dictionary items"]))
    assert re.fullmatch(
        r"pickle bomb: more than \d+ items at byte \d+: not an artifact of the field", report.verdict
    )


def test_what_is_shown_is_bounded_however_much_is_repeated(put: Any) -> None:
    many = {f"{i:02}" * 40: tuple([2**400] * 16) for i in range(100)}
    metadata = {f"{i:02}" * 40: {"input_shapes": many} for i in range(100)}
    report = inspect(put(pickle.dumps({"metadata": metadata}, 4)))
    assert report.verdict == "ok"
    assert len(shown(report)) < 100_000
    assert len(json.dumps(report.as_json())) < 1_000_000


def test_texts_that_are_no_unicode_are_shown_escaped(put: Any, capsys: pytest.CaptureFixture[str]) -> None:
    named = b"X\x06\0\0\0a\xed\xb2\x80\x1bc"
    body = text("input_shapes") + b"}" + named + b"K\x01K\x02\x86s" + text("output_slices") + b"}"
    path = put(b"\x80\x04}(" + body + b"u.", "a\x1b[2J_metadata.pkl")
    assert Inspect().parse_execute([str(path)]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert r"a\udc80\x1bc (1, 2)" in told


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    for name in ("x.pkl", "m.pkl.p00", "n.pkl.chunkmanifest"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "o.pkl.chunkmanifest").write_text("1")
    os.mkfifo(tmp_path / "o.pkl.chunk01of01")
    for name in ("x.pkl", "m.pkl", "m.pkl.p00", "n.pkl", "n.pkl.chunkmanifest", "o.pkl", "/dev/zero"):
        command = [sys.executable, "-m", "doit", "inspect", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 2
        assert "no plain file" in done.stdout + done.stderr


def test_too_many_opcodes_are_refused(put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opcodes, "OPCODES", 1000)
    assert inspect(put(b"\x80\x02" + b"N0" * 480 + b"N.")).verdict == "ok"
    assert inspect(put(b"\x80\x02" + b"N0" * 500 + b"N.")).problems[0].kind == "bomb"


def test_many_jits_that_share_one_graph_are_refused(put: Any) -> None:
    one = emitted(jit(["x"], "CPU", kernels=300))
    held = b"".join(text(f"k{i}") + (one + b"q\x00" if not i else b"h\x00") for i in range(50))
    report = inspect(put(b"\x80\x04}(" + held + b"u."))
    assert report.verdict.startswith("pickle bomb")


def test_objects_that_share_one_large_dict_take_linear_time(put: Any) -> None:
    keys = b"".join(text(f"k{i}") + b"N" for i in range(20_000))
    one = text("tinygrad.uop.ops") + text("ParamArg") + b"\x93q\x01)\x81h\x00b"
    many = b"h\x01)\x81h\x00b" * 20_000
    report = inspect(put(b"\x80\x04](}(" + keys + b"uq\x00" + one + many + b"e."))
    assert report.verdict == "suspicious state set on what tinygrad.uop.ops.ParamArg returns"
    assert report.classes == ("ParamArg(0)",)


def test_terminal_codes_never_reach_the_terminal(put: Any) -> None:
    report = inspect(put(assembled(driving(model_type="\x1b[2J\u202eevil\ud800".replace("\ud800", "")))))
    assert "\x1b" not in shown(report)
    assert "\u202e" not in shown(report)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_a_large_payload_costs_no_memory(tmp_path: Path) -> None:
    head, size = b"\x80\x05\x8e" + struct.pack("<Q", 500_000_000), 500_000_000
    path = tmp_path / "large.pkl"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
        file.seek(0, os.SEEK_END)
        file.write(b".")
    program = (
        "import sys; from pathlib import Path; from rules.inspection import inspect;"
        "report = inspect(Path(sys.argv[1])); assert report.verdict == 'ok', report.verdict;"
        "(peak,) = [line for line in Path('/proc/self/status').open() if line.startswith('VmHWM')];"
        "print(report.payload_bytes, int(peak.split()[1]) * 1024)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=True, capture_output=True)
    payload, peak = map(int, done.stdout.split())
    assert payload == size
    assert peak < 64 * 1024 * 1024


# ---- properties

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.just(slice(1, None))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def restored(value: Any) -> Any:
    """A description turned back into what it describes."""
    if isinstance(value, opcodes.Mapping):
        return {restored(k): restored(v) for k, v in zip(value.flat[::2], value.flat[1::2], strict=True)}
    if isinstance(value, opcodes.Made):
        assert value.of.name == "builtins.slice"
        return slice(*restored(value.arguments))
    if isinstance(value, tuple | list):
        return type(value)(restored(one) for one in value)
    return value


@given(values, st.integers(0, 5))
@relaxed
def test_the_machine_sees_what_pickle_wrote(tmp_path: Path, value: Any, protocol: int) -> None:
    from rules.inspection.whole import Tape, opened

    path = tmp_path / "value.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    with opened([path]) as whole:
        machine = opcodes.Machine(Tape(whole, 0, whole.size))
        machine.run()
    assert restored(machine.root) == value
    assert machine.oddities == []


def test_every_pickle_opcode_is_known() -> None:
    assert {ord(one.code) for one in pickletools.opcodes} == set(opcodes.TABLE)


SOUND = [*samples(), assembled(driving())]


@given(st.sampled_from(SOUND), st.data())
@relaxed
def test_any_truncation_is_seen(tmp_path: Path, sound: bytes, data: Any) -> None:
    path = tmp_path / "cut.pkl"
    path.write_bytes(sound[: data.draw(st.integers(0, len(sound) - 1))])
    report = inspect(path)
    assert report.exit_code == 2


@given(st.sampled_from(SOUND), st.data())
@relaxed
def test_any_flipped_byte_gives_a_verdict(tmp_path: Path, sound: bytes, data: Any) -> None:
    content = bytearray(sound)
    content[data.draw(st.integers(0, len(sound) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "flipped.pkl"
    path.write_bytes(content)
    report = inspect(path)
    assert (report.verdict == "ok") == (report.exit_code == 0)
    json.dumps(report.as_json())
    assert shown(report).isprintable() or "\n" in shown(report)


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\x80\x04", b"\x80\x05", b"\x10\0\0\0\0\0\0\0\x80\x05"])
)
@relaxed
def test_any_bytes_give_a_verdict(tmp_path: Path, content: bytes, head: bytes) -> None:
    path = tmp_path / "any.pkl"
    path.write_bytes(head + content)
    report = inspect(path)
    assert report.exit_code in (0, 1, 2)


def test_a_short_fuzz(tmp_path: Path) -> None:
    verdicts = fuzz(600, 1, SOUND, tmp_path)
    assert len(verdicts) > 3


def test_what_is_ok_touches_nothing_when_it_is_really_loaded(tmp_path: Path) -> None:
    small = tmp_path / "small_tinygrad.pkl"
    made(small)
    assert inspect(small).verdict == "ok"
    with Sandbox() as sandbox:
        assert sandbox.load(small) == {"end": "loaded", "touched": []}
        ends = fuzz_loading(250, 7, [small.read_bytes()], tmp_path, sandbox)
        witness = tmp_path / "witness.pkl"
        disk = Call("tinygrad.device.Buffer", f"DISK:{tmp_path}/hit", 4, DTYPE, None, None, bytes(16), 1)
        witness.write_bytes(assembled(disk))
        assert f"writes {tmp_path}/hit" in sandbox.load(witness)["touched"]
    assert ends["ok, loaded"] > 20


# ---- the command


def test_the_command_exits_by_what_it_found(put: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(put(assembled(driving())))
    assert Inspect().parse_execute([path]) == 1
    told = capsys.readouterr().out
    assert "run_policy: QCOM" in told
    assert told.startswith(
        "x_tinygrad.pkl: ok as data; does NOT load with the tinygrad here, it needs another: "
    )
    assert Inspect().parse_execute([path, "--expect-device", "QCOM", "--expect-contract=warp"]) == 1
    assert "✗" not in capsys.readouterr().out
    assert Inspect().parse_execute(["--expect-device", "CPU", path]) == 1
    assert "expected device CPU, got run_policy captured on QCOM" in capsys.readouterr().out
    assert Inspect().parse_execute([path, "--expect-contract", "policy"]) == 1
    assert Inspect().parse_execute([path, "--expect-contract", "both"]) == 2
    assert Inspect().parse_execute([path + ".none"]) == 2
    capsys.readouterr()
    assert Inspect().parse_execute([path, "--json", "--expect-device", "CPU"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["loads"]) == ("ok", False)
    assert len(told["failed_expectations"]) == 3


def test_the_sha256_of_a_whole_file_beside_it_is_checked(put: Any) -> None:
    content = assembled(driving())
    path = put(content)
    path.with_name(path.name + ".sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n")
    assert inspect(path).sha256 == hashlib.sha256(content).hexdigest()
    path.write_bytes(content.replace(b"v15", b"v16"))
    assert inspect(path).verdict.startswith("wrong sha256")
