"""The command line as users type it: real `doit` processes in real folders."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from contract import DODO, HEAD

from rules.keeping import blocks
from rules.keeping.digests import Stamp
from rules.keeping.lock import holding

DOIT = Path(sys.executable).with_name("doit")
HEAVY = ("tinygrad", "onnx", "numpy", "jsonschema", "rich", "tomlkit", "tomllib", "http.client", "fsspec")
OTHER = """\
[flags.other]
extends = "cpu"
FLOAT16 = 0
NUM_CPU_THREADS = 1
PARALLEL = 0
"""
CHAIN = ("onnx", "candidate", "pkl")


def model(model_id: str, seed: int, *, flags: str = "cpu", architecture: str = "generic-mlp") -> str:
    kind = 'type = "generic"' if architecture == "generic-mlp" else 'since = "v22"'
    source = f'{{ kind = "generated", architecture = "{architecture}", seed = {seed}, width = 4 }}'
    return f"""[models.{model_id}]
name = "{model_id.upper()}"
version = "v15"
series = "Tests"
released = "2026-01-01"
flags = "{flags}"
{kind}
source = {source}
"""


class Project:
    """A folder with a models.toml and a dodo.py, and `doit` run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.artifacts = folder / "artifacts"

    def run(self, *words, env=None, folder=None):
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("DOIT", "MODELS_"))
        }
        return subprocess.run(
            [DOIT, *map(str, words)],
            cwd=folder or self.folder,
            env=environment | (env or {}),
            capture_output=True,
            text=True,
            timeout=600,
        )

    def made(self, *words) -> set[str]:
        """The tasks that a run executes."""
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return {line.split()[1] for line in done.stdout.splitlines() if line.startswith("✓")}

    def outdated(self, *words) -> dict[str, dict]:
        done = self.run("outdated", "--json", *words)
        assert done.returncode == 0, done.stderr
        return {row["task"]: row for row in json.loads(done.stdout)["outdated"]}

    def edit(self, old: str, new: str) -> None:
        catalog = self.folder / "models.toml"
        text = catalog.read_text()
        assert old in text
        catalog.write_text(text.replace(old, new, 1))

    def says(self, *words, code=0) -> str:
        done = self.run(*words)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Two tiny models, all built."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "dodo.py").write_text(DODO)
    (folder / "models.toml").write_text(HEAD + OTHER + model("a", 1) + model("b", 2, flags="other"))
    project = Project(folder)
    assert project.made() == {f"{step}:{one}" for step in CHAIN for one in "ab"}
    return folder


@pytest.fixture
def project(template, tmp_path):
    return Project(Path(shutil.copytree(template, tmp_path / "project")))


# ---- staleness as it is told and as it is done


def test_a_second_run_does_nothing(project):
    assert project.made() == set()
    assert project.run().stdout == "0 made, 6 up to date\n"


def test_a_flag_of_one_model_concerns_that_model_alone(project):
    project.edit("FLOAT16 = 0", "FLOAT16 = 1")
    outdated = project.outdated()
    assert set(outdated) == {"candidate:b", "pkl:b"}
    assert outdated["candidate:b"]["state"] == "stale"
    assert outdated["candidate:b"]["reasons"] == [{"what": "flags.FLOAT16", "old": "0", "new": "1"}]
    assert outdated["pkl:b"]["reasons"] == [{"what": "follows candidate:b", "old": "", "new": ""}]
    assert project.made() == {"candidate:b", "pkl:b"}


def test_outdated_prints_a_line_for_each_step_of_the_chain(project):
    shutil.rmtree(project.artifacts)
    lines = project.run("outdated").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [f"{step}:{one}" for one in "ab" for step in CHAIN]
    assert lines[1] == "candidate:a  never built; follows onnx:a"


def test_outdated_of_some_tasks_and_its_exit_code(project):
    project.edit("FLOAT16 = 0", "FLOAT16 = 1")
    assert set(project.outdated("candidate:b")) == {"candidate:b"}
    assert set(project.outdated("pkl")) == {"candidate:b", "pkl:b"}
    assert project.outdated("pkl:a") == {}
    assert project.run("outdated", "--exit-code").returncode == 1
    assert project.run("outdated", "--exit-code", "pkl:a").returncode == 0


def edits(project):
    compiled, records = project.artifacts / "compiled", project.artifacts / "results"
    artifact = compiled / "a_tinygrad.pkl"

    def truncate():
        os.truncate(artifact, 1000)

    def swap():
        content = bytearray((compiled / "b_tinygrad.pkl").read_bytes())
        content[500] ^= 1
        stamp = (compiled / "b_tinygrad.pkl").stat()
        (compiled / "b_tinygrad.pkl").unlink()
        (compiled / "b_tinygrad.pkl").write_bytes(content)
        os.utime(compiled / "b_tinygrad.pkl", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    return {
        "flag": lambda: project.edit("FLOAT16 = 0", "FLOAT16 = 1"),
        "flag of all": lambda: project.edit("IMAGE = 0", "IMAGE = 1"),
        "flag back": lambda: project.edit("IMAGE = 1", "IMAGE = 0"),
        "seed": lambda: project.edit("seed = 1", "seed = 3"),
        "display name": lambda: project.edit('name = "A"', 'name = "Another"'),
        "comment": lambda: project.edit("[models.b]", "# nothing\n[models.b]"),
        "deleted": lambda: artifact.unlink(missing_ok=True),
        "truncated": truncate,
        "swapped, mtime kept": swap,
        "touched": lambda: os.utime(artifact),
        "record gone": lambda: (records / "a_artifact.json").unlink(),
        "record broken": lambda: (records / "b_validation.json").write_text("{"),
    }


def test_what_outdated_lists_is_what_a_run_executes(project):
    walk = random.Random(4).sample(sorted(edits(project)), len(edits(project)))
    walk.remove("flag back")
    walk.insert(walk.index("flag of all") + 1, "flag back")
    seen = 0
    for name in walk:
        edits(project)[name]()
        listed = project.outdated()
        stale = {task for task, row in listed.items() if row["state"] == "stale"}
        made = project.made()
        assert stale <= made <= set(listed), name
        assert project.outdated() == {}, name
        seen += len(made)
    assert seen > len(walk)


@pytest.mark.parametrize("mark", [["candidate:b"], ["onnx"], ["pkl:a", "candidate:b"]])
def test_what_outdated_lists_beside_what_is_ignored_is_what_a_run_executes(project, mark):
    project.edit("IMAGE = 0", "IMAGE = 1")
    project.says("ignore", *mark)
    told = json.loads(project.says("outdated", "--json"))
    lines = {line.split()[0]: line for line in project.says("outdated").splitlines() if ":" in line}
    done = project.run()
    skipped = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("!")]
    made = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("✓")}
    assert made == {row["task"] for row in told["outdated"]}
    assert sorted(skipped) == sorted(told["ignored"])
    assert f"{len(skipped)} ignored" in done.stdout.splitlines()[-1]
    assert "pkl:b" in skipped
    assert all("ignored" in lines[task] for task in skipped)
    assert "  ignored, as it follows" in project.says("why", "b", "pkl")
    assert project.run("outdated", "--exit-code").returncode == 0


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A driving model in a release, and a tiny one beside it, all built."""
    folder = tmp_path_factory.mktemp("released")
    (folder / "dodo.py").write_text(DODO)
    driving = model("d", 1, architecture="supercombo-24")
    (folder / "models.toml").write_text(HEAD + driving + model("a", 1) + '[release.v22]\ncontract = "warp"\n')
    project = Project(folder)
    assert {"pkl:d", "parts:d", "manifest:v22", "release:v22", "pkl:a"} <= project.made()
    return project


def test_a_display_name_concerns_manifests_and_releases_alone(released):
    released.edit('name = "D"', 'name = "Dogwood"')
    listed = released.outdated()
    assert set(listed) == {"manifest:v22", "release:v22"}
    assert released.made() == {"manifest:v22", "release:v22"}
    manifest = json.loads((released.artifacts / "manifests" / "model_names_v22.json").read_text())
    assert manifest["models"][0]["name"] == "Dogwood"


def test_why_of_a_release_names_the_cause_upstream(released):
    record = released.artifacts / "results" / "d_parts.json"
    kept = record.read_bytes()
    record.unlink()
    lines = released.says("why", "release:v22").splitlines()
    record.write_bytes(kept)
    assert lines == [
        "release:v22: not known yet: it follows parts:d, manifest:v22",
        "parts:d: never built",
    ]


def test_a_line_names_a_few_of_the_steps_that_a_release_follows(released):
    record = released.artifacts / "results" / "d_source.json"
    kept = record.read_bytes()
    record.unlink()
    lines = {line.split()[0]: line for line in released.says("outdated").splitlines()}
    followed = released.outdated()["release:v22"]["reasons"]
    record.write_bytes(kept)
    assert lines["release:v22"].endswith("follows pkl:d, parts:d, manifest:v22")
    assert len(followed) == 3


def test_a_run_says_why_in_the_words_of_outdated_and_names_the_model_that_fails(project):
    project.edit("seed = 1", "seed = 3")
    assert "…  onnx:a  seed 1 → 3\n" in project.run("onnx:a").stdout
    source = '{ kind = "generated", architecture = "generic-mlp", seed = 3, width = 4 }'
    project.edit(source, '{ kind = "file", path = "nowhere", format = "generic" }')
    assert "\na: " + str(project.folder / "nowhere") in project.run("onnx:a").stdout


def test_a_run_with_nothing_to_do_still_says_what_it_leaves_alone(project):
    project.made()
    project.says("ignore", "pkl:a")
    lines = project.says().splitlines()
    assert lines == [
        "!  pkl:a  ignored (doit forget pkl:a takes that back)",
        "0 made, 5 up to date, 1 ignored",
    ]


def test_an_idle_run_imports_nothing_heavy(project):
    project.made()
    done = subprocess.run(
        [sys.executable, "-X", "importtime", DOIT], cwd=project.folder, capture_output=True, text=True
    )
    assert done.stdout == "0 made, 6 up to date\n"
    imported = {line.rsplit("|", 1)[1].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "rules.tasks" in imported
    assert [name for name in HEAVY if name in imported] == []


# ---- why


def test_why_says_up_to_date_and_since_when(project):
    lines = project.says("why", "a").splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["onnx:a", "candidate:a", "pkl:a"]
    assert all(": up to date, built " in line for line in lines)


def test_why_names_old_and_new_and_that_nothing_else_changed(project):
    project.edit("FLOAT16 = 0", "FLOAT16 = 1")
    assert project.says("why", "b", "candidate") == "candidate:b: flags.FLOAT16 0 → 1; nothing else\n"
    (row,) = json.loads(project.says("why", "--json", "candidate:b"))
    assert row["reasons"] == [{"what": "flags.FLOAT16", "old": "0", "new": "1"}]
    assert row["nothing_else"] is True


def test_why_of_a_step_tells_the_cause_upstream(project):
    project.edit("seed = 1", "seed = 3")
    lines = project.says("why", "a", "pkl").splitlines()
    assert lines[0] == "pkl:a: not known yet: it follows onnx:a, candidate:a"
    assert lines[1] == "onnx:a: seed 1 → 3; nothing else"


def test_why_works_for_what_is_missing_damaged_or_never_built(project):
    artifact = project.artifacts / "compiled" / "a_tinygrad.pkl"
    right = artifact.read_bytes()
    artifact.unlink()
    assert "compiled/a_tinygrad.pkl is missing; nothing else" in project.says("why", "pkl:a")
    artifact.write_bytes(right[:100] + bytes(255 - one for one in right[100:103]) + right[103:])
    assert "compiled/a_tinygrad.pkl: bytes 100–102 differ" in project.says("why", "pkl:a")
    artifact.write_bytes(right[:-7])
    assert f"alike up to byte {len(right) - 7}" in project.says("why", "pkl:a")
    shutil.rmtree(project.artifacts)
    assert project.says("why", "a", "onnx") == "onnx:a: never built\n"


def test_why_tells_a_failure_until_it_is_mended(project):
    project.edit(
        "[models.b]",
        '[models.c]\nname = "C"\nversion = "v0"\nseries = "S"\nreleased = "2026-01-01"\n'
        'type = "generic"\nsource = { path = "c.onnx", format = "generic" }\n[models.b]',
    )
    (project.folder / "c.onnx").write_bytes(b"not a model")
    assert project.run("pkl:c").returncode != 0
    told = project.says("why", "c", "onnx")
    assert "it failed last time: " in told and "next: doit onnx:c" in told
    (row,) = json.loads(project.says("why", "onnx:c", "--json"))
    assert row["failure"]["step"] == "onnx:c"


def test_why_of_an_unknown_name_offers_the_nearest(project):
    assert "did you mean pkl:a?" in project.says("why", "pkl:aa", code=2)
    assert "its steps are onnx, candidate, pkl" in project.says("why", "a", "parts", code=2)


# ---- damage


def test_fsck_names_damaged_bytes_and_a_run_mends_them(project):
    artifact = project.artifacts / "compiled" / "a_tinygrad.pkl"
    right = artifact.read_bytes()
    artifact.unlink()
    artifact.write_bytes(right[:4096] + b"?" + right[4097:])
    told = project.says("fsck", code=1)
    assert "compiled/a_tinygrad.pkl (pkl:a): byte 4096 differs" in told
    assert "to mend: doit" in told
    assert project.made() == {"pkl:a"}
    assert artifact.read_bytes() == right
    assert "every byte is as recorded" in project.says("fsck")


def test_damage_in_the_store_itself_is_found_and_rebuilt(project):
    artifact = project.artifacts / "compiled" / "a_tinygrad.pkl"
    right = artifact.read_bytes()
    for path in project.artifacts.rglob("*"):
        if path.is_file() and path.read_bytes() == right:
            path.chmod(0o644)
            path.write_bytes(right[:9000] + bytes([right[9000] ^ 1]) + right[9001:])
    damaged = json.loads(project.run("fsck", "--json").stdout)["damaged"]
    assert {row["task"] for row in damaged} == {"candidate:a", "pkl:a", None}
    assert "damage within bytes 8192–12287; the store has lost" in damaged[0]["what"]
    assert project.made() == {"candidate:a", "pkl:a"}
    assert artifact.read_bytes() == right
    assert project.run("fsck").returncode == 0


def lie(project, path: Path) -> None:
    """Change a byte, and make the remembered digest belong to the new stat: bit rot that no stat shows."""
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    stamp = path.stat()
    line = [stamp.st_ino, stamp.st_size, stamp.st_mtime_ns, stamp.st_ctime_ns]
    with (project.artifacts / ".store" / "digests.log").open("a") as log:
        log.write(json.dumps([*line, hashlib.sha256(content).hexdigest()]) + "\n")


@pytest.fixture
def rotten(project):
    """An artifact with one bit turned, sealed as if it were fresh; and its right bytes."""
    artifact = project.artifacts / "compiled" / "a_tinygrad.pkl"
    right = artifact.read_bytes()
    lie(project, artifact)
    assert project.made() == set()
    return artifact, right


def test_outdated_verify_reads_every_byte(project, rotten):
    assert project.outdated() == {}
    assert set(project.outdated("--verify")) == {"pkl:a"}


def test_a_run_with_verify_mends_what_no_stat_shows(project, rotten):
    artifact, right = rotten
    assert project.made("--verify") == {"pkl:a"}
    assert artifact.read_bytes() == right


def test_after_fsck_a_plain_run_mends_what_no_stat_shows(project, rotten):
    artifact, right = rotten
    assert "compiled/a_tinygrad.pkl (pkl:a): byte " in project.says("fsck", code=1)
    assert project.made() == {"pkl:a"}
    assert artifact.read_bytes() == right


# ---- doit's own commands keep their meaning


def test_forget_makes_the_next_run_build_and_not_restore(project):
    assert project.says("forget", "pkl:a") == "forgetting pkl:a\n"
    assert set(project.outdated()) == {"pkl:a"}
    assert project.made() == {"pkl:a"}
    assert json.loads(project.says("why", "pkl:a", "--json"))[0]["record"]["made"] == "built"


def test_forget_takes_groups_and_all(project):
    project.says("forget", "candidate")
    assert {task for task, row in project.outdated().items() if row["state"] == "stale"} == {
        "candidate:a",
        "candidate:b",
    }
    project.says("forget", "--all")
    assert len(project.outdated()) == 6
    assert len(project.made()) == 6


def test_clean_removes_outputs_which_the_store_restores(project):
    artifact = project.artifacts / "compiled" / "a_tinygrad.pkl"
    right = artifact.read_bytes()
    assert f"pkl:a - removing file '{artifact}'" in project.says("clean", "pkl:a", "--dry-run")
    assert artifact.exists()
    project.says("clean", "pkl:a")
    assert not artifact.exists()
    assert project.made() == {"pkl:a"}
    assert artifact.read_bytes() == right
    assert json.loads(project.says("why", "pkl:a", "--json"))[0]["record"]["made"] == "restored"


def test_clean_with_forget_builds_anew(project):
    project.says("clean", "--forget", "pkl:b")
    assert project.made() == {"pkl:b"}
    assert json.loads(project.says("why", "pkl:b", "--json"))[0]["record"]["made"] == "built"


def test_list_shows_the_status_of_the_whole_chain(project):
    project.edit("FLOAT16 = 0", "FLOAT16 = 1")
    status = {line.split()[1]: line[0] for line in project.says("list", "--all", "-s").splitlines()}
    assert status["candidate:b"] == status["pkl:b"] == status["pkl"] == "R"
    assert status["onnx:b"] == status["pkl:a"] == status["onnx"] == "U"


def test_info_gives_our_reasons(project):
    project.edit("FLOAT16 = 0", "FLOAT16 = 1")
    told = project.says("info", "candidate:b", code=1)
    assert " * flags.FLOAT16 0 → 1" in told and "0x" not in told
    assert "up-to-date" in project.says("info", "pkl:a")
    assert "nope: no such task" in project.says("info", "nope", code=2)


def test_ignore_leaves_a_task_alone_until_it_is_forgotten(project):
    (project.artifacts / "compiled" / "a_tinygrad.pkl").unlink()
    project.says("ignore", "pkl:a")
    assert project.made() == set()
    record = (project.artifacts / "results" / "a_validation.json").read_bytes()
    assert "what was built is kept" in project.says("forget", "pkl:a")
    assert (project.artifacts / "results" / "a_validation.json").read_bytes() == record
    assert project.made() == {"pkl:a"}


def test_a_record_that_is_gone_is_told_from_a_step_that_was_never_built(project):
    (project.artifacts / "results" / "a_validation.json").unlink()
    assert project.says("why", "a", "pkl").startswith("pkl:a: its record is missing")
    assert project.made() == {"pkl:a"}


@pytest.mark.parametrize("words", [["forget", "pkl:a"], ["clean", "pkl:a"], ["fsck"], ["pkl:b"]])
def test_a_writer_waits_for_no_one_and_says_who_holds_the_workspace(project, words):
    with holding(project.artifacts / ".store" / "lock", "a test"):
        told = project.says(*words, code=4)
    assert f"process {os.getpid()} holds this workspace" in told and "a test" in told
    assert ("--wait" in told) == (words == ["pkl:b"])
    assert project.outdated() == {}


# ---- the words of a command line


def test_options_stand_anywhere(project):
    project.edit("FLOAT16 = 0", "FLOAT16 = 1")
    for words in (["outdated", "pkl:b", "--json"], ["outdated", "--json", "pkl:b"]):
        assert len(json.loads(project.says(*words))["outdated"]) == 2
    assert "task_dep" in project.says("info", "pkl:a", "--no-status")
    assert project.made("pkl:b", "-n", "2") == {"candidate:b", "pkl:b"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["outdated", "--jsn"], "unknown option --jsn\n  → did you mean --json?"),
        (["why", "a", "--verfy"], "did you mean --verify?"),
        (["split", "x", "--output-dri", "d"], "did you mean --output-dir?"),
        (["outdated", "--json=1"], "--json is a switch"),
        (["split", "x", "--output-dir"], "--output-dir needs a value"),
        (["split", "x", "--chunk-size-mib", "many"], "expected a whole number, got 'many'"),
        (["split", "x", "--chunk-size-mib=0"], "expected 1 to 95, got 0"),
        (["split"], "too few arguments\n  → doit split FILE"),
        (["join", "a", "b"], "too many arguments: b"),
        (["why"], "too few arguments"),
        (["outdated", "pkl:bb"], "did you mean pkl:b?"),
        (["outdated", "a=b"], "a=b: no such task"),
        (["pkl:a", "--bogus"], "unknown option --bogus"),
        (["outdatd"], "did you mean outdated?"),
        (["-n", "x"], "got 'x'\n  → doit run --help says what it takes"),
        (["dumpdb"], ".doit.db: there is no database, records tell what was built\n  → doit why ID"),
    ],
)
def test_a_wrong_command_line_is_refused_in_a_sentence(project, words, told):
    assert told in project.says(*words, code=2)


def test_every_command_has_help(tmp_path):
    project = Project(tmp_path)
    for command in ("outdated", "why", "fsck", "split", "join", "forget", "clean", "list", "info", "run"):
        told = project.says(command, "--help")
        assert "PURPOSE" in told and f"doit {command}" in told


def test_split_and_join_work_in_any_folder_and_keep_equals_signs(tmp_path):
    project = Project(tmp_path)
    content = random.Random(1).randbytes(2 * 1024 * 1024 + 5)
    (tmp_path / "seed=1.pkl").write_bytes(content)
    told = project.says("split", "seed=1.pkl", "--output-dir", "dir=2", "--chunk-size-mib", "1")
    names = ["seed=1.pkl.p00", "seed=1.pkl.p01", "seed=1.pkl.p02", "seed=1.pkl.sha256"]
    assert told.split() == [f"dir=2/{name}" for name in names]
    project.says("join", "--output=out=3.pkl", "dir=2/seed=1.pkl.sha256")
    assert (tmp_path / "out=3.pkl").read_bytes() == content
    (tmp_path / "dir=2" / names[1]).write_bytes(b"wrong")
    (tmp_path / "out=3.pkl").unlink()
    assert "wrong sha256" in project.says("join", "dir=2/seed=1.pkl.sha256", "--output", "out=3.pkl", code=2)
    assert not (tmp_path / "out=3.pkl").exists()


def test_a_folder_without_a_dodo_py_needs_only_its_catalog(project):
    (project.folder / "dodo.py").unlink()
    assert project.outdated() == {}
    (project.folder / "models.toml").rename(project.folder / "elsewhere.toml")
    told = project.says("why", "a", code=2)
    assert "neither dodo.py nor models.toml is here" in told


def test_a_dodo_py_of_another_kind_keeps_doits_own_run(tmp_path):
    (tmp_path / "dodo.py").write_text(
        "def task_hi():\n"
        "    option = {'name': 'who', 'long': 'who', 'default': 'nobody'}\n"
        "    return {'actions': ['echo hello %(who)s'], 'params': [option], 'verbosity': 2}\n"
    )
    project = Project(tmp_path)
    assert "hello world" in project.says("hi", "--who", "world")
    project.says("forget", "hi")
    project.says("clean", "hi")
    assert "it has no DOIT_CONFIG" in project.says("outdated", code=2)


def test_a_reader_that_leaves_early_is_no_error(project):
    shutil.rmtree(project.artifacts)
    done = subprocess.run(
        f"{DOIT} outdated | head -1", shell=True, cwd=project.folder, capture_output=True, text=True
    )
    assert done.stdout.startswith("onnx:a") and done.stderr == ""


def test_blocks_say_where_a_file_differs(tmp_path):
    content = random.Random(2).randbytes(3 * blocks.BLOCK + 10)
    blob, table = tmp_path / "blob", tmp_path / "table"
    blob.write_bytes(content)
    blocks.note(blob, table)
    assert blocks.differing(blob, table) == []
    assert blocks.differing(blob, tmp_path / "none") == []
    for at in (0, blocks.BLOCK - 1, blocks.BLOCK, 3 * blocks.BLOCK + 9):
        blob.write_bytes(content[:at] + bytes([content[at] ^ 128]) + content[at + 1 :])
        first = at // blocks.BLOCK * blocks.BLOCK
        assert blocks.differing(blob, table) == [(first, first + blocks.BLOCK - 1)]


# ---- what a new user types


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([""], "expected a command or a task, got an empty word"),
        (["pkl:a", ""], "got an empty word"),
        (["dumpdb"], ": there is no database"),
        (["strace", "pkl:a"], "doit strace: there is no database"),
        (["forget"], "expected a task, got none\n  → doit forget TASK, or doit forget --all"),
    ],
)
def test_a_command_that_has_nothing_to_say_here_says_so(project, words, told):
    assert told in project.says(*words, code=2)
    assert project.outdated() == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = 1\ndef f(:\n", "dodo.py:2: SyntaxError: invalid syntax"),
        ("\nimport nosuchmodule\n", "dodo.py:2: ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("def task_x():\n    return nosuchname\n", "dodo.py:2: NameError: name 'nosuchname' is not defined"),
        ("\0", "dodo.py:1: SyntaxError"),
    ],
)
def test_a_fault_in_a_dodo_py_is_told_by_its_line(tmp_path, text, told):
    (tmp_path / "dodo.py").write_text(text)
    for words in ([], ["list"]):
        assert f"{told}" in Project(tmp_path).says(*words, code=3)


@pytest.mark.parametrize(
    "env", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_terminal_that_knows_ascii_alone_is_told_all_the_same(project, env):
    (project.artifacts / "compiled" / "a_tinygrad.pkl").unlink()
    for words in (["pkl:a"], ["list"], ["why", "a"], ["inspect", "artifacts/compiled/a_tinygrad.pkl"]):
        done = project.run(*words, env=env)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    project.edit('name = "A"', 'nam€ = "A"')
    done = project.run(env=env)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr


@pytest.mark.parametrize(
    ("content", "line"),
    [('{"format": 1,\n "models": {,}}', 2), ('{"format": 1, "models": {\n\n"a": {"source": 1}}}', 3)],
)
def test_pins_that_cannot_be_read_are_a_fault_even_where_no_source_has_one(project, content, line):
    (project.folder / "models.lock.json").write_text(content)
    for words, code in ((["outdated"], 2), (["why", "a"], 2), ([], 3)):
        assert f"models.lock.json:{line}: not a file of pins" in project.says(*words, code=code)


@pytest.mark.parametrize("name", ["models.toml", "models.lock.json"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(project, name):
    (project.folder / name).unlink(missing_ok=True)
    os.mkfifo(project.folder / name)
    for words in (["outdated"], []):
        done = project.run(*words)
        assert done.returncode
        assert "it is no regular file" in done.stderr


def test_an_ignored_task_is_told_by_a_run_with_nothing_to_do(project):
    assert project.run().stdout == "0 made, 6 up to date\n"  # by the seal
    project.says("ignore", "pkl:a")
    for _ in range(2):
        assert project.run().stdout.endswith("0 made, 5 up to date, 1 ignored\n")
    assert "there is no database" in project.says("dumpdb", code=2)  # though there are marks


def test_outdated_and_why_write_nothing(project):
    def seen():
        paths = [path for path in project.folder.rglob("*") if "__pycache__" not in path.parts]
        return {path: Stamp.of(path) for path in paths if path.exists()}

    project.edit('name = "A"', 'name = "Another"')
    before = seen()
    assert project.outdated() == {}
    project.says("why", "a")
    assert seen() == before
    shutil.rmtree(project.artifacts)
    assert len(project.outdated()) == 6
    assert not project.artifacts.exists()


def test_failures_end_a_run_with_one_code_however_it_is_run(project):
    lost = 'type = "generic"\nsource = { kind = "file", path = "lost.onnx", format = "generic" }\n'
    for name in "cd":
        table = model(name, 1).partition('type = "generic"')[0]
        with (project.folder / "models.toml").open("a") as catalog:
            catalog.write(table + lost)
    for words in ([], ["-n", "2"], ["--continue"], ["-n", "2", "--continue"]):
        assert "failed (onnx:" in project.says(*words, code=1)
