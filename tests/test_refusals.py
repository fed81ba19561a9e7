"""What a newcomer types wrongly, and what stands in the way: one sentence each, with what to type next."""

import codecs
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from contract import DODO, HEAD, PATH, ROOT, Project, generated, model

from rules.sources.generated import generate

GENERIC = 'type = "generic"'
TWO = model("pop2", generated("generic-mlp"), GENERIC) + model("elm", generated("generic-mlp"), GENERIC)
REF = "a" * 40
nowhere = pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc, where nobody makes a folder")
MODELS = "import sys; from rules.models_cli import main; sys.exit(main())"


def refused(project: Project, *words: str, code: int = 2, **env: str) -> str:
    """The sentence with which doit refuses: one line of cause, one of what to do, and no traceback."""
    done = project.doit(*words, fails=True, env=env)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    before, _, cause = done.stderr.partition("ERROR: ")
    assert before == "" and "Errno" not in cause
    assert 1 <= cause.count("\n") <= 2, cause
    return cause


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two models, nothing built."""
    return Project(tmp_path / "project", TWO)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One model, built. Read only."""
    folder = tmp_path_factory.mktemp("built")
    project = Project(folder, model("mlp", generated("generic-mlp"), GENERIC))
    project.doit()
    return project


# ---- words that are no command, task, model or option


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["--list"], "doit list"),
        (["pop2"], "pkl:pop2"),
        (["pop3"], "pkl:pop2"),
        (["build"], "run"),
        (["build", "pop2"], "pkl:pop2"),
        (["compile", "pkl:elm"], "pkl:elm"),
        (["status"], "outdated"),
        (["ls"], "list"),
        (["outdatd"], "outdated"),
        (["artifacts/compiled/elm_tinygrad.pkl"], "pkl:elm"),
        (["clean", "pop2"], "pkl:pop2"),
        (["forget", "pop2"], "pkl:pop2"),
        (["ignore", "pop2"], "pkl:pop2"),
        (["info", "pop2"], "pkl:pop2"),
        (["list", "pkl:pop"], "pkl:pop2"),
        (["help", "pop2"], "pkl:pop2"),
        (["help", "outdatd"], "outdated"),
        (["outdated", "pop2"], "pkl:pop2"),
        (["fsck", "pop2"], "pkl:pop2"),
        (["why", "pop3"], "pop2"),
        (["pin", "pop3"], "pop2"),
        (["replay", "pop3"], "pop2"),
        (["reproduce", "pop3"], "pop2"),
        (["flags", "cpx"], "cpu"),
    ],
)
def test_a_refused_word_is_told_the_nearest_name_and_what_lists_them(project, words, near):
    told = refused(project, *words)
    assert f"did you mean {near}? " in told
    assert any(one in told for one in (" lists the ", " lists its options", "the sets are ")), told


@pytest.mark.parametrize("words", [["zzz"], ["clean", "zzz"], ["outdated", "zzz"], ["help", "zzz"]])
def test_where_nothing_is_near_the_lists_are_named(project, words):
    told = refused(project, *words)
    assert "did you mean" not in told
    assert "doit list --all lists the tasks" in told


def test_a_command_comes_before_its_options(project):
    assert "→ write doit list first" in refused(project, "--workspace", "elsewhere", "list")


@pytest.mark.parametrize("words", [["info"], ["info", "pkl:pop2", "pkl:elm"], ["ignore"]])
def test_a_command_that_needs_a_task_says_so(project, words):
    assert "doit list --all lists the tasks" in refused(project, *words)


@pytest.mark.parametrize("number", ["0", "-1", "x", "1.5", ""])
def test_tasks_at_a_time_are_one_or_more(project, number):
    told = refused(project, "-n", number) if number else refused(project, "--process=")
    assert f"got {number}" in told or f"got {number!r}" in told
    assert not project.workspace.exists()


def test_version_tells_ours_and_doits(project):
    lines = project.doit("version").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["modelyard", "doit", "tinygrad", "numpy", "onnx", "Python"]
    assert "doit 0.37.0" in lines


# ---- where doit runs


def test_a_folder_without_a_dodo_py_says_what_lays_one_out(project, tmp_path):
    (project.folder / "dodo.py").unlink()
    for words in ([], ["list"], ["clean"], ["pkl:pop2"]):
        assert "→ doit init writes one beside models.toml" in refused(project, *words)
    project.doit("outdated")
    (project.folder / "models.toml").unlink()
    for words in ([], ["list"], ["outdated"]):
        told = refused(project, *words)
        assert "neither dodo.py nor models.toml is here" in told and "doit init lays out a new one" in told


@pytest.mark.parametrize("file", ["models.toml", ".", "none.py"])
@pytest.mark.parametrize("command", [[], ["list"], ["outdated"]])
def test_what_is_no_dodo_py_is_not_run(project, command, file):
    told = refused(project, *command, "--file", file)
    assert "--file: expected a dodo.py, got " in told and "beside models.toml" in told


# ---- the workspace


@pytest.mark.parametrize("place", ["file", "file/below"])
@pytest.mark.parametrize("words", [[], ["list"], ["outdated"], ["why", "pop2"], ["gc"], ["clean"], ["fsck"]])
def test_a_workspace_that_is_a_file_is_refused_by_every_command(project, place, words):
    (project.folder / "file").write_text("")
    told = refused(project, *words, code=3, MODELS_WORKSPACE=place)
    assert (
        f"{project.folder / place}: cannot be the workspace: {project.folder / 'file'} is no folder" in told
    )
    assert "--workspace DIR, or in MODELS_WORKSPACE" in told


@nowhere
def test_a_workspace_that_cannot_be_made_can_be_asked_about_and_not_written(project):
    for words in (["list"], ["outdated"], ["why", "pop2"]):
        project.doit(*words, env={"MODELS_WORKSPACE": "/proc/yard"})
    for words in (["pkl:pop2"], ["gc"], ["fsck"], ["clean"], ["forget", "--all"]):
        told = refused(project, *words, MODELS_WORKSPACE="/proc/yard")
        assert "/proc/yard: cannot be the workspace: No such file or directory" in told


@nowhere
def test_init_that_cannot_make_all_makes_nothing(tmp_path):
    project = Project(tmp_path / "here")
    told = refused(project, "init", "there", MODELS_WORKSPACE="/proc/yard")
    assert "doit init: /proc/yard: No such file or directory\n  → see that its folder exists" in told
    assert not (project.folder / "there").exists()


def test_init_where_files_stand_is_refused_and_makes_nothing(tmp_path):
    project = Project(tmp_path / "here")
    (project.folder / "file").write_text("mine")
    (project.folder / "there" / "models.toml").mkdir(parents=True)
    for folder in ("file", "file/below"):
        assert "doit init: file: expected a folder, got a file" in refused(project, "init", folder).replace(
            str(project.folder) + "/", ""
        )
    assert "models.toml: expected a file, got a folder" in refused(project, "init", "there")
    assert "expected a folder, got a file" in refused(project, "init", "new", MODELS_WORKSPACE="file")
    assert sorted(path.name for path in project.folder.rglob("*")) == [
        "dodo.py",
        "file",
        "models.toml",
        "there",
    ]


# ---- models.toml, byte by byte

TEXT = (HEAD + TWO).encode()
BYTES = {
    "a signature": (codecs.BOM_UTF8 + TEXT, ":1: found a byte order mark of UTF-8"),
    "UTF-16": (TEXT.decode().encode("utf-16"), ":1: found a byte order mark of UTF-16"),
    "UTF-32": (TEXT.decode().encode("utf-32"), ":1: found a byte order mark of UTF-32"),
    "UTF-16 unmarked": (TEXT.decode().encode("utf-16-le"), ":1: found a null character"),
    "line ends of old": (TEXT.replace(b"\n", b"\r"), ":1: found a carriage return alone"),
    "Latin-1": (TEXT.replace(b"Pop2", b"P\xf6p"), "found the byte 0xf6; expected UTF-8 text"),
    "no TOML": (TEXT.replace(b"IMAGE = 0", b"IMAGE = zero"), ":12:9: not TOML: "),
}
READERS = [
    ["list"],
    ["outdated"],
    ["import", "--source-map", "map_v22.json"],
    ["add", "--ref", REF, "--id", "oak", "--format", "supercombo"],
]


@pytest.mark.parametrize("name", BYTES)
def test_bytes_that_are_no_catalog_are_named_alike_by_all_that_read_it(project, name):
    content, told = BYTES[name]
    catalog = project.folder / "models.toml"
    (project.folder / "map_v22.json").write_text(json.dumps({"oak": {"ref": REF, "input_format": "split"}}))
    catalog.write_bytes(content)
    said = {refused(project, *words, code=3 if words[0] in ("list", "outdated") else 2) for words in READERS}
    (one,) = said
    assert one.startswith("models.toml:") and told in one
    assert catalog.read_bytes() == content


def test_a_catalog_that_is_a_folder_is_named_alike_by_all_that_read_it(project):
    (project.folder / "map_v22.json").write_text(json.dumps({"oak": {"ref": REF, "input_format": "split"}}))
    (project.folder / "models.toml").unlink()
    (project.folder / "models.toml").mkdir()
    said = {refused(project, *words, code=3 if words[0] in ("list", "outdated") else 2) for words in READERS}
    (one,) = said
    assert one.startswith("models.toml: cannot be read: it is a folder; expected the catalog ")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_a_catalog_that_may_not_be_read_says_who_may(project):
    (project.folder / "models.toml").chmod(0)
    assert "permission denied" in refused(project, "list", code=3)


def test_windows_line_ends_are_a_catalog(project):
    (project.folder / "models.toml").write_bytes(TEXT.replace(b"\n", b"\r\n"))
    assert "pkl:pop2" in project.doit("list", "--all").stdout


@pytest.mark.parametrize(
    "table",
    ["release = 3", "models = 3", "[models]\npop2 = 3", "defaults = 3", "[release]\nv22 = 1", "[[models]]"],
)
@pytest.mark.parametrize("words", READERS[2:])
def test_a_catalog_that_is_not_valid_is_refused_before_it_is_edited(tmp_path, table, words):
    project = Project(tmp_path)
    (tmp_path / "map_v22.json").write_text(json.dumps({"pop2": {"ref": REF, "input_format": "split"}}))
    (tmp_path / "models.toml").write_text(table)
    assert "models.toml:1: " in project.doit(*words, fails=True).stderr
    assert (tmp_path / "models.toml").read_text() == table


# ---- what import reads


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (".", "cannot be read: it is a folder"),
        ("none.json", "cannot be read: no such file or directory"),
        ("models.toml", "not JSON: line 1, column 2: expecting value"),
        ("bytes", "not JSON: no text"),
    ],
)
@pytest.mark.parametrize("option", ["--source-map", "--base-manifest"])
def test_what_import_cannot_read_is_told_with_what_to_name(project, option, path, told):
    (project.folder / "bytes").write_bytes(bytes(range(128, 256)))
    said = refused(project, "import", option, path)
    assert f"{path}: {told}" in said
    assert "name a model_names_vNN.json or a model_source_map_vNN.json" in said


def test_a_manifest_alone_makes_no_catalog(tmp_path):
    project = Project(tmp_path)
    (tmp_path / "names.json").write_text(json.dumps({"models": [{"id": "pop2", "name": "Poplar"}]}))
    told = refused(project, "import", "--base-manifest", "names.json")
    assert "models.toml is not there yet" in told and "--source-map FILE" in told
    assert not (tmp_path / "models.toml").exists()


# ---- inspect, on what is no artifact


@pytest.mark.parametrize(
    ("name", "told", "fix"),
    [
        ("models.toml", "a TOML file", "doit list --all"),
        ("dodo.py", "a Python file", "name an artifact"),
        ("model.onnx", "an ONNX model", "doit add --onnx model.onnx"),
        ("notes.txt", "a text file", "doit diagnose notes.txt"),
        ("empty", "an empty file", "fetch or build it again; doit fsck"),
        ("a.zip", "a zip archive", "unpack it"),
        ("names.json", "a JSON file", "name an artifact"),
        ("model_names_v23.json", "a manifest", "doit import --base-manifest"),
        ("pointer", "a Git LFS pointer (oid sha256:0, size 1)", "git lfs pull"),
        ("artifacts/results/mlp_artifact.json", "a record of mlp", "doit why mlp"),
        ("noise", "of no kind known here", "name an artifact"),
    ],
)
def test_inspect_says_what_a_stranger_is_and_what_to_type(built, name, told, fix):
    files = {
        "model.onnx": generate("generic-mlp", seed=1, width=4)["model"],
        "notes.txt": "Überall ist Text.\n".encode(),
        "empty": b"",
        "a.zip": b"PK\x03\x04" + bytes(60),
        "names.json": b'{"models": []}',
        "model_names_v23.json": b'{"models": []}',
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "noise": bytes(range(150, 250)),
    }
    if name in files:
        (built.folder / name).write_bytes(files[name])
    done = built.doit("inspect", name, fails=True)
    first, second = done.stdout.splitlines()
    assert first.startswith(f"{Path(name).name}: not a pickle, it is {told}")
    assert second.startswith(f"  → {fix}")
    assert json.loads(built.doit("inspect", "--json", name, fails=True).stdout)["fix"] == second[4:]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("artifacts/compiled", "got a folder\n  → doit inspect artifacts/compiled/mlp_tinygrad.pkl"),
        ("mlp", "got nothing\n  → doit inspect artifacts/compiled/mlp_tinygrad.pkl"),
        ("artifacts/compiled/mlp_tinygrd.pkl", "did you mean artifacts/compiled/mlp_tinygrad.pkl?"),
        ("none", "got nothing\n  → check the path"),
        ("x.pkl.sha256", "x.pkl.sha256 alone is not one\n  → fetch x.pkl, or all its parts"),
    ],
)
def test_inspect_of_no_file_says_which_is_meant(built, name, told):
    (built.folder / "x.pkl.sha256").write_text(f"{'0' * 64}  x.pkl\n")
    assert told in refused(built, "inspect", name)


def test_inspect_of_a_lone_part_says_what_is_missing(built, tmp_path):
    whole = built.path("compiled/mlp_tinygrad.pkl").read_bytes()
    (tmp_path / "x.pkl.p00").write_bytes(whole[:3000])
    told = built.doit("inspect", str(tmp_path / "x.pkl.p00"), fails=True).stdout
    assert "truncated" in told and "→ fetch its other parts, and x.pkl.sha256, into the same folder" in told
    (tmp_path / "x.pkl.p00").rename(tmp_path / "x.pkl.p01")
    told = built.doit("inspect", str(tmp_path / "x.pkl.p01"), fails=True).stdout
    assert told == "x.pkl.p01: part x.pkl.p00 is missing\n  → fetch it into the same folder\n"


# ---- join, by any name


@pytest.fixture
def pieces(tmp_path: Path) -> Project:
    """big.pkl in parts, and small.pkl in chunks."""
    project = Project(tmp_path)
    (tmp_path / "big.pkl").write_bytes(bytes(range(256)) * 10_000)
    project.doit("split", "big.pkl", "--chunk-size-mib", "1")
    (tmp_path / "big.pkl").unlink()
    for number in (1, 2):
        (tmp_path / f"small.pkl.chunk0{number}of02").write_text(f"piece {number}\n")
    (tmp_path / "small.pkl.chunkmanifest").write_text("2")
    return project


@pytest.mark.parametrize("name", ["big.pkl", "big.pkl.p00", "big.pkl.p02", "big.pkl.sha256"])
def test_parts_are_joined_by_any_of_their_names(pieces, name):
    assert pieces.doit("join", name).stdout == "big.pkl\n"
    assert (pieces.folder / "big.pkl").read_bytes() == bytes(range(256)) * 10_000


@pytest.mark.parametrize("name", ["small.pkl", "small.pkl.chunkmanifest", "small.pkl.chunk02of02"])
def test_chunks_are_joined_by_any_of_their_names_into_another_folder(pieces, name):
    assert "would be shadowed by small.pkl.chunkmanifest" in refused(pieces, "join", name)
    done = pieces.doit("join", name, "--output", "whole/small.pkl")
    assert done.stdout == "whole/small.pkl\n"
    assert "not verified" in done.stderr
    assert (pieces.folder / "whole/small.pkl").read_text() == "piece 1\npiece 2\n"


def test_chunks_are_held_against_a_checksum_that_is_there(pieces):
    output = ["--output", "whole/small.pkl"]
    (pieces.folder / "small.pkl.sha256").write_text(f"{'0' * 64}  small.pkl\n")
    assert "wrong sha256 over small.pkl's chunks" in refused(pieces, "join", "small.pkl", *output)
    assert not (pieces.folder / "whole/small.pkl").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (".", "expected a file to join, got a folder"),
        ("none.pkl", "expected none.pkl.sha256 or none.pkl.chunkmanifest beside it, got nothing"),
        ("dodo.py", "got only the whole file"),
        ("lone.pkl.p01", "lone.pkl.sha256: expected the checksum of lone.pkl, got nothing"),
        ("two.pkl", "both parts and chunks of it are there"),
        ("few.pkl", "chunk few.pkl.chunk02of02 is missing"),
    ],
)
def test_what_cannot_be_joined_is_told(pieces, name, told):
    for file in ("lone.pkl.p01", "two.pkl.p00", "two.pkl.chunk01of01", "few.pkl.chunk01of02"):
        (pieces.folder / file).write_text("x")
    (pieces.folder / "two.pkl.chunkmanifest").write_text("1")
    (pieces.folder / "few.pkl.chunkmanifest").write_text("2")
    assert told in refused(pieces, "join", name)


# ---- numbers and what they count


def test_one_of_something_is_told_in_the_singular(built):
    assert "nothing is outdated: 1 step up to date" in built.doit("outdated", "onnx:mlp").stderr
    assert "nothing is outdated: 3 steps up to date" in built.doit("outdated").stderr
    assert built.doit("fsck", "onnx:mlp").stdout.endswith(" files read, every byte is as recorded\n")


# ---- the older command line


def test_models_checks_where_it_will_deliver_before_it_builds(project):
    done = subprocess.run(
        [sys.executable, "-c", MODELS, "--model", "pop2", "--output-dir", "dodo.py/here"],
        cwd=project.folder,
        env={"PATH": PATH, "HOME": str(project.folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--output-dir: expected a folder, got the file" in done.stderr
    assert (project.folder / "dodo.py").read_text() == DODO
