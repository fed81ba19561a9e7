"""A build killed at random instants, again and again, and what must hold after every kill.

Two kinds of death are played. SIGKILL takes the whole process group: what was written stays. A power cut
takes, besides, everything that was not synced: the run under test notes each file it syncs, and after the
kill every other file of the workspace that was written loses its bytes.
"""

import base64
import hashlib
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from contract import PATH, Project, copied_rules, model

LIMITS = ("LIMIT = 100_000_000", "PART_SIZE = 95 * 1024 * 1024")
SMALL_LIMITS = ("LIMIT = 400_000", "PART_SIZE = 200_000")
FINAL = ("onnx", "compiled", "manifests", "source-maps", "ready-for-resources")
TICK_S = 0.02
SYNC_NOTES = """
import os
_log = os.environ.get("SYNC_LOG")
if _log:
    _fsync = os.fsync
    _file = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    def fsync(descriptor):
        _fsync(descriptor)
        os.write(_file, b"%d\\n" % os.fstat(descriptor).st_ino)
    os.fsync = fsync
"""


# What the client's parser reads of each network, in columns.
VISION = {
    "pose": 12,
    "meta": 55,
    "desire_pred": 32,
    "wide_from_device_euler": 6,
    "road_transform": 12,
    "lane_lines": 528,
    "lane_lines_prob": 8,
    "road_edges": 264,
    "lead": 144,
    "lead_prob": 3,
    "hidden_state": 512,
}
POLICY = {"plan": 990, "desire_state": 8, "pad": 2}


def cut(widths: Mapping[str, int]) -> dict[str, slice]:
    """Slices one behind the other."""
    ends = [*accumulate(widths.values())]
    return {name: slice(end - widths[name], end) for name, end in zip(widths, ends, strict=True)}


def tiny_model(folder: Path, seed: int) -> None:
    """The smallest split model with the true contract: two kernels' worth of vision, one of policy."""
    import numpy as np
    import onnx
    from onnx import TensorProto as T
    from onnx import helper as h
    from onnx import numpy_helper as nh

    weights = np.random.RandomState(seed)

    def tensor(name: str, *shape: int) -> Any:
        return nh.from_array((weights.uniform(-1, 1, shape) / 8).astype(np.float16), name)

    def save(name: str, nodes: list[Any], inputs: dict[str, Any], tensors: list[Any], slices: Any) -> None:
        values = [h.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
        width = {"driving_vision": 1576, "driving_policy": 1000}[name]
        output = h.make_tensor_value_info("outputs", T.FLOAT16, [1, width])
        graph = h.make_graph(nodes, name, values, [output], tensors)
        network = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
        text = base64.b64encode(pickle.dumps(slices, protocol=4)).decode()
        network.metadata_props.add(key="output_slices", value=text)
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(network, folder / f"{name}.onnx")

    image = (T.UINT8, [1, 12, 128, 256])
    save(
        "driving_vision",
        [
            h.make_node("Cast", ["img"], ["a"], to=T.FLOAT16),
            h.make_node("Cast", ["big_img"], ["b"], to=T.FLOAT16),
            h.make_node("Concat", ["a", "b"], ["c"], axis=1),
            h.make_node("Mul", ["c", "scale"], ["d"]),
            h.make_node("Conv", ["d", "w"], ["e"], strides=[32, 32], kernel_shape=[4, 4]),
            h.make_node("Flatten", ["e"], ["f"]),
            h.make_node("Gemm", ["f", "v", "u"], ["g"]),
            h.make_node("Tanh", ["g"], ["outputs"]),
        ],
        {"img": image, "big_img": image},
        [
            nh.from_array(np.float16(1 / 256), "scale"),
            tensor("w", 4, 24, 4, 4),
            tensor("v", 128, 1576),
            tensor("u", 1576),
        ],
        cut(VISION),
    )
    save(
        "driving_policy",
        [
            h.make_node("ReduceMean", ["features_buffer"], ["m"], axes=[1], keepdims=0),
            h.make_node("Flatten", ["desire_pulse"], ["d"]),
            h.make_node("Concat", ["m", "d", "traffic_convention"], ["c"], axis=1),
            h.make_node("Gemm", ["c", "w", "u"], ["outputs"]),
        ],
        {
            "desire_pulse": (T.FLOAT16, [1, 25, 8]),
            "traffic_convention": (T.FLOAT16, [1, 2]),
            "features_buffer": (T.FLOAT16, [1, 25, 512]),
        },
        [tensor("w", 714, 1000), tensor("u", 1000)],
        cut(POLICY),
    )


def catalog(models: int) -> str:
    """So many tiny models, all of them in parts, in both releases."""
    tables = [
        model(f"m{i}", f'source = {{ path = "sources/m{i}", format = "split" }}', 'since = "v22"')
        for i in range(models)
    ]
    releases = (
        '[release.v22]\ncontract = "warp"\n[release.v23]\nfrom = "v22"\ncontract = "warp"\nsuffix = "_3"\n'
    )
    return "".join(tables) + releases


def edit_rules(rules: dict[str, str], file: str, old: str, new: str) -> None:
    """Change a copied package, as a careless hand would."""
    path = Path(rules["PYTHONPATH"]) / "rules" / file
    text = path.read_text()
    assert old in text, (file, old)
    path.write_text(text.replace(old, new))


def small_parts(folder: Path) -> dict[str, str]:
    """A copy of the package in which tiny artifacts need parts, and whose runs note what they sync."""
    rules = copied_rules(folder)
    for old, new in zip(LIMITS, SMALL_LIMITS, strict=True):
        edit_rules(rules, "releasing/parts.py", old, new)
    (folder / "sitecustomize.py").write_text(SYNC_NOTES)
    return rules


@dataclass
class Harness:
    """One project under fire. `reference` is an undisturbed build of the same catalog."""

    project: Project
    reference: Project
    rules: dict[str, str]
    power_cut: bool
    random: random.Random
    kills: int = 0
    rebuilt: list[str] = field(default_factory=list)

    @classmethod
    def set_up(
        cls, folder: Path, models: int, *, power_cut: bool, seed: int, rules: dict[str, str]
    ) -> "Harness":
        """Build the reference once; the project under fire starts from nothing."""
        reference = Project(folder / "reference", catalog(models))
        for i in range(models):
            tiny_model(reference.folder / f"sources/m{i}", i)
        project = Project(folder / "project", catalog(models))
        (project.folder / "sources").symlink_to(reference.folder / "sources")
        reference.doit("-n", "2", env=rules)
        return cls(project, reference, rules, power_cut, random.Random(seed))

    def run_and_kill(self, after: float) -> bool:
        """Start a build and kill all of it after so many seconds; returns whether it ended before that."""
        log = self.project.folder / "synced"
        log.unlink(missing_ok=True)
        log.touch()
        done_before = self.finished()
        started = time.time()
        child = subprocess.Popen(
            [sys.executable, "-m", "doit", "-n", "2"],
            cwd=self.project.folder,
            env={"PATH": PATH, "HOME": str(self.project.folder), "SYNC_LOG": str(log), **self.rules},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = child.communicate(timeout=after)
            assert child.returncode == 0, output
            ended = True
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
            ended = False
            self.kills += 1
            if self.power_cut:
                self.lose_what_was_not_synced(started, {int(line) for line in log.read_text().split()})
        self.rebuilt += sorted(done_before & set(re.findall(r"^✓  (\S+)", output, re.M)))
        return ended

    def lose_what_was_not_synced(self, since: float, synced: set[int]) -> None:
        """What a power cut does to files that were written and never synced."""
        for path in self.project.workspace.rglob("*"):
            if path.is_file() and not path.is_symlink():
                found = path.stat()
                # What an earlier run wrote it synced then, or lost then; a tick is what file times may lag.
                if found.st_ino not in synced and found.st_mtime >= since - TICK_S:
                    path.chmod(0o644)
                    os.truncate(path, 0)

    def finished(self) -> set[str]:
        """The steps that have a record."""
        records = [json.loads(p.read_text() or "{}") for p in self.project.path("results").glob("*.json")]
        return {record["step"] for record in records if "key" in record}

    def check(self) -> None:
        """No wrong file under a final name: each is the reference's, byte for byte, or absent."""
        good = self.reference.files()
        for name, content in self.project.files().items():
            top = name.split("/")[0]
            if top in FINAL and not Path(name).name.startswith(".tmp-"):
                assert content == good.get(name), f"{name} is not what an undisturbed build makes"
        for blob in sorted(self.project.path(".store/cas").rglob("*")):
            if blob.is_file() and not blob.name.startswith(".tmp-"):
                assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name, blob
        for path in sorted(self.project.path("results").glob("*.json")):
            if not path.name.startswith(".tmp-"):
                json.loads(path.read_text())

    def check_release(self) -> None:
        """The whole build is what it would have been without the kills."""
        for folder in FINAL:
            assert self.project.files(folder) == self.reference.files(folder), folder

    def storm(self, kills: int, longest: float) -> None:
        """Kill builds at random instants, so many times; whenever one ends, begin again from nothing."""
        while self.kills < kills:
            ended = self.run_and_kill(self.random.uniform(0.05, longest))
            self.check()
            if ended:
                self.check_release()
                self.begin_again()
        self.project.doit("-n", "2", env=self.rules)
        self.check()
        self.check_release()
        assert not self.rebuilt, f"finished work was done again: {self.rebuilt}"

    def begin_again(self) -> None:
        """An empty workspace."""
        subprocess.run(["rm", "-rf", str(self.project.workspace)], check=True)
