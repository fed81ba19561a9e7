"""What lies in a command's way: links, strangers' files, hostile plans. Nothing outside is touched."""

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract import PATH, ROOT, Project, generated, model
from hypothesis import example, given
from hypothesis import strategies as st

from rules.errors import ArtifactError, printable
from rules.keeping import files
from rules.keys import key_of
from rules.releasing.reconcile import Naming, reconcile

GENERIC = 'type = "generic"'
CATALOG = (
    model("mlp", generated("generic-mlp"), GENERIC)
    + model("pop2", generated("vision-conv+attention"), 'since = "v22"')
    + '[release.v22]\ncontract = "warp"\n[release.v23]\nfrom = "v22"\nsuffix = "3"\n'
)
PKL = "pop2_driving_tinygrad.pkl"
DEAD = 4_194_305  # no system numbers a process so
Digest = tuple[str, int, bytes]


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the sources of one model. Read only."""
    project = Project(tmp_path_factory.mktemp("fetched") / "project", CATALOG)
    project.doit("onnx:mlp")
    return project


class Scene:
    """A project, files of the user's outside of its workspace, and a folder that was handed over."""

    def __init__(self, fetched: Project, folder: Path) -> None:
        self.project = fetched.copy(folder / "project")
        self.outside = folder / "outside"
        self.handed = folder / "handed"
        for where in (self.outside, self.outside / "sub", self.handed):
            where.mkdir()
        self.marker = self.outside / "marker"
        self.marker.write_text("mine")
        (self.outside / "sub/x").write_text("mine, too")
        self.whole = self.handed / "x"
        self.whole.write_text("0123456789")

    def link(self, name: str, to: Path) -> None:
        """A link in the workspace, in place of what stands there; a folder's files are outside then."""
        path = self.project.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            shutil.copytree(path, to, dirs_exist_ok=True)
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.symlink_to(to)

    def hard_link(self, name: str) -> None:
        """The marker under a name of ours."""
        path = self.project.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.hardlink_to(self.marker)

    def split(self, content: str = "0123456789") -> None:
        """A split of some `x` in four-byte parts, with its checksum."""
        self.whole.unlink(missing_ok=True)
        for index in range(0, len(content), 4):
            (self.handed / f"x.p{index // 4:02}").write_text(content[index : index + 4])
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        (self.handed / "x.sha256").write_text(f"{sha256}  x\n")

    def seen(self, *ours: Path) -> dict[str, object]:
        """Everything outside of the workspace: kind, mode and bytes by path."""
        found: dict[str, object] = {}
        for path in sorted([*self.outside.rglob("*"), *self.handed.rglob("*")]):
            about = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(about.st_mode) else b""
            if path not in ours:
                found[str(path)] = (about.st_mode, about.st_nlink, content)
        return found


def record(scene: Scene, name: str, step: str, *paths: tuple[str, str, Path]) -> None:
    """A forged record, whole in itself, of outputs by name, path and the file that is there."""
    outputs = [
        {
            "name": output,
            "path": path,
            "size": file.stat().st_size,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for output, path, file in paths
    ]
    raw = {"format": 1, "step": step, "key": key_of({}), "content": {}, "outputs": outputs, "made": "built"}
    raw |= {"built_at": "2026-01-01T00:00:00+00:00", "seconds": 0.0, "facts": {}}
    scene.project.path(f"results/{name}.json").write_text(json.dumps(raw))


def forged_output_behind_a_link(scene: Scene) -> None:
    kept = scene.project.record("mlp_source")
    own = scene.project.path(kept["outputs"][0]["path"])
    scene.project.path("onnx/mlp/mlp_sub").symlink_to(scene.outside / "sub")
    named = (kept["outputs"][0]["name"], kept["outputs"][0]["path"], own)
    record(scene, "mlp_source", "onnx:mlp", named, ("sub/x", "onnx/mlp/mlp_sub/x", scene.outside / "sub/x"))


def forged_release_behind_a_link(scene: Scene) -> None:
    scene.project.path("ready-for-resources/v9").mkdir(parents=True)
    scene.project.path("ready-for-resources/v9/sub").symlink_to(scene.outside / "sub")
    far = "ready-for-resources/v9/sub/x"
    record(scene, "v9_release", "release:v9", ("x", far, scene.outside / "sub/x"))


def blobs_behind_a_link(scene: Scene) -> None:
    (scene.outside / "sub" / ("ab" * 32)).write_text("mine, and of another name")
    shutil.rmtree(scene.project.path(".store/cas/ab"), ignore_errors=True)
    scene.link(".store/cas/ab", scene.outside / "sub")


def blob_that_is_a_link(scene: Scene) -> None:
    sha256 = hashlib.sha256(b"mine").hexdigest()
    scene.link(f".store/cas/{sha256[:2]}/{sha256}", scene.marker)
    scene.marker.chmod(0o600)


def plan_beside(scene: Scene) -> None:
    """As version 0.1.0 followed it, written by anybody."""
    put(scene, PKL)
    placed = {"ids": {}, "equal": {}, "inserted": [], "stands": {}, "junk": ["../outside/marker"]}
    sha256 = hashlib.sha256(b"mine, too").hexdigest()
    moves = [["../outside/sub/x", "stolen", sha256]]
    plan = {**placed, "moves": moves, "writes": {"../outside/new": "evil"}, "drops": []}
    path = scene.handed.with_name(".handed.reconciled.json")
    path.write_text(json.dumps({"plan": plan, "placed": {}}))


def plan_of_ours(**changes: object) -> Callable[[Scene], None]:
    def plant(scene: Scene) -> None:
        """In the workspace, as somebody who hands that over may write it."""
        put(scene, "x_driving_tinygrad.pkl")
        name = hashlib.sha256(os.fsencode(scene.handed)).hexdigest()
        plan = {"ids": {}, "equal": {}, "moves": [], "writes": {}, "inserted": [], "drops": [], "junk": []}
        raw = {"format": 1, "folder": str(scene.handed), "placed": {}}
        path = scene.project.path(f".store/reconcile/{name}.json")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({**raw, "plan": {**plan, "stands": {}, "seen": {}, **changes}}))

    return plant


def put(scene: Scene, *names: str) -> None:
    for name in names:
        (scene.handed / name).write_text("bytes")


def strange_part(scene: Scene) -> None:
    (scene.handed / "x.p07").write_text("my own")


def strange_part_beside_a_split(scene: Scene) -> None:
    scene.split()
    scene.whole.write_text("0123")
    strange_part(scene)


def secret_part(scene: Scene) -> None:
    scene.split("mine")
    (scene.handed / "x.p00").unlink()
    (scene.handed / "x.p00").symlink_to(scene.marker)


def secret_chunk(scene: Scene) -> None:
    (scene.handed / "x.chunkmanifest").write_text("1")
    (scene.handed / "x.chunk01of01").symlink_to(scene.marker)


@dataclass(frozen=True)
class Attack:
    """What is planted, what is typed (paths are of the scene), the exit code, and what the sentence holds."""

    what: str
    plant: Callable[[Scene], object]
    words: tuple[str, ...]
    code: int = 2
    said: str = ""


def linked(name: str, to: str) -> Callable[[Scene], object]:
    return lambda scene: scene.link(name, scene.outside / to)


def hard(name: str) -> Callable[[Scene], object]:
    return lambda scene: scene.hard_link(name)


def named(*names: str) -> Callable[[Scene], object]:
    return lambda scene: put(scene, *names)


def taken(make: Callable[[Path], object]) -> Callable[[Scene], object]:
    """A split, and something in the place of what is to be joined."""

    def plant(scene: Scene) -> None:
        scene.split()
        make(scene.handed / "whole")

    return plant


SPLIT = ("split", "{handed}/x", "--force")
JOIN = ("join", "{handed}/x.sha256", "--output", "{handed}/whole")
RECONCILE = ("reconcile", "{handed}")
NEWLINE = "a\x1b[2Jb\nc.pkl"
ATTACKS = [
    Attack(
        "sources behind a link, cleaned",
        linked("onnx/mlp", "sub"),
        ("clean", "onnx:mlp"),
        2,
        "onnx/mlp: is a link",
    ),
    Attack("sources behind a link, built", linked("onnx/mlp", "sub"), ("onnx:mlp",), 1, "onnx/mlp is a link"),
    Attack("all sources behind a link", linked("onnx", "sub"), ("clean", "onnx:mlp"), 3, "onnx: is a link"),
    Attack("a record that names sub/x", forged_output_behind_a_link, ("clean", "onnx:mlp"), 0),
    Attack("a release's record that names sub/x", forged_release_behind_a_link, ("gc",), 0),
    Attack(
        "a log that is a link",
        linked("logs/mlp.log", "marker"),
        ("candidate:mlp",),
        1,
        "logs/mlp.log: is a link",
    ),
    Attack(
        "a log that is a hard link",
        hard("logs/mlp.log"),
        ("candidate:mlp",),
        1,
        "logs/mlp.log: is a hard link",
    ),
    Attack("logs behind a link", linked("logs", "sub"), ("candidate:mlp",), 3, "logs: is a link"),
    Attack(
        "a lock that is a link", linked(".store/lock", "marker"), ("onnx:mlp",), 3, ".store/lock: is a link"
    ),
    Attack("a lock that is a hard link", hard(".store/lock"), ("gc",), 2, ".store/lock: is a hard link"),
    Attack(
        "digests that are a hard link",
        hard(".store/digests.log"),
        ("fsck",),
        2,
        "digests.log: is a hard link",
    ),
    Attack(
        "records behind a link", linked("results", "sub"), ("forget", "onnx:mlp"), 3, "results: is a link"
    ),
    Attack("a record that is a link", linked("results/mlp_source.json", "marker"), ("forget", "onnx:mlp"), 0),
    Attack("the store behind a link", linked(".store/cas", "sub"), ("fsck",), 3, ".store/cas: is a link"),
    Attack("blobs behind a link", blobs_behind_a_link, ("fsck",), 1, ".store/cas/ab: its bytes are not"),
    Attack("a blob that is a link", blob_that_is_a_link, ("fsck",), 1, "its bytes are not those of its name"),
    Attack("scratch behind a link", linked(f".store/tmp/{DEAD}-00", "sub"), ("gc",), 0),
    Attack(
        "all scratch behind a link", linked(".store/tmp", "sub"), ("onnx:mlp",), 3, ".store/tmp: is a link"
    ),
    Attack(
        "ignore marks that are a link", linked("../.doit.db.ignored.json", "marker"), ("ignore", "pkl:mlp"), 0
    ),
    Attack("a plan beside the folder", plan_beside, RECONCILE, 0),
    Attack(
        "our plan removes outside",
        plan_of_ours(junk=["../outside/marker"]),
        RECONCILE,
        2,
        "not what reconciling",
    ),
    Attack("our plan removes a name", plan_of_ours(junk=["x"]), RECONCILE, 2, "not what reconciling"),
    Attack(
        "our plan writes outside",
        plan_of_ours(writes={"/tmp/evil": "x"}),
        RECONCILE,
        2,
        "not what reconciling",
    ),
    Attack(
        "our plan moves outside",
        plan_of_ours(ids={"a": "b"}, moves=[["a_driving_tinygrad.pkl", "../evil", "0" * 64]]),
        RECONCILE,
        2,
        "not what reconciling",
    ),
    Attack(
        "a link in the folder",
        lambda s: (s.handed / PKL).symlink_to(s.marker),
        RECONCILE,
        2,
        f"{PKL}: expected a file, got a link",
    ),
    Attack(
        "a pipe in the folder", lambda s: os.mkfifo(s.handed / PKL), RECONCILE, 2, f"{PKL}: expected a file"
    ),
    Attack("names of two cases", named(PKL, PKL.upper()), RECONCILE, 2, "are one name where case"),
    Attack(
        "names of two forms",
        named("é.pkl", unicodedata.normalize("NFD", "é.pkl")),
        RECONCILE,
        2,
        r"'e\u0301.pkl' and '\xe9.pkl' are one name",
    ),
    Attack(
        "a new name in another case",
        named(PKL, "Pop23_driving_tinygrad.pkl"),
        RECONCILE,
        2,
        "are one name where case",
    ),
    Attack(
        "a name that clears the screen", named(NEWLINE), RECONCILE, 2, r"a\x1b[2Jb\nc.pkl: expected a name"
    ),
    Attack("a part of the user's", strange_part, SPLIT, 2, "x.p07: is nothing that x.sha256 vouches for"),
    Attack("a part beside an earlier split", strange_part_beside_a_split, SPLIT, 2, "x.p07: is nothing"),
    Attack("a checksum of the user's", named("x.sha256"), SPLIT, 2, "x.sha256: is nothing"),
    Attack(
        "a part that is a link",
        lambda s: (s.handed / "x.p07").symlink_to(s.marker),
        SPLIT,
        2,
        "x.p07: is a link",
    ),
    Attack("joined onto a pipe", taken(os.mkfifo), JOIN, 2, "whole: is a link or no plain file"),
    Attack("joined onto a folder", taken(Path.mkdir), JOIN, 2, "whole: expected a file name"),
    Attack("joined onto a link", taken(lambda p: p.symlink_to("x.p00")), JOIN, 2, "whole: is a link"),
    Attack(
        "joined onto nothing by a link", taken(lambda p: p.symlink_to("new")), JOIN, 2, "whole: is a link"
    ),
    Attack(
        "joined onto other bytes", taken(lambda p: p.write_text("mine")), JOIN, 2, "whole: holds other bytes"
    ),
    Attack("joined onto the same bytes", taken(lambda p: p.write_text("0123456789")), JOIN, 0),
    Attack(
        "a part that leads to a secret",
        secret_part,
        ("join", "{handed}/x.sha256"),
        2,
        "x.p00: expected a plain file, got a link",
    ),
    Attack(
        "a chunk that leads to a secret",
        secret_chunk,
        ("join", "{handed}/x.chunkmanifest", "--output", "{handed}/whole"),
        2,
        "expected a plain file, got a link",
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.what)
def test_nothing_outside_is_touched(fetched: Project, tmp_path: Path, attack: Attack) -> None:
    scene = Scene(fetched, tmp_path)
    attack.plant(scene)
    moved = scene.handed / PKL  # what a reconciling that goes well renames
    before = scene.seen(moved)
    done = scene.project.doit_any(*(word.format(handed=scene.handed) for word in attack.words))
    assert scene.seen(moved, moved.with_name("pop23_driving_tinygrad.pkl")) == before
    assert done.returncode == attack.code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert attack.said in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_a_device_keeps_its_place(fetched: Project, tmp_path: Path) -> None:
    scene = Scene(fetched, tmp_path)
    scene.split()
    device = scene.handed / "null"
    try:
        os.mknod(device, 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes a device")
    done = scene.project.doit("join", f"{scene.handed}/x.sha256", "--output", str(device), fails=True)
    assert "null: is a link or no plain file" in done.stderr
    assert device.is_char_device()


def test_a_killed_split_vouches_for_what_it_leaves(fetched: Project, tmp_path: Path) -> None:
    """Killed at each change of a name, and a split of another file follows."""
    scene = Scene(fetched, tmp_path)
    for after in range(40):
        shutil.rmtree(scene.handed)
        scene.handed.mkdir()
        scene.split("0123456789")
        scene.whole.write_text("abcdefghijklmn")
        code = (
            f"from rules.releasing.parts import split; scene = Path({str(scene.handed)!r})\n"
            "split(scene / 'x', scene, part_size=3, force=True)"
        )
        ended = dying(after, code)
        scene.whole.write_text("another")
        assert dying(999, code) == 0
        assert sorted(one.name for one in scene.handed.iterdir()) == [
            "x",
            "x.p00",
            "x.p01",
            "x.p02",
            "x.sha256",
        ]
        if ended == 0:
            assert after > 10
            return
    raise AssertionError("it never ended")


def dying(after: int, code: str) -> int:
    """The exit code of Python that dies by SIGKILL right before its next change of a name after so many."""
    program = f"""
import os, signal, sys
from pathlib import Path
import rules.releasing.parts, rules.releasing.reconcile
left = {after}
def watch(event, arguments):
    global left
    if event in ("os.link", "os.rename", "os.remove"):
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
sys.addaudithook(watch)
{code}
"""
    return subprocess.run(
        [sys.executable, "-c", program], env={"PATH": PATH, "PYTHONPATH": str(ROOT)}
    ).returncode


# ---- reconciling goes on where it was killed, with what was there


NAMES = Naming("v23", {"pop2": "pop23", "elm": "elm3", "elm3": "elm33"})


@pytest.fixture
def half_done(tmp_path: Path) -> tuple[Path, Path]:
    """A folder whose reconciling was killed by SIGKILL after its first file, and where memory is kept."""
    folder, kept = tmp_path / "handed", tmp_path / "workspace/.store/reconcile"
    folder.mkdir()
    for one in ("pop2", "elm", "elm3"):
        (folder / f"{one}_driving_tinygrad.pkl").write_text(one)
    code = (
        "from rules.releasing.reconcile import Naming, reconcile\n"
        f"names = Naming('v23', {dict(NAMES.names)!r})\n"
        f"reconcile(Path({str(folder)!r}), names, kept=Path({str(kept)!r}))"
    )
    assert dying(3, code) == -signal.SIGKILL  # the plan, and one link with its removal
    return folder, kept


def content(folder: Path) -> dict[str, str]:
    return {path.name.partition("_")[0]: path.read_text() for path in sorted(folder.iterdir())}


def test_a_killed_run_is_finished_from_the_workspace(half_done: tuple[Path, Path]) -> None:
    folder, kept = half_done
    assert [path.parent for path in folder.parent.glob("**/*.json")] == [kept]
    reconcile(folder, NAMES, kept=kept)
    assert content(folder) == {"elm3": "elm", "elm33": "elm3", "pop23": "pop2"}


@pytest.mark.parametrize("name", ["elm33", "elm", "pop2"])
@pytest.mark.parametrize("change", ["edited", "removed"])
def test_what_changed_since_a_kill_is_named_and_nothing_moves(
    half_done: tuple[Path, Path], name: str, change: str
) -> None:
    folder, kept = half_done
    path = folder / f"{name}_driving_tinygrad.pkl"
    path.write_text("edited") if change == "edited" else path.unlink()
    before = content(folder)
    told = rf"{name}_driving.*: ((changed|gone) since|expected nothing)|new name {name}_driving"
    with pytest.raises(ArtifactError, match=told):
        reconcile(folder, NAMES, kept=kept)
    assert content(folder) == before


def test_a_folder_is_reconciled_by_one_at_a_time(fetched: Project, tmp_path: Path) -> None:
    import fcntl

    scene = Scene(fetched, tmp_path)
    put(scene, PKL)
    before = scene.seen()
    descriptor = os.open(scene.handed, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        done = scene.project.doit_any("reconcile", str(scene.handed))
    finally:
        os.close(descriptor)
    assert (done.returncode, scene.seen()) == (4, before)
    assert f"process {os.getpid()} is at work there" in done.stderr
    assert scene.project.doit("reconcile", str(scene.handed)).stdout.startswith("pop2 → pop23")


# ---- names


@given(st.text(max_size=6) | st.text("./\\ :\0\n\x1baé\u0301", max_size=5))
@example("a" * 201)
@example("\ud800")
def test_a_plain_name_is_one_file_in_its_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    if not files.is_plain(name):
        return
    folder = tmp_path_factory.mktemp("plain")
    (folder / name).write_text("x")
    assert [one.encode() for one in os.listdir(folder)] == [name.encode()]  # noqa: PTH208
    assert name == name.rstrip(". ") and not {*"/\\:\0\n\x1b"} & {*name}


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/a", "a\\b", "C:a", "a.", "a ", "a\0", "a\n", "a\x1b", "a\ud800", "a" * 201],
)
def test_what_is_no_plain_name(name: str) -> None:
    assert not files.is_plain(name)


@given(st.text())
def test_what_is_shown_obeys_nobody(text: str) -> None:
    told = printable(text)
    assert told.isprintable()
    assert told == text or not text.isprintable()


@given(st.text("aAéEe\u0301ßsS", min_size=1, max_size=4), st.text("aAéEe\u0301ßsS", min_size=1, max_size=4))
def test_alike_is_what_a_case_blind_file_system_merges(one: str, other: str) -> None:
    forms = [unicodedata.normalize("NFC", text).lower() for text in (one, other)]
    if one != other and forms[0] == forms[1]:
        assert files.alike([one, other]) == (one, other)
    assert files.alike([one, one]) is None
