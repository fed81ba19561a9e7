"""Logs and what they give away: every known failure from its own words, and nothing from anything else."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from contract import PATH
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.catalog import load
from rules.commands.diagnose import read, report
from rules.diagnosing import diagnosis, mismatch
from rules.diagnosing.diagnosis import diagnose
from rules.diagnosing.symptoms import SYMPTOMS
from rules.errors import ArtifactError, WorkspaceError
from rules.graph import Graph
from rules.keeping.records import Output, Record
from rules.keys import key_of
from rules.workspace import Workspace

REPOSITORY = Path(__file__).resolve().parent.parent
ERROR = "tinygrad.engine.jit.JitError: args mismatch in JIT: self.captured."


def names(text, graph=None):
    return [one.name for one in diagnose(text, graph)]


# ---- the messages of the tinygrad that is installed

CAPTURE = """
import pickle, sys, traceback
import numpy as np
from tinygrad import Tensor, TinyJit
def tensor(*shape, dtype=np.uint8, device=None):
    return Tensor(np.ones(shape, dtype=dtype), device=device).contiguous().realize()
def made(sizes):
    return {name: tensor(*size) for name, size in sizes.items()}
def total(**named):
    return sum(one.float().sum() for one in named.values()).realize()
captured, passed = eval(sys.argv[1])
jit = TinyJit(total, prune=True)
jit.cnt = 1
jit(**made(captured))
jit = pickle.loads(pickle.dumps(jit))
try: jit(**made(passed))
except Exception: traceback.print_exc()
"""


def real_message(captured, passed):
    """What tinygrad prints when tensors of other names or shapes than at the capture are passed."""
    environment = {
        "DEV": "CPU:X86",
        "CC": "echo",
        "PATH": PATH,
        "HOME": os.environ.get("HOME", "/"),
    }
    ran = subprocess.run(
        [sys.executable, "-c", CAPTURE, repr((captured, passed))],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "JitError" in ran.stderr, ran.stderr
    return ran.stderr


def test_a_real_message_tells_the_frame_skip_that_fits():
    queues = {"big_img_q": (2, 6, 4, 8), "img_q": (2, 6, 4, 8), "tfm": (3, 3)}
    text = real_message(queues, {**queues, "big_img_q": (5, 6, 4, 8), "img_q": (5, 6, 4, 8)})
    (one,) = diagnose(text)
    assert (one.name, one.confidence) == ("wrong frame skip", "certain")
    assert "captured with frame skip 1, while the runtime's queues are of frame skip 4" in one.cause
    assert one.fix == "set frame_skip = 4 for ID in models.toml, then doit pkl:ID"
    assert text.splitlines()[one.evidence[0].line - 1].startswith(ERROR)


def test_a_real_message_tells_both_contracts():
    warp = dict.fromkeys(("img_q", "big_img_q", "tfm", "big_tfm", "frame", "big_frame"), (4,))
    (one,) = diagnose(real_message(warp, dict.fromkeys(("tfm", "big_tfm", "frame", "big_frame"), (4,))))
    assert (one.name, one.confidence) == ("contract mismatch", "certain")
    assert "contract warp: history in the warp" in one.cause
    assert "contract policy: history in the policy" in one.cause
    assert 'contract = "policy"' in one.fix


def test_a_real_message_with_other_shapes_tells_both():
    text = real_message({"calib": (1, 3), "input_img": (2, 8)}, {"calib": (1, 3), "input_img": (2, 9)})
    (one,) = diagnose(text)
    assert one.name == "shape mismatch"
    assert "captured with (2, 8), called with (2, 9)" in one.cause


# ---- the same messages, written down


def sized(*sizes):
    inner = ",\n    ".join(f"UOp(Ops.CONST, dtypes.weakint, arg={size}, src=())" for size in sizes)
    stack = f"UOp(Ops.STACK, dtypes.weakint, arg=None, src=(\n    {inner},))"
    base = "UOp(Ops.NOOP, dtypes.void, arg=None, src=())"
    return f"UOp(Ops.RESHAPE, dtypes.void, arg=None, src=(\n  {base},\n  {stack},))"


def info(*tensors, device="QCOM"):
    return "[" + ", ".join(f"({sized(*shape)}, (), dtypes.float, '{device}')" for shape in tensors) + "]"


def differing(left, right):
    return f"{ERROR}expected_input_info={left} != expected_input_info={right}\n"


def test_a_capture_on_the_cpu_is_told_from_a_runtime_on_the_cpu():
    text = "start\n" + differing(info((2, 2), device="CPU"), info((2, 2)))
    (one,) = diagnose(text)
    assert (one.name, one.confidence, one.evidence[0].line) == ("captured on the CPU", "certain", 2)
    assert "OPENPILOT_HACKS = 1" in one.fix
    (other,) = diagnose(differing(info((2, 2)), info((2, 2), device="CPU")))
    assert other.name == "captured on another device"
    assert "--expect-device CPU" in other.fix
    (host,) = diagnose(
        differing(info((2, 2), (3, 3)), f"{info((2, 2))[:-1]}, {info((3, 3), device='NPY')[1:]}")
    )
    assert "QCOM against NPY" in host.cause


@pytest.mark.parametrize(
    ("captured", "passed", "skips"),
    [
        ([(5, 6, 128, 256)], [(2, 6, 128, 256)], "4, while the runtime's queues are of frame skip 1"),
        ([(97, 1, 512)], [(25, 1, 512)], "4, while the runtime's queues are of frame skip 1"),
        ([(96, 1, 512)], [(24, 1, 512)], "4, while the runtime's queues are of frame skip 1"),
        ([(100, 1, 8)], [(50, 1, 8)], "1 or 4, while the runtime's queues are of frame skip 2"),
        (
            [(100, 1, 8), (5, 6, 128, 256)],
            [(50, 1, 8), (3, 6, 128, 256)],
            "4, while the runtime's queues are of frame skip 2",
        ),
    ],
)
def test_the_frame_skips_that_queue_depths_stand_for(captured, passed, skips):
    (one,) = diagnose(differing(info(*captured), info(*passed)))
    assert one.name == "wrong frame skip"
    assert f"captured with frame skip {skips}" in one.cause


@given(skip=st.integers(1, 10), steps=st.sampled_from([24, 25, 99]), width=st.sampled_from([512, 1024]))
def test_every_frame_skip_is_among_those_that_its_queues_fit(skip, steps, width):
    assert mismatch.queue((skip * (steps - 1) + 1, 1, width)) == "feature"
    assert skip in mismatch.frame_skips("feature", skip * (steps - 1) + 1)
    assert skip in mismatch.frame_skips("feature", skip * steps)
    assert mismatch.frame_skips("image", skip + 1) == {skip}
    assert skip in mismatch.frame_skips("desire", skip * 25)


def test_queues_that_no_frame_skip_explains_are_a_shape_mismatch():
    (one,) = diagnose(differing(info((5, 6, 128, 256)), info((40, 6, 128, 256))))
    assert (one.name, "no one frame skip explains it" in one.cause) == ("shape mismatch", True)


def test_frames_of_another_camera_are_named():
    a, b = (mismatch.Nv12.of(*size).size for size in mismatch.CAMERAS)
    (one,) = diagnose(differing(info((a,)), info((b,))))
    assert "a frame of 1928x1208" in one.cause
    assert "a frame of 1344x760" in one.cause


def test_shapes_are_read_through_names_escapes_and_older_forms():
    text = differing(info((5, 6, 6, 8)), info((2, 6, 6, 8)))
    six = "UOp(Ops.CONST, dtypes.weakint, arg=6, src=())"
    before, _, after = text.partition(six)
    named = f"{before}x7:={six}{after.replace(six, 'x7', 1)}"
    again = named.replace(f"{six},\n    {six}", f"x3:={six},\n    x3")
    escaped = json.dumps(text)
    old = text.replace(sized(5, 6, 6, 8), "ShapeTracker(views=(View(shape=(5, 6, 6, 8), strides=()),))")
    for one in (named, again, escaped, old):
        assert names(one) == ["wrong frame skip"], one


def test_a_cut_message_promises_nothing():
    text = differing(info((5, 6, 4, 8)), info((2, 6, 4, 8)))
    (one,) = diagnose(text[: text.index(" != ")])
    assert (one.name, one.confidence) == ("args mismatch in JIT", "possible")
    assert (
        diagnose('    raise JitError(f"args mismatch in JIT: {self.captured.expected_names=} != {names}")')
        == []
    )


def test_unknown_names_are_listed_and_a_known_side_is_named():
    (one,) = diagnose(f"{ERROR}expected_names=['calib', 'input_img'] != ['input']\n")
    assert (one.name, one.confidence) == ("args mismatch in JIT", "certain")
    assert "the runtime lacks calib, input_img and adds input" in one.cause
    (two,) = diagnose(f"{ERROR}expected_names=['big_frame', 'big_tfm', 'frame', 'tfm'] != ['frame']\n")
    assert "the warp of contract policy" in two.cause
    (three,) = diagnose(f"{ERROR}expected_names=['frame', 'tfm'] != ['tfm', 'frame']\n")
    assert three.name == "artifact of another tinygrad"


@pytest.mark.parametrize(
    ("line", "name", "skips"),
    [
        ("PoseNet: shape mismatch arg=2 vs arg=5", "wrong frame skip", "frame skip 1 and 4"),
        ("mismatch: arg=5 != arg=2", "wrong frame skip", "frame skip 4 and 1"),
        ("mismatch: arg=128 vs arg=64", "shape mismatch", "one side has 128, the other 64"),
    ],
)
def test_a_summary_of_a_mismatch(line, name, skips):
    one = diagnose(line)[0]
    assert (one.name, one.confidence) == (name, "likely")
    assert skips in one.cause


# ---- the table

LINES = {
    "Git LFS pointer instead of the file": [
        "version https://git-lfs.github.com/spec/v1",
        "_pickle.UnpicklingError: invalid load key, 'v'.",
    ],
    "not a pickle": ["_pickle.UnpicklingError: invalid load key, '<'."],
    "truncated artifact": [
        "_pickle.UnpicklingError: pickle data was truncated",
        "_pickle.UnpicklingError: pickle exhausted before end of frame",
        "EOFError: Ran out of input",
    ],
    "tiny file": [
        "-rw-r--r-- 1 comma comma 134 Jul  3 10:22 pop22_driving_tinygrad.pkl",
        "-rw-r--r-- 1 iq iq 12K Jul 3 10:22 /data/media/0/models/driving_supercombo_nopp.pkl",
        "Saved JITs to /data/media/0/models/driving_supercombo_nopp.recompiled.pkl (0.07 MB)",
    ],
    "artifact of another tinygrad": [
        "TypeError: CapturedJit.__init__() takes 5 positional arguments but 8 were given",
        "TypeError: UOpMetaClass.__call__() takes from 2 to 6 positional arguments but 7 were given",
        "TypeError: ProgramSpec.__init__() missing 2 required positional arguments: 'a' and 'b'",
        "AttributeError: Can't get attribute 'ExecItem' on <module 'tinygrad.engine.realize' from 'x.py'>",
        "ModuleNotFoundError: No module named 'tinygrad.shape'",
        "AttributeError: module 'tinygrad.device' has no attribute 'BufferOptions'",
        "AttributeError: type object 'Ops' has no attribute 'VIEW'",
        "ValueError: 93 is not a valid Ops",
    ],
    "tinygrad is not on the path": ["ModuleNotFoundError: No module named 'tinygrad'"],
    "artifact of another format": [
        "ValueError: unsupported artifact format_version 2, expected 1",
        "KeyError: 'run_policy'",
    ],
    "no warp for this camera": ["KeyError: (1928, 1208)"],
    "captured on the CPU": [
        "Expected device QCOM, captured devices: ['CPU', 'NPY']",
        "pop22: 1344x760 was captured on CPU, NPY, expected QCOM",
    ],
    "disk full": ["OSError: [Errno 28] No space left on device: '/data/x'", "write failed: ENOSPC"],
    "tinygrad's cache cannot be written": [
        "PermissionError: [Errno 13] Permission denied: '/root/.cache/tinygrad'",
        "sqlite3.OperationalError: attempt to write a readonly database",
        "OSError: [Errno 30] Read-only file system: '/root/.cache'",
        "sqlite3.OperationalError: unable to open database file",
    ],
    "artifact without what its client reads": ["KeyError: 'input_devices'"],
    "warp file missing": [
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/models/warp_1928x1208_tinygrad.pkl'",
        "FileNotFoundError: /data/models/dm_warp_1344x760_tinygrad.pkl",
        "No such file or directory: 'models/big_driving_warp_1344x760_tinygrad.pkl'",
    ],
    "temporary folder cannot be written": [
        "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp']",
        "PermissionError: [Errno 13] Permission denied: '/tmp/tmpx81'",
        "PermissionError: [Errno 13] Permission denied: '/data/root-tmp/x'",
        "OSError: [Errno 30] Read-only file system: '/var/tmp/y'",
    ],
    "too slow for 20 frames a second": [
        "    latency  median 31.0 ms, p99 61.2 ms, max 80.0 ms: OVER the budget of 50 ms",
        "    frames   188 run, 112 dropped",
        "    frames   290 run, 0 dropped, 10 after a drop and not published",
    ],
    "outputs are not finite": ["    NOT FINITE plan in 1 frame"],
    "device not ready": ["FileNotFoundError: [Errno 2] No such file or directory: '/dev/kgsl-3d0'"],
    "model process gone or zombie": [
        "iq  812  0.0  0.0  0  0 ?  Z  10:22  0:00 [iqmodeld] <defunct>",
        "Watchdog timeout for modeld (exitcode None) restarting (started=True)",
        "Out of memory: Killed process 991 (modeld) total-vm:9kB",
        "process iqmodeld died",
        "modeld exit code -11",
    ],
    "model services are dead": [
        '{"event": "commIssue", "invalid": [], "not_alive": ["carState", "modelV2"]}',
        "livePose is dead",
        "iqPlan: not alive",
        "modelV2 alive=False",
    ],
    "user interface frozen": ["the UI is frozen onroad", "Watchdog timeout for ui (exitcode None)"],
    "commIssue spam": ["commIssue\ncommIssue\ncommIssue"],
    "freezes onroad": ["it freezes when going onroad", "iqmodeld stalled after startup"],
    "OPENPILOT_HACKS missing": [
        "sudo env DEV=QCOM IMAGE=2 FLOAT16=1 python compile.py",
        "PoseNET/JIT shape mismatch",
    ],
}


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in LINES.items() for line in lines])
def test_each_failure_from_its_own_words(name, line):
    found = {one.name: one for one in diagnose(f"boot\r\n\x1b[31m{line}\x1b[0m\nend\n")}
    assert set(found) == {name}
    assert found[name].evidence[0].line == 2
    assert "\x1b" not in found[name].evidence[0].text
    assert "{" not in found[name].fix


def test_every_symptom_of_the_table_is_exercised():
    assert {symptom.name for symptom in SYMPTOMS} <= set(LINES)


def test_what_is_advised_exists():
    """Every `doit WORD` in what to type next is a command, or a task of some model."""
    told = [symptom.fix for symptom in SYMPTOMS] + [Path(diagnosis.__file__).read_text()]
    words = {word for text in told for word in re.findall(r"\bdoit (?:-a )?([a-z]+)", text)}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    commands = {*project["entry-points"]["doit.COMMAND"], *("does",)}  # "doit does, for each compile"
    assert words - commands - {"pkl", "candidate", "onnx"} == set()
    assert len(words) > 5


@pytest.mark.parametrize(
    "line",
    [
        "input desire_pulse has mismatch on dtype. Expected dtypes.half, received dtypes.float.",
        "TypeError: __init__() takes 2 positional arguments but 3 were given",
        "AttributeError: Can't get attribute 'Foo' on <module '__main__'>",
        "PermissionError: [Errno 13] Permission denied: '/data/params/d/Version'",
        "Saved JITs to /data/media/0/models/driving_supercombo_nopp.recompiled.pkl (119.07 MB)",
        "-rw-r--r-- 1 comma comma 119070001 Jul  3 10:22 driving_supercombo_nopp.pkl",
        "-rw-r--r-- 1 comma comma 114M Jul  3 10:22 driving_supercombo_nopp.pkl",
        "-rw-r--r-- 1 comma comma 812 Jul  3 10:22 driving_vision_metadata.txt",
        '{"event": "commIssue", "not_alive": ["carState"], "not_freq_ok": ["modelV2"]}',
        "modelV2 is not dead",
        "modeld started",
        "building the quick ui",
        "process modeld exit code 0",
        "commIssue",
        "KeyError: 'name'",
        "    frames   300 run, 0 dropped",
        "    latency  median 3.0 ms, p99 6.2 ms, max 8.0 ms: within the budget of 50 ms",
        "saved artifacts/driver-monitoring/dm_warp_1344x760_tinygrad.pkl",
        "if artifact['format_version'] != 1: raise ValueError",
        "DEV=QCOM IMAGE=2 FLOAT16=1 NOLOCALS=1 JIT_BATCH_SIZE=0 OPENPILOT_HACKS=1",
        "DEV=QCOM \\\n IMAGE=2 \\\n FLOAT16=1 \\\n OPENPILOT_HACKS=1 \\\n python compile.py",
        "DEV=QCOM IMAGE=2 \\\n FLOAT16=1 \\\n OPENPILOT_HACKS=1 \\\n python compile.py",
        "USB+AMD:LLVM FLOAT16=1 IMAGE=0",
    ],
)
def test_what_is_no_failure(line):
    assert names(line) == []


def test_a_service_that_is_named_dead_is_named_in_the_cause():
    (one,) = diagnose('x {"not_alive": ["modelV2", "livePose"]}\niqPlan died\n')
    assert one.cause.endswith("modelV2, livePose, iqPlan")
    assert one.lines == 2


def test_the_surest_comes_first_and_spam_is_counted():
    text = "UI frozen onroad\n" + "commIssue\n" * 5000 + "EOFError: Ran out of input\n"
    found = diagnose(text)
    assert found[0].name == "truncated artifact"
    spam = next(one for one in found if one.name == "commIssue spam")
    assert (spam.lines, len(spam.evidence), spam.evidence[0].line) == (5000, 3, 2)
    assert "before line 2" in spam.fix


def test_a_freeze_after_a_passed_harness_is_of_the_launcher():
    text = "force_onroad_iqmodeld_test: iqmodeld alive after 60 s\nmanager: started\nthe UI froze onroad\n"
    assert "freezes only under the real launcher" in names(text)
    assert "freezes only under the real launcher" not in names("the UI froze onroad\nharness: passed\n")
    assert "freezes only under the real launcher" not in names(
        "harness: failed, not ok\nthe UI froze onroad\n"
    )
    hacks = [one for one in diagnose(text + "DEV: QCOM\n") if one.name == "OPENPILOT_HACKS missing"]
    assert [one.confidence for one in hacks] == ["possible"]
    assert "OPENPILOT_HACKS missing" not in names(text + "QCOM OPENPILOT_HACKS=1\n")


# ---- the catalog


@pytest.fixture
def graph(tmp_path):
    shutil.copy(REPOSITORY / "models.toml", tmp_path)
    text = (tmp_path / "models.toml").read_text()
    text = text.replace("[models.ash]", '[models.ash]\nflags = "qcom"').replace(
        "[models.elm]", "[models.elm]\nframe_skip = 2"
    )
    (tmp_path / "models.toml").write_text(text)
    return Graph(load(tmp_path / "models.toml", machine="x86_64"), Workspace(tmp_path / "artifacts"))


FAILURE = {
    "step": "pkl:pop2",
    "cause": "the disk went away\n…",
    "log": "logs/pop2.log",
    "log_tail": [],
    "next": "doit pkl:pop2",
}


def keep(graph, model, **values):
    path = f"compiled/{model}_driving_tinygrad.pkl"
    toolchain = {"tinygrad": "9e620c4476242fee", "python": "3.11.7"}
    content = {"settings": {"flags": values, "toolchain": toolchain}}
    record = Record(
        step=f"pkl:{model}",
        key=key_of(content),
        content=content,
        outputs=(Output("artifact", path, 3, "ab" * 32),),
        made="built",
        built_at="2026-05-01T10:00:00+00:00",
        seconds=1.5,
        facts={
            "captures": {"run_policy": {"devices": ["NPY", "QCOM"]}},
            "gates": [
                {"gate": "finite", "subject": "run_policy", "value": True, "limit": True, "passed": True}
            ],
            "verified_on": dict.fromkeys(("device", "machine", "renderer", "arch"), "QCOM"),
            "skipped": [],
            "reference": None,
            "replay": [],
            "other": [],
            "seconds": 1.5,
            "peak_bytes": 1,
        },
    )
    graph.workspace.records.write(f"{model}_validation", record)


def test_a_published_name_is_followed_to_its_record(graph, capsys):
    keep(graph, "pop2", DEV="CPU:X86", FLOAT16="1")
    graph.workspace.records.write_failure("pop2_failure", FAILURE)
    text = "loading /data/models/pop23_driving_tinygrad.pkl\nEOFError: Ran out of input\n"
    assert report(text, graph) == 0
    out = capsys.readouterr().out
    assert "doit inspect pop23_driving_tinygrad.pkl" in out
    assert "pop2 in the catalog: built 2026-05-01T10:00:00+00:00, " in out
    assert "with tinygrad 9e620c447624, python 3.11.7; the catalog pins 0.14.0" in out
    assert "last failure: the disk went away" in out
    assert "flags DEV=CPU:X86 FLOAT16=1" in out
    assert report(text, graph, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["model"] for one in told["models"]] == ["pop2"]
    assert told["models"][0]["devices"] == {"run_policy": ["NPY", "QCOM"]}
    assert told["findings"][0]["evidence"] == [{"line": 2, "text": "EOFError: Ran out of input"}]


def test_the_recorded_flags_of_a_named_model_may_lack_the_hacks(graph):
    keep(graph, "ash", DEV="QCOM", FLOAT16="1")
    (one,) = diagnose("modeld loads ashgrove_driving_tinygrad.pkl\n", graph)
    assert (one.name, one.confidence) == ("OPENPILOT_HACKS missing", "likely")
    assert one.fix.endswith("doit pkl:ash")
    keep(graph, "ash", DEV="QCOM", FLOAT16="1", OPENPILOT_HACKS="1")
    assert names("modeld loads ashgrove_driving_tinygrad.pkl\n", graph) == []


def test_a_model_is_named_by_its_id_as_a_word_only(graph, capsys):
    report("model elm3: EOFError: Ran out of input\n", graph)
    assert "elm3 in the catalog: never built here" in capsys.readouterr().out
    report("crashed in the helmet: EOFError: Ran out of input\n", graph)
    assert "in the catalog" not in capsys.readouterr().out


def test_a_name_without_a_catalog_still_fills_the_command(capsys):
    assert report("pop22_driving_tinygrad.pkl: KeyError: (1344, 760)\n", None) == 0
    assert "doit pkl:pop22" in capsys.readouterr().out


def test_nothing_known_is_said_and_exits_1(capsys):
    assert report("all is well\n", None) == 1
    assert capsys.readouterr().out == "nothing known was found\n"


def test_reading_refuses_artifacts_and_missing_files(tmp_path, monkeypatch):
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(ArtifactError, match="a pickle, expected a log"):
        read(str(tmp_path / "a.pkl"))
    with pytest.raises(WorkspaceError, match="cannot be read"):
        read(str(tmp_path / "gone.log"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"EOFError\xff")))
    assert read("-") == "EOFError�"


# ---- any text

BITS = [
    "UOp(Ops.CONST, ",
    "x4:=",
    "'QCOM')",
    " != ",
    "expected_names=[",
    "'img_q', ",
    "]",
    ".pkl",
    "\n",
    "\\\n",
]
fragments = st.sampled_from([line for lines in LINES.values() for line in lines] + [ERROR, *BITS])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(fragments, st.text(max_size=20)), max_size=30).map("".join))
def test_any_text_gives_findings_or_none(text):
    for one in diagnose(text):
        assert one.confidence in ("certain", "likely", "possible")
        assert one.evidence
        assert all(1 <= each.line <= text.count("\n") + 1 for each in one.evidence)
        assert all(each.text.isprintable() or "�" in each.text for each in one.evidence) or not text.isascii()


@pytest.mark.parametrize(
    "piece", [" ", "x4:=UOp(", "not_alive [", ERROR, "arg=2 ", ".pkl", "DEV=QCOM \\\n", "modeld ", "ui"]
)
def test_a_megabyte_in_one_line_is_gone_through(piece):
    """A search that were quadratic in a line would not come back."""
    found = names(piece * (1_000_000 // len(piece)))
    assert len(set(found)) == len(found)
