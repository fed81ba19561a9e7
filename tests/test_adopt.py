"""`doit adopt`: a StarPilot workspace as other tools left it, taken in as far as it can be proven."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from contract import PATH, ROOT, Project, generated, model

from rules import pins
from rules.catalog import load
from rules.keeping.digests import Digest
from rules.releasing import parts
from rules.sources.generated import generate

PROGRAM = """
import sys
from doit.doit_cmd import DoitMain
from rules.commands.adopt import Adopt

class Main(DoitMain):
    DOIT_CMDS = (*DoitMain.DOIT_CMDS, Adopt)

sys.exit(Main().run(sys.argv[1:]))
"""
SPLIT, MULTI = "vision-conv+attention", "multi-policy"
GIT = f'source = {{ ref = "{"a" * 40}", format = "split", repository = "/nonexistent/repository" }}\n'
CATALOG = (
    model("pop22", GIT, 'since = "v22"')
    + model("rdf2", GIT.replace("a" * 40, "b" * 40), 'since = "v22"')
    + model("elm", generated(MULTI), 'since = "v22"')
    + model("oak", 'source = { kind = "file", path = "oaks", format = "split" }\n')
    + model("mlp", generated("generic-mlp"), 'type = "generic"')
    + "[monitoring]\n"
    + generated("dmonitoring")
    + '[release.v22]\ncontract = "warp"\n[release.v23]\nfrom = "v22"\ncontract = "warp"\nsuffix = "3"\n'
)
PKL = "_driving_tinygrad.pkl"
UNRECORDED = "no record says what it was built from"


@cache
def networks(architecture: str, seed: int = 1) -> Mapping[str, bytes]:
    return generate(architecture, seed=seed, width=4)


class Drive:
    """A catalog, and beside it a StarPilot workspace that `doit adopt` is told of."""

    def __init__(self, folder: Path, artifact: bytes = b"") -> None:
        self.project = Project(folder / "yard", CATALOG)
        self.folder = folder / "StarPilot-Model-Rebuild"
        self.artifact = artifact

    def put(self, path: str, content: bytes) -> Path:
        final = self.folder / path
        final.parent.mkdir(parents=True, exist_ok=True)
        final.write_bytes(content)
        return final

    def put_onnx(self, model_id: str, architecture: str, seed: int = 1) -> list[str]:
        paths = [f"onnx/{model_id}/{model_id}_{role}.onnx" for role in sorted(networks(architecture, seed))]
        for path, (_, content) in zip(paths, sorted(networks(architecture, seed).items()), strict=True):
            self.put(path, content)
        return paths

    def put_parts(self, whole: str, folder: str = "ready-for-resources") -> None:
        """The artifact in parts of 10 kB, with their checksum."""
        source = self.folder.parent / whole
        source.write_bytes(self.artifact)
        parts.split(source, self.folder / folder, part_size=10_000, force=True)

    def pin(self, model_id: str, files: Mapping[str, bytes]) -> None:
        source = load(self.project.folder / "models.toml").models[model_id].source
        found = {role: Digest(hashlib.sha256(one).hexdigest(), len(one)) for role, one in files.items()}
        path = self.project.folder / "models.lock.json"
        pins.write(path, pins.read(path).with_pins(model_id, source, found))

    def adopt(self, *words: object, code: int = 0) -> str:
        """What it prints; asserts the exit code, and that nothing in the folder was changed."""
        before = self.state()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "adopt", *map(str, words or (self.folder,))],
            cwd=self.project.folder,
            env={
                "PATH": PATH,
                "HOME": str(self.project.folder),
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        assert self.state() == before
        return done.stdout + done.stderr

    def found(self, code: int = 0) -> dict[str, tuple[str, str]]:
        """Standing and reason by path."""
        told = json.loads(self.adopt("--json", self.folder, code=code))
        return {one["path"]: (one["standing"], one["reason"]) for one in told["files"]}

    def state(self) -> list[tuple[object, ...]]:
        """Every name of the folder with what a stat says (not the time of reading) and its bytes."""
        rows: list[tuple[object, ...]] = []
        paths = sorted(self.folder.rglob("*"))
        for path in (path for path in paths if ".store" not in path.parts):  # that is a workspace of ours
            stat = path.lstat()
            content = path.read_bytes() if path.is_file() else None
            rows.append(
                (path, stat.st_ino, stat.st_mode, stat.st_nlink, stat.st_mtime_ns, stat.st_ctime_ns, content)
            )
        return rows

    def records(self) -> list[str]:
        folder = self.project.path("results")
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real compiled artifact."""
    project = Project(
        tmp_path_factory.mktemp("mlp"), model("mlp", generated("generic-mlp"), 'type = "generic"')
    )
    project.doit("pkl:mlp")
    return project.path("compiled/mlp_tinygrad.pkl").read_bytes()


@pytest.fixture
def drive(tmp_path: Path, artifact: bytes) -> Drive:
    """An empty StarPilot workspace."""
    made = Drive(tmp_path, artifact)
    made.folder.mkdir()
    (made.folder / "onnx").mkdir()
    return made


# ---- sources that are proven


def test_files_as_pinned_are_recorded_and_never_fetched(drive: Drive) -> None:
    paths = drive.put_onnx("pop22", SPLIT)
    drive.pin("pop22", networks(SPLIT))
    assert {drive.found()[path][0] for path in paths} == {"proven"}
    assert drive.project.files("onnx") == {
        path.removeprefix("onnx/"): (drive.folder / path).read_bytes() for path in paths
    }
    record = drive.project.record("pop22_source")
    assert record["step"] == "onnx:pop22"
    assert set(record["facts"]) == set(networks(SPLIT))
    assert drive.project.made("onnx:pop22") == []  # its repository does not exist


def test_a_recorded_file_shares_nothing_with_the_original(drive: Drive) -> None:
    paths = drive.put_onnx("pop22", SPLIT)
    drive.pin("pop22", networks(SPLIT))
    drive.adopt()
    for path in paths:
        assert (drive.folder / path).stat().st_nlink == 1
        (drive.folder / path).write_bytes(b"changed later")
    assert drive.project.made("onnx:pop22") == []
    assert drive.project.path(paths[0]).read_bytes() == networks(SPLIT)["driving_policy"]


def test_generated_and_local_sources_prove_themselves(drive: Drive) -> None:
    oaks = drive.project.folder / "oaks"
    oaks.mkdir()
    for role, content in networks(SPLIT, 5).items():
        (oaks / f"{role}.onnx").write_bytes(content)
    paths = drive.put_onnx("elm", MULTI) + drive.put_onnx("oak", SPLIT, 5)
    drive.put("driver-monitoring/dmonitoring_model.onnx", networks("dmonitoring")["dmonitoring_model"])
    drive.put("onnx/mlp/mlp_model.onnx", networks("generic-mlp")["model"])
    found = drive.found()
    assert {found[path][0] for path in paths} == {"proven"}
    assert {standing for standing, _ in found.values()} == {"proven"}
    tasks = ("onnx:elm", "onnx:oak", "onnx:monitoring", "onnx:mlp")
    assert drive.project.made(*tasks) == []


def test_what_is_up_to_date_is_left_alone(drive: Drive) -> None:
    drive.put_onnx("elm", MULTI)
    drive.adopt()
    before = (drive.project.path("results/elm_source.json")).read_bytes()
    assert "recorded: onnx:elm" in drive.adopt()
    assert drive.project.path("results/elm_source.json").read_bytes() == before


def test_a_dry_run_records_nothing(drive: Drive) -> None:
    drive.put_onnx("elm", MULTI)
    assert "would be recorded: onnx:elm" in drive.adopt(drive.folder, "--dry-run")
    assert drive.records() == []
    assert drive.project.files("onnx") == {}


def test_a_path_with_spaces_and_other_letters(tmp_path: Path, artifact: bytes) -> None:
    drive = Drive(tmp_path / "Läufwerk T5 📡 模型", artifact)
    drive.put_onnx("elm", MULTI)
    assert "recorded: onnx:elm" in drive.adopt()


# ---- sources that are not


def test_without_a_pin_nothing_is_proven(drive: Drive) -> None:
    (path, *_) = drive.put_onnx("pop22", SPLIT)
    standing, reason = drive.found()[path]
    assert standing == "stale"
    assert "models.lock.json has no pin" in reason
    assert "doit pin pop22" in reason
    assert drive.records() == []


def test_a_pin_of_another_ref_proves_nothing(drive: Drive) -> None:
    drive.put_onnx("pop22", SPLIT)
    drive.pin("pop22", networks(SPLIT))
    drive.project.edit("a" * 40, "c" * 40)
    assert {standing for standing, _ in drive.found().values()} == {"stale"}


def test_other_bytes_are_told_with_both_digests(drive: Drive) -> None:
    policy, vision = drive.put_onnx("pop22", SPLIT, seed=2)
    right = networks(SPLIT)
    drive.put(vision, right["driving_vision"])
    drive.pin("pop22", right)
    found = drive.found()
    for content in (right["driving_policy"], networks(SPLIT, 2)["driving_policy"]):
        assert hashlib.sha256(content).hexdigest()[:12] in found[policy][1]
    assert found[vision] == ("stale", "as its source gives it, but driving_policy.onnx is another")
    assert drive.records() == []


def test_half_a_set_is_not_taken_in(drive: Drive) -> None:
    policy, vision = drive.put_onnx("pop22", SPLIT)
    drive.pin("pop22", networks(SPLIT))
    (drive.folder / policy).unlink()
    assert drive.found()[vision] == ("stale", "as its source gives it, but driving_policy.onnx is missing")
    assert drive.records() == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (networks(SPLIT)["driving_policy"][:-100], "driving_policy.onnx"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 5\n",
            "LFS pointer",
        ),
        (b"", "empty"),
    ],
)
def test_a_damaged_network_is_told(drive: Drive, content: bytes, said: str) -> None:
    policy, vision = drive.put_onnx("pop22", SPLIT)
    drive.pin("pop22", networks(SPLIT))
    drive.put(policy, content)
    found = drive.found(code=1)
    assert found[policy][0] == "damaged"
    assert said in found[policy][1]
    assert found[vision][0] == "stale"


def test_a_pinned_network_that_cannot_be_compiled_is_told(drive: Drive) -> None:
    """What its pin says, and no model: the ordinary checks of a fetched file refuse it."""
    junk = dict.fromkeys(networks(SPLIT), b"\x08\x08not a network")
    for role, content in junk.items():
        drive.put(f"onnx/pop22/pop22_{role}.onnx", content)
    drive.pin("pop22", junk)
    assert "not recorded: " in drive.adopt(code=1)
    assert drive.records() == ["pop22_failure.json"]
    assert drive.project.files("onnx") == {}


def test_names_that_say_another_model_are_strangers(drive: Drive) -> None:
    drive.put_onnx("pop22", SPLIT)
    drive.pin("pop22", networks(SPLIT))
    drive.put("onnx/pop22/rdf2_driving_vision.onnx", b"x")
    drive.put("onnx/pop2/pop2_driving_vision.onnx", b"x")
    drive.put("onnx/loose.onnx", b"x")
    drive.put("notes.txt", b"x")
    found = drive.found()
    strangers = {path for path, (standing, _) in found.items() if standing == "stranger"}
    assert strangers == {
        "notes.txt",
        "onnx/loose.onnx",
        "onnx/pop2/pop2_driving_vision.onnx",
        "onnx/pop22/rdf2_driving_vision.onnx",
    }
    assert found["onnx/pop2/pop2_driving_vision.onnx"][1].endswith(
        "no model pop2 in models.toml; did you mean pop22?"
    )


# ---- artifacts


def test_an_artifact_is_never_proven(drive: Drive) -> None:
    drive.put(f"compiled/pop22{PKL}", drive.artifact)
    drive.put(f"ready-for-resources/pop223{PKL}", drive.artifact)  # its name in v23
    found = drive.found()
    for path in (f"compiled/pop22{PKL}", f"ready-for-resources/pop223{PKL}"):
        standing, reason = found[path]
        assert standing == "stale"
        assert reason.startswith(UNRECORDED)
        assert "on CPU" in reason
        assert "for this tinygrad" in reason
    assert drive.records() == []
    assert "onnx:pop22" in drive.project.doit("outdated", "pkl:pop22").stdout


def test_real_artifacts_are_told_apart_by_what_they_were_captured_on(drive: Drive) -> None:
    data = os.environ.get("MODELYARD_DATA")
    if not data:
        pytest.skip("MODELYARD_DATA names no folder of real files")
    name = "dm_warp_1344x760_tinygrad.pkl"
    real = (Path(data) / "artifacts" / name).read_bytes()
    drive.put(f"compiled/pop22{PKL}", real)
    (reason,) = {reason for path, (_, reason) in drive.found().items() if path.startswith("compiled/")}
    assert "on QCOM" in reason
    assert "for another tinygrad" in reason


def test_parts_that_join_are_stale_like_a_whole(drive: Drive) -> None:
    drive.put_parts(f"pop22{PKL}")
    found = drive.found()
    assert len(found) > 2
    assert {standing for standing, _ in found.values()} == {"stale"}


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: flip(folder / f"pop22{PKL}.p01"), "wrong sha256"),
        (lambda folder: (folder / f"pop22{PKL}.p00").unlink(), f"part pop22{PKL}.p00 is missing"),
        (lambda folder: (folder / f"pop22{PKL}.sha256").unlink(), f"no pop22{PKL}.sha256"),
        (lambda folder: [one.unlink() for one in folder.glob("*.p??")], "expected an artifact, got nothing"),
        (lambda folder: (folder / f"pop22{PKL}.chunkmanifest").write_text("4\n"), "shadow"),
        (lambda folder: (folder / f"pop22{PKL}.sha256").write_text("x"), "not a checksum file"),
    ],
    ids=["flipped", "missing part", "no checksum", "no parts", "chunk marker", "bad checksum"],
)
def test_parts_that_do_not_join_are_damaged(drive: Drive, harm: object, said: str) -> None:
    drive.put_parts(f"pop22{PKL}")
    assert callable(harm)
    harm(drive.folder / "ready-for-resources")
    found = drive.found(code=1)
    assert {standing for standing, _ in found.values()} == {"damaged"}
    assert said in next(iter(found.values()))[1]


def test_a_whole_file_beside_its_parts_is_checked_too(drive: Drive) -> None:
    drive.put_parts(f"pop22{PKL}", "compiled")
    whole = drive.put(f"compiled/pop22{PKL}", drive.artifact)
    assert {standing for standing, _ in drive.found().values()} == {"stale"}
    flip(whole)
    assert {standing for standing, _ in drive.found(code=1).values()} == {"damaged"}


def test_a_marker_that_shadows_a_whole_file_is_told(drive: Drive) -> None:
    drive.put(f"compiled/pop22{PKL}", drive.artifact)
    drive.put(f"compiled/pop22{PKL}.chunkmanifest", b"3\n")
    found = drive.found(code=1)
    assert "shadow" in found[f"compiled/pop22{PKL}"][1]


def test_an_artifact_of_no_model_is_named_with_the_nearest(drive: Drive) -> None:
    drive.put(f"compiled/pop21{PKL}", drive.artifact)
    drive.put("compiled/readme.pkl", drive.artifact)
    found = drive.found()
    assert found[f"compiled/pop21{PKL}"] == ("stranger", "no model pop21 in models.toml; did you mean pop22?")
    assert found["compiled/readme.pkl"][0] == "stranger"


def test_driver_monitoring_is_one_set(drive: Drive) -> None:
    names = [
        "dmonitoring_model_tinygrad.pkl",
        "dmonitoring_model_metadata.pkl",
        "dm_warp_1928x1208_tinygrad.pkl",
        "dm_warp_1344x760_tinygrad.pkl",
    ]
    for name in names:
        drive.put(f"driver-monitoring/{name}", drive.artifact)
    assert {standing for standing, _ in drive.found().values()} == {"stale"}
    (drive.folder / "driver-monitoring" / names[2]).unlink()
    found = drive.found(code=1)
    assert {standing for standing, _ in found.values()} == {"damaged"}
    assert all(f"{names[2]} is missing" in reason for _, reason in found.values())


# ---- everything else


def test_litter_is_ignored_everywhere(drive: Drive) -> None:
    drive.put_onnx("elm", MULTI)
    drive.put(f"compiled/pop22{PKL}", drive.artifact)
    for path in sorted(drive.folder.rglob("*")):
        (path.parent / ".DS_Store").write_bytes(b"x")
        if path.is_file():
            path.with_name(f"._{path.name}").write_bytes(b"\x00\x05\x16\x07")
    found = drive.found()
    litter = {path for path in found if Path(path).name.startswith((".DS", "._"))}
    assert len(litter) >= 6
    assert {found[path][0] for path in litter} == {"ignored"}
    assert {found[path][0] for path in found.keys() - litter} == {"proven", "stale"}


def test_manifests_logs_and_records_prove_nothing(drive: Drive) -> None:
    entries = [{"id": "pop223", "name": "P"}, {"id": "pop24"}]
    drive.put("manifests/model_names_v23.json", json.dumps({"models": entries}).encode())
    drive.put("manifests/model_names_v22.json", b"[]")
    drive.put("results/pop22_artifact.json", b"{}")
    drive.put("logs/pop22.log", b"compiled")
    found = drive.found(code=1)
    assert found["manifests/model_names_v22.json"][0] == "damaged"
    standing, reason = found["manifests/model_names_v23.json"]
    assert standing == "other"
    assert "2 models" in reason
    assert "no model pop24" in reason
    assert "pop223 " not in reason
    assert {found[path][0] for path in ("results/pop22_artifact.json", "logs/pop22.log")} == {"other"}
    assert drive.records() == []


def test_what_is_no_file_is_not_waited_on(drive: Drive) -> None:
    (drive.folder / "onnx/elm").mkdir()
    (drive.folder / "onnx/elm/elm_driving_vision.onnx").symlink_to("/nonexistent/drive")
    os.mkfifo(drive.folder / "onnx/elm/elm_driving_on_policy.onnx")
    (drive.folder / "compiled").symlink_to(drive.project.folder)
    found = drive.found(code=1)
    assert found["compiled"][0] == "stranger"
    assert {found[path][0] for path in found if path != "compiled"} == {"damaged"}


def test_names_that_are_no_text_can_be_told(drive: Drive) -> None:
    (drive.folder / os.fsdecode(b"note\xff\x1b[2J")).write_bytes(b"x")
    assert "note\\udcff\\x1b[2J" in drive.adopt()
    assert "note\\udcff" in drive.adopt("--json", drive.folder)


def test_text_and_json_agree(drive: Drive) -> None:
    paths = drive.put_onnx("elm", MULTI)
    drive.put(f"compiled/pop22{PKL}", drive.artifact)
    text = drive.adopt()
    assert f"proven    onnx/elm/ ({len(paths)} files): what the generated source of elm gives" in text
    assert f"stale     compiled/pop22{PKL}: {UNRECORDED}" in text
    assert (
        text.splitlines()[-1] == f"{len(paths) + 1} files: {len(paths)} proven, 1 stale; recorded: onnx:elm"
    )
    told = json.loads(drive.adopt("--json", drive.folder))
    assert told["recorded"] == ["onnx:elm"]
    digests = {one["path"]: one["sha256"] for one in told["files"]}
    assert digests[f"compiled/pop22{PKL}"] == hashlib.sha256(drive.artifact).hexdigest()


def test_only_a_workspace_apart_from_ours_is_adopted(drive: Drive) -> None:
    assert "expected a folder, got nothing" in drive.adopt(drive.folder / "no", code=2)
    shutil.rmtree(drive.folder / "onnx")
    assert "got none of them" in drive.adopt(code=2)
    drive.put_onnx("elm", MULTI)
    for workspace in (drive.folder, drive.folder / "inside", drive.folder.parent):
        (workspace / ".store").mkdir(parents=True)
        assert "apart from the workspace" in drive.adopt(drive.folder, "--workspace", workspace, code=2)
