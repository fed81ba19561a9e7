"""The captured functions against plain numpy and onnxruntime: warps, queues, both contracts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import pytest
from conftest import CAMERAS, DRIVING, SIZES, STEPS, TWINS, Driven, Driver
from contract import Project, desire, frame, matrix, packed_part, with_tinygrad

from rules.worker.nv12 import Nv12

Array = Any
LAYOUTS = {  # stride, start of the chroma plane, size in bytes, each by hand from the layout's rule
    "1928x1208": (2048, 2048 * 1216, 4804608),
    "1344x760": (1408, 1408 * 768, 2428928),
}
ROUNDING = 2e-3  # a pixel this close to halfway may go either way in float32


@pytest.mark.parametrize("camera", CAMERAS)
def test_nv12_layout(camera: str) -> None:
    layout = Nv12.of(*CAMERAS[camera])
    assert (layout.stride, layout.uv_offset, layout.size) == LAYOUTS[camera]


def sampled(plane: Array, warp: Array, size: tuple[int, int], scale: int) -> tuple[Array, Array, Array]:
    """Nearest pixels (H, W), where that is beyond doubt, and where the source lies inside the plane."""
    lines, columns = np.mgrid[0 : size[1], 0 : size[0]].astype(np.float64) * scale
    source = np.einsum(
        "ij,jhw->ihw", warp.astype(np.float64), np.stack([columns, lines, np.ones_like(lines)])
    )
    x, y = source[0] / source[2] / scale, source[1] / source[2] / scale
    exact = all(float(v) * 4 % 1 == 0 for v in warp.flat)
    doubt = [abs(v - np.floor(v) - 0.5) < ROUNDING for v in (x, y)]
    sure = np.ones(x.shape, bool) if exact else ~(doubt[0] | doubt[1])
    x, y = np.rint(x), np.rint(y)
    inside = (x >= 0) & (y >= 0) & (x < plane.shape[1]) & (y < plane.shape[0])
    column = np.clip(x, 0, plane.shape[1] - 1).astype(int)
    return plane[np.clip(y, 0, plane.shape[0] - 1).astype(int), column], sure, inside


def planes_of(pixels: Array, camera: str) -> tuple[Array, Array, Array]:
    """Luma, U and V of an NV12 frame."""
    width, height = CAMERAS[camera]
    stride, start, _ = LAYOUTS[camera]
    luma = pixels[: stride * height].reshape(height, stride)[:, :width]
    chroma = pixels[start : start + stride * (height // 2)].reshape(height // 2, stride)[:, :width]
    return luma, chroma[:, 0::2], chroma[:, 1::2]


def six_planes(step: int, wide: bool, camera: str) -> tuple[Array, Array]:
    """What a model must see of one frame, (6, 128, 256), and where that is beyond doubt."""
    warp = matrix(step, wide, CAMERAS[camera], (512, 256))
    luma, u, v = planes_of(frame(step, wide, SIZES[camera]), camera)
    found, sure, inside = sampled(luma, warp, (512, 256), 1)
    assert step == 2 or 0.05 < (~inside).mean() < 0.6  # the test must see the border repeated
    corners = [(slice(row, None, 2), slice(column, None, 2)) for column in (0, 1) for row in (0, 1)]
    colours = [sampled(plane, warp, (256, 128), 2) for plane in (u, v)]
    values = [found[corner] for corner in corners] + [one[0] for one in colours]
    return np.stack(values), np.stack([sure[corner] for corner in corners] + [one[1] for one in colours])


@pytest.mark.parametrize("camera", CAMERAS)
@pytest.mark.parametrize("model_id", ["pop", "pop-p"])
def test_warp_takes_the_nearest_pixel(drive: Driver, model_id: str, camera: str) -> None:
    driven = drive(model_id)
    for step in range(4):
        for wide, seen in enumerate(driven.seen(camera, step)):
            expected, sure = six_planes(step, bool(wide), camera)
            assert sure.mean() > 0.98
            assert (seen == expected)[sure].all()


@pytest.mark.parametrize("model_id", ["pop", "pop-p"])
def test_a_warp_loads_each_pixel_once(drive: Driver, model_id: str) -> None:
    sums = drive(model_id).abi["sums"]
    assert sums["run_policy"]
    assert [sums[str(size)] for size in CAMERAS.values()] == [[], []]


def test_monitoring_warp_fills_outside_with_16(everything: Project, tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    probe = Path(__file__).with_name("probe.py")
    metadata = json.loads(with_tinygrad(probe, "monitoring", everything.path("driver-monitoring"), out))
    arrays = np.load(out)
    for camera, size in CAMERAS.items():
        for step in range(2):
            luma = planes_of(frame(step, False, SIZES[camera]), camera)[0]
            warp = matrix(step, False, size, (1440, 960))
            found, sure, inside = sampled(luma, warp, (1440, 960), 1)
            expected = np.where(inside, found, 16).reshape(1, -1)
            seen = arrays[f"{camera}.{step}.warped"]
            assert seen.shape == (1, 1440 * 960)
            assert seen.dtype == np.uint8
            assert 0.05 < (~inside).mean() < 0.6
            assert (seen == expected)[sure.reshape(1, -1)].all()
            output = arrays[f"{camera}.{step}.out"]
            assert output.shape == (1, 553)
            assert np.isfinite(output).all()
    assert metadata["input_shapes"] == "{'input_img': (1, 1382400), 'calib': (1, 3)}"


@pytest.mark.parametrize("model_id", TWINS)
def test_both_contracts_say_the_same(drive: Driver, model_id: str) -> None:
    one, other = drive(model_id), drive(f"{model_id}-p")
    for camera in CAMERAS:
        for step in range(STEPS):
            for left, right in zip(one.outputs(camera, step), other.outputs(camera, step), strict=True):
                np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("model_id", DRIVING)
def test_image_stack_holds_now_and_one_skip_ago(drive: Driver, model_id: str) -> None:
    driven = drive(model_id)
    skip = driven.abi["plain"]["frame_skip"]
    assert skip == (1 if DRIVING[model_id] == "supercombo-99" else 4)
    for step in range(STEPS):
        for wide in (0, 1):
            stack = driven.arrays[f"1344x760.{step}.seen.{wide}"]
            assert stack.shape == (1, 12, 128, 256)
            ago = driven.seen("1344x760", step - skip)[wide] if step >= skip else np.zeros((6, 128, 256))
            assert (stack[0, :6] == ago).all()


def history(driven: Driven, camera: str, step: int, skip: int, *, late: int = 0) -> dict[str, Array]:
    """The policy's own inputs at a step, from what was fed and seen so far."""
    shapes = driven.shapes
    desire_key = next(name for name in shapes if name.startswith("desire") and shapes[name][-1] == 8)
    groups, steps = shapes[desire_key][1], shapes["features_buffer"][1]
    whole = "supercombo" in driven.roles
    pulses = np.zeros((skip * groups, 8), np.float32)
    features = np.zeros((steps, 512), np.float32)
    for back in range(step + 1):
        pulses[-1 - back] = desire(step - back)
    for entry in range(steps):
        # A vision model's newest feature is of this very frame; a supercombo's newest is one skip old.
        at = step - skip * (steps - 1 - entry) - (skip if whole else 0) - late
        if at >= 0:
            features[entry] = driven.outputs(camera, at)[0][0, driven.hidden]
    others = {
        name: packed_part(step, name, shape)
        for name, shape in shapes.items()
        if name not in (desire_key, "features_buffer") and "img" not in name
    }
    grouped = pulses.reshape(groups, skip, 8).max(axis=1)
    return {desire_key: grouped[None], "features_buffer": features[None], **others}


class Reference:
    """One ONNX file, run by onnxruntime."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def __call__(self, inputs: dict[str, Array]) -> Array:
        fed = {}
        for one in self.session.get_inputs():
            kind = {"tensor(uint8)": np.uint8, "tensor(float16)": np.float16}[one.type]
            fed[one.name] = np.ascontiguousarray(inputs[one.name].astype(kind))
        return self.session.run(None, fed)[0].astype(np.float32)


def distance(left: Array, right: Array) -> float:
    """Largest difference, against the reference's own spread."""
    return float(abs(left - right).max() / (right.std() + 1e-6))


@pytest.mark.parametrize("model_id", DRIVING)
def test_outputs_follow_the_onnx_over_many_frames(drive: Driver, model_id: str) -> None:
    driven = drive(model_id)
    skip = driven.abi["plain"]["frame_skip"]
    roles = {role: Reference(path) for role, path in driven.roles.items()}
    camera = "1344x760"
    near, far = [], []
    for step in range(STEPS):
        road, wide = (driven.arrays[f"{camera}.{step}.seen.{i}"] for i in (0, 1))
        images = {"img": road, "big_img": wide, "input_imgs": road, "big_input_imgs": wide}
        right = images | history(driven, camera, step, skip)
        wrong = images | history(driven, camera, step, skip, late=1)
        names = ("supercombo", "vision", "on_policy", "off_policy", "policy")
        for role, output in zip((n for n in names if n in roles), driven.outputs(camera, step), strict=True):
            near.append(distance(output, roles[role](right)))
            far.append(distance(output, roles[role](wrong)))
    assert max(near) < 0.05
    assert max(far) > 3 * max(near)  # features of another frame would have shown


HASHED = """
import pickle
from tinygrad.renderer.isa import Register
from rules.worker import registers

class Counted(str):
    hashed = 0
    def __hash__(self):
        Counted.hashed += 1
        return super().__hash__()

plain = Register("xmm0", 0, (Register("xmm1", 1), Register("xmm2", 2)), 16)
before = hash(plain), pickle.dumps(plain), repr(plain)
registers.remember_hashes()
for _ in range(2):
    assert (hash(plain), pickle.dumps(plain), repr(plain)) == before
again = pickle.loads(pickle.dumps(plain))
assert again == plain and hash(again) == hash(plain) and again.cons == plain.cons
counted = Register(Counted("xmm0"), 0)
assert len({hash(counted) for _ in range(3)}) == 1
print(Counted.hashed)
"""


def test_a_register_is_hashed_once_and_stays_as_it_was(tmp_path: Path) -> None:
    script = tmp_path / "hashed.py"
    script.write_text(HASHED)
    assert with_tinygrad(script) == "1\n"


FORKED = """
import ctypes
from tinygrad import Tensor
from rules.worker import forks, memory

def write():
    memory.only_read()
    ctypes.memset(shared, 7, 1)

def reads():
    memory.only_read()
    return ones.numpy().sum().item(), (Tensor.ones(8).contiguous() + 1).numpy().sum().item()

ones = Tensor.ones(100_000).contiguous().realize()
shared = ones.uop.buffer._buf.va_addr
def results(*jobs):
    return [forks.result(answer) for answer in forks.answers([forks.begin(job) for job in jobs])]

print("said once", end="")
print("", results(reads, lambda: print(" and in a fork", end="") or 1))
for job in (write, lambda: 1 / 0):
    try:
        results(reads, job)
    except RuntimeError as error:
        print(str(error).splitlines()[0], str(error).splitlines()[-1])
print(ones.numpy().sum().item())

def fills(size):
    return len(bytearray(size))

forks.most_bytes = 0
results(lambda: fills(100 << 20), lambda: fills(50 << 20))
results(lambda: fills(20 << 20))
print(150 << 20 <= forks.most_bytes < 250 << 20)
"""


def test_a_fork_that_writes_to_shared_memory_dies_and_is_told(tmp_path: Path) -> None:
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    assert with_tinygrad(script).splitlines() == [
        "said once and in a fork [(100000.0, 16.0), 1]",
        "a fork failed: its process died a fork failed: its process died",
        "a fork failed: Traceback (most recent call last): ZeroDivisionError: division by zero",
        "100000.0",
        "True",
    ]


KILLED = """
import gc, os, signal
import numpy as np
from tinygrad import Tensor
from rules.worker import firstrun, forks
from rules.worker.feed import Step

forks.cores = lambda: 2  # on any machine: a single processor can run forks, too

class Unit:
    starter = os.getpid()

    def captures(self, files):
        return {}

    def drives(self, files, seed, steps):
        return [self.drive(camera, steps) for camera in range(3)]

    def drive(self, camera, steps):
        for step in range(steps):
            if camera == DEADLY and step and os.getpid() != self.starter:
                os.kill(os.getpid(), signal.SIGKILL)
            yield Step(str(camera), [np.array([camera, step], np.float32)], [], {})

gc.disable()  # as a compile does
Tensor.ones(8).contiguous().realize()
replays = []
for DEADLY in (1, None):
    replays.append(firstrun.first_run(Unit(), {}))
assert replays[0] == replays[1]
print(len(replays[0]), [step["label"] for step in replays[0]] == sorted("012" * 8))
"""


def test_a_camera_whose_fork_was_killed_is_driven_all_the_same(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    warned, told = with_tinygrad(script).splitlines()
    assert warned.startswith("warning: a process that drove a camera died")
    assert told == "24 True"
