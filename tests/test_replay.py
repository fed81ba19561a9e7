"""Replays of built artifacts: every behaviour version, both contracts, driver monitoring; and failures."""

import json
import os
import pickle
import signal
import struct
import subprocess
import threading
import time
import xml.etree.ElementTree as ElementTree
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contract import Project, generated, model, with_tinygrad
from hypothesis import given
from hypothesis import strategies as st

from rules import toolchain
from rules.builders import package
from rules.builders.job import Job
from rules.catalog import Camera
from rules.errors import ArtifactError, CatalogError, SourceError, YardError
from rules.playback import footage, plotting, replaying
from rules.playback.replaying import PATIENCE, Ride, Wish
from rules.tasks import Yard
from rules.worker.nv12 import Nv12
from rules.worker.runtime import scene

SMALL, LARGE = Camera(1344, 760), Camera(1928, 1208)
MODELS = {  # id: behaviour version, architecture, contract
    "pop8": ("v8", "vision-conv+attention", "warp"),
    "pop11": ("v11", "vision-mixer+gru", "policy"),
    "pop12": ("v12", "multi-policy", "warp"),
    "pop15": ("v15", "supercombo-24", "policy"),
    "old": ("v7", "supercombo-99", "warp"),
}
GROUPS = {"plan", "lane lines", "road edges", "lead", "pose", "action"}


def catalog():
    """One model of each behaviour version, a generic one, and driver monitoring."""
    tables = []
    for number, (model_id, (version, architecture, contract)) in enumerate(MODELS.items()):
        table = model(model_id, generated(architecture, seed=number), f'contract = "{contract}"')
        tables.append(table.replace('"v11"', f'"{version}"'))
    tables.append(model("mlp", generated("generic-mlp"), 'type = "generic"'))
    return "".join(tables) + "[monitoring]\n" + generated("dmonitoring")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("replay"), catalog())
    project.doit("-n", "2")
    return project


@pytest.fixture
def graph(project):
    return Yard(project.folder / "models.toml").graph


def driven(graph, model_id, **wish):
    return replaying.replay(graph, model_id, Wish(**{"seconds": 0.3, "camera": SMALL, **wish}))


# ---- what comes out


@pytest.mark.parametrize("model_id", MODELS)
def test_every_behaviour_version_replays(graph, model_id, tmp_path):
    lines, arrays = tmp_path / "messages.jsonl", tmp_path / "outputs.npz"
    report = driven(graph, model_id, seconds=1.0, messages=lines, save=arrays)
    version, _, contract = MODELS[model_id]
    assert report.about["behavior_version"] == version
    assert report.about["image_history_pipeline"] == contract
    (ride,) = report.rides
    assert ride.frames + ride.late + ride.dropped == 20
    assert ride.finite == dict.fromkeys(GROUPS, ride.frames)
    messages = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(messages) == ride.frames
    saved = np.load(arrays)
    assert [one["modelV2"]["frameId"] for one in messages] == saved["1344x760/frame_id"].tolist()
    assert [one["modelV2"]["position"]["x"][32] for one in messages] == saved["1344x760/plan"][
        :, 32, 0
    ].tolist()
    assert {"desiredCurvature", "desiredAcceleration", "shouldStop"} == messages[0]["modelV2"][
        "action"
    ].keys()
    raw = saved["1344x760/raw_" + ("model" if "supercombo" in MODELS[model_id][1] else "vision")]
    assert (raw[0] != raw[-1]).any(), "the scene moves, and nothing came of it"


def test_of_two_policies_the_on_policy_speaks(graph, tmp_path):
    driven(graph, "pop12", save=tmp_path / "o.npz")
    saved = np.load(tmp_path / "o.npz")
    plan = saved["1344x760/plan"].reshape(-1, 495)
    assert (plan == saved["1344x760/raw_on_policy"][:, :495]).all()
    assert (plan != saved["1344x760/raw_off_policy"][:, :495]).any()
    assert "1344x760/desire_state" in saved, "a head that only the off-policy has"


def test_driver_monitoring_replays_on_both_cameras(graph, tmp_path):
    report = replaying.replay(graph, "monitoring", Wish(seconds=0.3, messages=tmp_path / "m.jsonl"))
    assert [ride.camera for ride in report.rides] == ["1928x1208", "1344x760"]
    for ride in report.rides:
        assert ride.finite == dict.fromkeys(("left seat", "right seat", "wheel side"), ride.frames)
    messages = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert {one["camera"] for one in messages} == {"1928x1208", "1344x760"}
    assert len(messages[0]["driverStateV2"]["leftDriverData"]["faceOrientation"]) == 3


def test_the_same_frames_give_the_same_first_output(graph, tmp_path):
    rows = []
    for final in (tmp_path / "a.npz", tmp_path / "b.npz"):
        driven(graph, "pop8", save=final)
        rows.append(np.load(final)["1344x760/raw_vision"][0])
    assert (rows[0] == rows[1]).all()


def test_the_command(project):
    done = project.doit_any("replay", "--seconds=0.3", "pop8", "--camera", "1344x760", "--plot", "p.svg")
    on_time = " 0 dropped\n" in done.stdout and "OVER" not in done.stdout
    assert done.returncode == (0 if on_time else 1)
    assert "pop8: model_type vision_policy" in done.stdout
    assert "frames" in done.stdout and "latency  median" in done.stdout
    ElementTree.parse(project.folder / "p.svg")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["pop9"], "pop9: no such model in models.toml"),
        (["mlp"], "mlp: a generic network"),
        (["pop8", "--camera", "640x480"], "made for cameras 1928x1208, 1344x760, got 640x480"),
        (["pop8", "--camera", "big"], "--camera big: expected WIDTHxHEIGHT"),
        (["pop8", "--seconds", "0"], "--seconds 0: expected a number from 0.05"),
        (["pop8", "--speed", "nan"], "--speed nan: expected a number from 0 to 100"),
        (["pop8", "--plot", "p.jpg"], "--plot p.jpg: expected a name that ends in .svg or .png"),
        (["pop8", "--frames", "none.nv12"], "none.nv12: No such file or directory"),
    ],
)
def test_a_wrong_wish_is_a_sentence(project, arguments, told):
    assert told in project.doit("replay", *arguments, fails=True).stderr


def test_an_artifact_that_is_not_up_to_date_is_not_replayed(project, tmp_path):
    other = project.copy(tmp_path / "copy")
    artifact = other.path("compiled/pop8_driving_tinygrad.pkl")
    artifact.chmod(0o644)
    artifact.write_bytes(b"tiny")
    with pytest.raises(ArtifactError, match=r"pop8: its artifact is not up to date: .*changed on disk"):
        driven(Yard(other.folder / "models.toml").graph, "pop8")


# ---- frames


def nv12(camera, count, *, tight, seed=0):
    size = camera.width * camera.height * 3 // 2 if tight else Nv12.of(camera.width, camera.height).size
    return np.random.RandomState(seed).randint(0, 256, (count, size), dtype=np.uint8)


def test_frames_from_files_tight_or_padded_are_the_same_frames(graph, tmp_path):
    tight = nv12(SMALL, 2, tight=True)
    layout = Nv12.of(SMALL.width, SMALL.height)
    tight.tofile(tmp_path / "tight.nv12")
    folder = tmp_path / "padded"
    folder.mkdir()
    for number, frame in enumerate(tight):
        scene.unpacked(frame, layout).tofile(folder / f"{number}.nv12")
    (folder / "._0.nv12").write_bytes(b"left by a Mac")
    outputs = []
    for frames in (tmp_path / "tight.nv12", folder):
        driven(graph, "pop8", frames=frames, save=tmp_path / "o.npz")
        outputs.append(np.load(tmp_path / "o.npz")["1344x760/raw_vision"][0])
    assert (outputs[0] == outputs[1]).all()


def test_road_and_wide_frames_may_differ(tmp_path):
    for seed, name in enumerate(("road", "wide")):
        (tmp_path / name).mkdir()
        nv12(SMALL, 1, tight=True, seed=seed).tofile(tmp_path / name / "0.nv12")
    seen = footage.found(tmp_path, SMALL, 1.0, tmp_path)
    assert [Path(seen[one][0]).parent.name for one in ("road", "wide")] == ["road", "wide"]
    assert seen["tight"]


def test_unpacked_frames_keep_every_pixel():
    layout, frame = Nv12.of(SMALL.width, SMALL.height), nv12(SMALL, 1, tight=True)[0]
    whole = scene.unpacked(frame, layout)
    assert whole.size == layout.size
    row, column = 700, 1300
    assert whole[row * layout.stride + column] == frame[row * SMALL.width + column]
    place = SMALL.width * SMALL.height + 300 * SMALL.width + column
    assert whole[layout.uv_offset + 300 * layout.stride + column] == frame[place]


def test_footage_starts_again_after_its_last_frame(tmp_path):
    frames = nv12(SMALL, 3, tight=False)
    frames.tofile(tmp_path / "f.nv12")
    take = scene.Footage([str(tmp_path / "f.nv12")], (1344, 760), tight=False)
    assert all((take(index) == frames[index % 3]).all() for index in (0, 1, 2, 3, 7))


@pytest.mark.parametrize("size", [0, 1, 1344 * 760 * 3 // 2 + 1])
def test_a_file_of_no_whole_frames_is_refused(tmp_path, size):
    (tmp_path / "f.nv12").write_bytes(bytes(size))
    with pytest.raises(
        SourceError, match=f"{size:,} bytes?, expected a multiple of 2,428,928 or of 1,532,160"
    ):
        footage.found(tmp_path / "f.nv12", SMALL, 1.0, tmp_path)


def test_a_folder_without_frames_is_refused(tmp_path):
    with pytest.raises(SourceError, match=r"found no file that ends in .nv12"):
        footage.found(tmp_path, SMALL, 1.0, tmp_path)


def test_a_video_needs_ffmpeg(tmp_path, monkeypatch):
    (tmp_path / "drive.mp4").write_bytes(b"...")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="a video needs ffmpeg"):
        footage.found(tmp_path / "drive.mp4", SMALL, 1.0, tmp_path)


def test_a_video_goes_through_ffmpeg(tmp_path, monkeypatch):
    """A stand-in that writes as many zero bytes as ffmpeg would for one frame."""
    program = tmp_path / "ffmpeg"
    program.write_text(
        f'#!/bin/sh\nfor last; do :; done\nhead -c {1344 * 760 * 3 // 2} /dev/zero > "$last"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "drive.mp4").write_bytes(b"...")
    seen = footage.found(tmp_path / "drive.mp4", SMALL, 1.0, tmp_path)
    assert seen["tight"] and Path(seen["road"][0]).name == "1344x760.nv12"


# ---- the scene


@pytest.mark.parametrize("lens", [scene.NARROW, scene.WIDE])
def test_the_road_moves_and_comes_round_after_a_second(lens):
    frames = scene.Road((1344, 760), lens, 15.0).frames()
    again = scene.Road((1344, 760), lens, 15.0).frames()
    assert len(frames) == scene.RING
    assert all((one == other).all() for one, other in zip(frames, again, strict=True))
    assert all((one != other).any() for one, other in zip(frames, frames[1:] + frames[:1], strict=True))
    assert frames[0].size == Nv12.of(1344, 760).size


def test_warps_meet_the_horizon_in_the_middle_of_the_camera():
    for camera in ((1928, 1208), (1344, 760)):
        for lens, horizon in ((scene.NARROW, 47.6), (scene.WIDE, 151.8)):
            x, y, scale = scene.road_matrix(camera, lens, (512, 256)) @ [256, horizon, 1]
            assert (x / scale, y / scale) == pytest.approx((camera[0] / 2, camera[1] / 2), abs=1e-2)


def test_a_larger_input_sees_more_of_the_road():
    """1024x512 keeps the focal length of 910, so its centre lies 256 pixels further in."""
    for lens in (scene.NARROW, scene.WIDE):
        x, y, scale = scene.road_matrix((1928, 1208), lens, (1024, 512)) @ [512, 303.6, 1]
        assert (x / scale, y / scale) == pytest.approx((964, 604), abs=1e-2)
    narrow = scene.road_matrix((1928, 1208), scene.NARROW, (1024, 512))
    assert narrow[0, 0] == pytest.approx(2648 / 910)


def test_driver_warp_keeps_the_lower_rows():
    """The input's centre is at row 356, 480 less half of the 248 rows that it leaves out."""
    x, y, scale = scene.driver_matrix((1344, 760)) @ [720, 356, 1]
    assert (x / scale, y / scale) == pytest.approx((672, 380))
    x, y, scale = scene.driver_matrix((1928, 1208)) @ [720, 480, 1]
    assert (x / scale, y / scale) == pytest.approx((964, 728))


# ---- time


@given(st.lists(st.floats(0, 0.4), min_size=1, max_size=60))
def test_frames_are_taken_in_order_never_early_and_the_newest_when_late(steps):
    """`steps` are seconds that each frame takes to run; the clock only ever moves by them, or by waiting."""
    clock, last = 0.0, -1
    for seconds in steps:
        index = scene.next_frame(last, clock)
        assert index > last
        assert index == last + 1 or index <= clock * 20 < index + 1
        clock = max(clock, index / 20) + seconds
        last = index


def test_desires_are_lane_changes_to_either_side_in_turn():
    wanted = [int(scene.desire(index).argmax()) if scene.desire(index).any() else 0 for index in range(150)]
    assert wanted == [0] * 10 + [3] * 30 + [0] * 70 + [4] * 30 + [0] * 10


def test_latencies_in_a_report():
    facts = {"frames": 200, "late": 0, "dropped": 1, "growth_bytes": 2**20, "finite": {"plan": 199}}
    ride = Ride.of("1x1", facts | {"latencies": [n / 1000 for n in range(200, 0, -1)]})
    assert not ride.finite_throughout and not ride.in_time
    assert (ride.median_ms, ride.p99_ms, ride.max_ms) == pytest.approx((100.5, 198, 200))
    assert not ride.good
    told = "\n".join(ride.lines())
    assert "OVER the budget of 50 ms" in told
    assert "NOT FINITE plan in 1 frame" in told
    assert "+1.0 MiB" in told


@pytest.mark.parametrize(
    ("changed", "good"),
    [({}, True), ({"dropped": 1}, False), ({"late": 1}, False), ({"latencies": [0.051] * 20}, False)],
)
def test_a_replay_is_good_when_every_frame_was_run_in_time(changed, good):
    facts = {"frames": 20, "late": 0, "dropped": 0, "growth_bytes": 0, "finite": {"plan": 20}}
    assert Ride.of("1x1", {**facts, "latencies": [0.049] * 20, **changed}).good is good


# ---- a process that dies, or does not go on


@pytest.fixture
def job(graph, tmp_path):
    """A long replay of pop8, not yet started."""
    catalog = graph.catalog
    progress = tmp_path / "progress.json"
    artifact = graph.workspace.path("compiled/pop8_driving_tinygrad.pkl")
    request = {
        "operation": "replay",
        "kind": "driving",
        "outputs": {"artifact": str(artifact)},
        "cameras": [[1344, 760]],
        "seconds": 60.0,
        "speed": 15.0,
        "footage": None,
        "scratch": str(tmp_path),
        "progress": str(progress),
        "messages": None,
        "save": None,
    }
    return Job(
        label="pop8",
        request=request,
        flags=catalog.defaults.flags.values,
        tinygrad=toolchain.tinygrad_root(catalog.defaults.toolchain, graph.base),
        worker=package.packed(tmp_path, graph.toolchains.worker()),
        scratch=tmp_path,
        log=tmp_path / "pop8.log",
    )


def once_running(job, number):
    """In another thread: send a signal to the worker as soon as it runs frames."""
    progress = Path(job.request["progress"])

    def send():
        while True:
            try:
                sign = json.loads(progress.read_text())
                if sign["frame"] > 1:
                    return os.kill(sign["pid"], number)
            except (OSError, ValueError):
                pass
            time.sleep(0.01)

    threading.Thread(target=send, daemon=True).start()


def test_a_process_that_stops_is_named_frozen_and_ended(job):
    once_running(job, signal.SIGSTOP)
    with pytest.raises(
        ArtifactError, match=r"pop8: frozen while running: .*after frame \d+ .*is stopped"
    ) as caught:
        replaying.watched(job, {**PATIENCE, "running": 2.0})
    assert caught.value.fix == f"doit diagnose {job.log}"
    pid = json.loads(Path(job.request["progress"]).read_text())["pid"]
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_no_process_is_ended_because_an_artifact_names_it(job, tmp_path):
    """What is confined may write its sign of life as it likes, and stand still."""
    lines = [
        "import json, pathlib, sys, time",
        "asked = json.loads(pathlib.Path(sys.argv[2]).read_text())",
        "sign = {'pid': asked['bystander'], 'stage': 'running', 'frame': 3}",
        "pathlib.Path(asked['progress']).write_text(json.dumps(sign))",
        "time.sleep(600)",
    ]
    (tmp_path / "odd.py").write_text("\n".join(lines))
    bystander = subprocess.Popen(["sleep", "600"])
    asked = {**job.request, "bystander": bystander.pid}
    try:
        with pytest.raises(ArtifactError, match="frozen while running"):
            replaying.watched(
                replace(job, worker=tmp_path / "odd.py", request=asked), {**PATIENCE, "running": 1.0}
            )
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_that_dies_is_named_gone(job):
    once_running(job, signal.SIGKILL)
    with pytest.raises(ArtifactError, match=r"the process is gone, at frame \d+: pop8: .*signal 9"):
        replaying.watched(job)


def test_a_wrong_frame_skip_is_an_args_mismatch(job, tmp_path):
    """As when an artifact of one build is described by another: queues of other depths than captured."""
    script, wrong = tmp_path / "skip.py", tmp_path / "wrong.pkl"
    script.write_text(
        "import pickle, sys\n"
        "artifact = pickle.load(open(sys.argv[1], 'rb'))\n"
        "artifact['frame_skip'] = 2\n"
        "pickle.dump(artifact, open(sys.argv[2], 'wb'))\n"
    )
    with_tinygrad(script, job.request["outputs"]["artifact"], wrong)
    request = {**job.request, "outputs": {"artifact": str(wrong)}}
    with pytest.raises(ArtifactError, match=r"args mismatch in JIT: .*, while warming: pop8"):
        replaying.watched(replace(job, request=request))


def test_a_damaged_artifact_is_a_sentence(job, tmp_path):
    (tmp_path / "cut.pkl").write_bytes(pickle.dumps({"a": 1})[:-3])
    request = {**job.request, "outputs": {"artifact": str(tmp_path / "cut.pkl")}}
    with pytest.raises(ArtifactError, match=r"the process is gone, while loading: pop8: .*truncated"):
        replaying.watched(replace(job, request=request))


def test_an_unknown_model_is_named_with_the_nearest(graph):
    with pytest.raises(CatalogError) as caught:
        driven(graph, "monitorin")
    assert caught.value.fix == "did you mean monitoring? else models --list lists the models"


# ---- pictures


@pytest.fixture
def outputs(tmp_path):
    """A replay's arrays: a car that drives straight on for two frames, one of them without any number."""
    plan = np.zeros((2, 33, 15), np.float32)
    plan[:, :, 0] = 10 * np.linspace(0, 10, 33)
    lines = np.zeros((2, 4, 33, 2), np.float32)
    lines[:, :, :, 0] = np.array([-5, -2, 2, 5])[None, :, None]
    lines[:, 0, 5] = np.nan
    arrays = {"frame_id": [0, 1], "latency_s": [0.01, 0.02], "plan": plan, "lane_lines": lines}
    np.savez(tmp_path / "o.npz", **{f"1344x760/{name}": array for name, array in arrays.items()})
    return tmp_path / "o.npz"


def test_svg_holds_every_curve(outputs, tmp_path):
    plotting.plot(outputs, tmp_path / "p.svg", "pop8 <on> CPU")
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    curves = [one for one in root if one.tag.endswith("polyline")]
    # Two frames, four lines of which one is broken in two, the path, the latency and its budget.
    assert len(curves) == 2 + 5 + 1 + 2
    assert "pop8 <on> CPU" in [one.text for one in root if one.tag.endswith("text")]
    assert "nan" not in (tmp_path / "p.svg").read_text()


def test_png_is_one(outputs, tmp_path):
    plotting.plot(outputs, tmp_path / "p.png", "pop8")
    content = (tmp_path / "p.png").read_bytes()
    width, height = struct.unpack(">II", content[16:24])
    length = struct.unpack(">I", content[33:37])[0]
    rows = np.frombuffer(zlib.decompress(content[41 : 41 + length]), np.uint8).reshape(height, 1 + 3 * width)
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert zlib.crc32(content[37 : 41 + length]) == struct.unpack(">I", content[41 + length : 45 + length])[0]
    assert (rows[:, 0] == 0).all()
    colours = {tuple(pixel) for pixel in rows[:, 1:].reshape(-1, 3)}
    assert {(0x1A, 0x7F, 0x37), (0x1F, 0x6F, 0xEB), (0xCF, 0x22, 0x2E), (255, 255, 255)} <= colours


def test_another_kind_of_picture_is_refused(outputs, tmp_path):
    with pytest.raises(YardError, match=r"a picture in .jpg format, expected .svg or .png"):
        plotting.plot(outputs, tmp_path / "p.jpg", "")
