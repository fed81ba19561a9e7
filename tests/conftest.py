"""What is slow and shared: one workspace that holds every type of model in both contracts, built once."""

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract import OPERATORS, PATH, Project, generated, interface, model, with_tinygrad

PACKAGES = {  # of Debian, for programs that are not called like theirs
    "losetup": "mount",
    "mkfs.exfat": "exfatprogs",
    "mkfs.ext2": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mount.exfat-fuse": "exfat-fuse",
    "ps": "procps",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "umount": "mount",
}


def needs(program: str) -> str:
    """The path of one of this machine's programs; skips the test, naming its package, where there is none.

    Whatever starts a program that Python does not bring asks here first. A user's PATH may lack the folders
    of root's programs that stand beside those of his own.
    """
    folders = [Path(one) for one in PATH.split(os.pathsep)]
    beside = [folder.with_name("sbin") for folder in folders if folder.name == "bin"]
    if path := shutil.which(program, path=os.pathsep.join(map(str, [*folders, *beside]))):
        return path
    pytest.skip(f"{program} is not on this machine (Debian: {PACKAGES.get(program, program)})")


def pytest_configure(config: pytest.Config) -> None:
    """One folder of operators that have passed, for all workspaces of a run and all its processes."""
    if OPERATORS not in os.environ:
        os.environ[OPERATORS] = folder = tempfile.mkdtemp(prefix="modelyard-operators-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


CAMERAS = {"1928x1208": (1928, 1208), "1344x760": (1344, 760)}
SIZES = {"1928x1208": 4804608, "1344x760": 2428928}
STEPS = 9
DRIVING = {
    "pop": "vision-conv+attention",
    "elm": "vision-mixer+gru",
    "elm3": "multi-policy",
    "oak": "supercombo-99",
    "ash": "supercombo-24",
}
TWINS = ("pop", "elm3", "oak", "ash")  # built in the other contract too
# Depths as the documents give them: images, features, desires.
DEPTHS = {
    "vision-conv+attention": (5, 97, 100),
    "vision-mixer+gru": (5, 97, 100),
    "multi-policy": (5, 97, 100),
    "supercombo-24": (5, 96, 100),
    "supercombo-99": (2, 99, 100),
}
WARP = {
    "warp": ["img_q", "big_img_q", "tfm", "big_tfm", "frame", "big_frame"],
    "policy": ["tfm", "big_tfm", "frame", "big_frame"],
}
POLICY = {
    "warp": ["img", "big_img", "feat_q", "desire_q", "packed_npy_inputs"],
    "policy": ["warped", "img_q", "big_img_q", "feat_q", "desire_q", "packed_npy_inputs"],
}
HEADS = (  # that a driving client's parser reads of every model
    *("meta", "desire_pred", "pose", "wide_from_device_euler", "road_transform", "lane_lines"),
    *("lane_lines_prob", "road_edges", "lead", "lead_prob", "plan", "desire_state"),
)
MORE = {  # and of these
    "vision-mixer+gru": ("desired_curvature",),
    "multi-policy": ("desired_curvature", "action"),
    "supercombo-24": ("desired_curvature", "action"),
    "supercombo-99": ("desired_curvature", "sim_pose"),
}
RELEASES = """
[release.v22]
contract = "warp"
[release.v23]
from = "v22"
contract = "warp"
suffix = "3"
ids = { ash = "ashgrove" }
"""


def everything_catalog() -> str:
    """Every model type, `warp` in releases, `policy` beside them."""
    since = {one: "v23" if one == "ash" else "v22" for one in DRIVING}
    tables = [model(one, generated(DRIVING[one]), f'since = "{since[one]}"') for one in DRIVING]
    tables += [model(f"{one}-p", generated(DRIVING[one]), 'contract = "policy"') for one in TWINS]
    tables.append(model("mlp", generated("generic-mlp"), 'type = "generic"'))
    return "".join(tables) + "[monitoring]\n" + generated("dmonitoring") + RELEASES


@pytest.fixture(scope="session")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The built workspace. Read only: a test that changes something works in a `copy`."""
    project = Project(tmp_path_factory.mktemp("everything"), everything_catalog())
    project.doit("-n", "2")
    return project


@pytest.fixture
def yard(everything: Project, tmp_path: Path) -> Project:
    """A copy of the built workspace that a test may do anything to."""
    return everything.copy(tmp_path / "yard")


@dataclass(frozen=True)
class Driven:
    """What an artifact said while it was driven, and its ABI; see tests/probe.py."""

    model: str
    contract: str
    roles: dict[str, Path]
    shapes: dict[str, tuple[int, ...]]  # the policy's inputs
    hidden: slice
    abi: dict[str, Any]
    arrays: dict[str, Any]

    def seen(self, camera: str, step: int) -> tuple[Any, Any]:
        """The newest six planes of the road and the wide camera, each uint8 (6, 128, 256)."""
        if self.contract == "policy":
            both = self.arrays[f"{camera}.{step}.seen.0"]
            return both[0], both[1]
        first, second = (self.arrays[f"{camera}.{step}.seen.{i}"] for i in (0, 1))
        return first[0, 6:], second[0, 6:]

    def outputs(self, camera: str, step: int) -> list[Any]:
        """The policy's outputs of one step."""
        names = sorted(name for name in self.arrays if name.startswith(f"{camera}.{step}.out."))
        return [self.arrays[name] for name in names]


class Driver:
    """Drives artifacts of `everything`, each once a session."""

    def __init__(self, project: Project, folder: Path) -> None:
        self.project = project
        self.folder = folder
        self.done: dict[str, Driven] = {}

    def __call__(self, model_id: str) -> Driven:
        """Nine steps of both cameras."""
        if model_id not in self.done:
            self.done[model_id] = self._drive(model_id)
        return self.done[model_id]

    def _drive(self, model_id: str) -> Driven:
        import numpy as np

        architecture = DRIVING[model_id.removesuffix("-p")]
        contract = "policy" if model_id.endswith("-p") else "warp"
        folder = self.project.path(f"onnx/{model_id}")
        roles = {p.stem.partition("_driving_")[2]: p for p in sorted(folder.glob("*.onnx"))}
        first = next(role for role in ("supercombo", "on_policy", "policy") if role in roles)
        shapes, slices = interface(roles[first])
        hidden = (
            slices["hidden_state"] if "vision" not in roles else interface(roles["vision"])[1]["hidden_state"]
        )
        own = ("features_buffer", *(n for n in shapes if "img" in n or shapes[n][-1] == 8))
        images, features, desires = DEPTHS[architecture]
        queue = [images, 6, 128, 256]
        depths = {"feat_q": [features, 1, 512], "desire_q": [desires, 1, 8]}
        plan = {
            "artifact": str(self.project.path(f"compiled/{model_id}_driving_tinygrad.pkl")),
            "cameras": list(CAMERAS.values()),
            "sizes": SIZES,
            "steps": STEPS,
            "queues": {"img_q": queue, "big_img_q": queue, **depths},
            "warp": WARP[contract],
            "policy": POLICY[contract],
            "packed": [[name, shape] for name, shape in shapes.items() if name not in own],
            "feeds_back": first == "supercombo",
            "hidden": [hidden.start, hidden.stop],
        }
        plan_file, out = self.folder / f"{model_id}.json", self.folder / f"{model_id}.npz"
        plan_file.write_text(json.dumps(plan))
        abi = json.loads(with_tinygrad(Path(__file__).with_name("probe.py"), "drive", plan_file, out))
        return Driven(model_id, contract, roles, shapes, hidden, abi, dict(np.load(out)))


@pytest.fixture(scope="session")
def drive(everything: Project, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Drive a model of `everything` by its id."""
    return Driver(everything, tmp_path_factory.mktemp("driven"))
