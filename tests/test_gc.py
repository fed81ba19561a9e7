"""Garbage collection: what anything refers to stays, whatever the rest of the store looks like."""

import hashlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from contract import DODO, HEAD, Project, generated, model
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.build import build
from rules.decide import Judge
from rules.errors import YardError
from rules.keeping.gc import Garbage, Keep, garbage, seconds
from rules.keeping.lock import holding
from rules.keeping.records import Output, Record
from rules.keys import key_of
from rules.step import Made, Step
from rules.workspace import Workspace

DAY = 86_400
NOTHING = Keep(0, 0)
CATALOG = HEAD + "[models]\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "artifacts")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def made(workspace: Workspace, task: str, content: bytes, *, days_ago: float | None = None) -> Record:
    """A step built for real, now or some days ago."""

    def make(scratch: Path, _: object) -> Made:
        (scratch / "artifact").write_bytes(content)
        return Made({"artifact": scratch / "artifact"})

    step = Step(
        task=task,
        record=task.replace(":", "_"),
        doc="",
        settings=lambda: {"task": task, "content": digest(content)},
        make=make,
        place=lambda name: f"made/{task.replace(':', '_')}_{name}",
    )
    record = build(step, Judge(workspace), workspace)
    if days_ago is not None:
        when = time.time() - days_ago * DAY
        os.utime(workspace.store.root / "ac" / f"{record.key}.json", (when, when))
    return record


def collect(workspace: Workspace, keep: Keep = NOTHING) -> Garbage:
    found = garbage(workspace, workspace.path("ready-for-resources"), keep)
    found.remove()
    return found


def held(workspace: Workspace) -> set[str]:
    cas = workspace.store.root / "cas"
    return {path.name for path in cas.rglob("*") if path.is_file()}


def results(workspace: Workspace) -> set[str]:
    return {path.stem for path in (workspace.store.root / "ac").glob("*")}


# ---- what stays


def test_a_recorded_result_stays_with_its_bytes(workspace: Workspace) -> None:
    old = made(workspace, "pkl:one", b"old", days_ago=99)
    new = made(workspace, "pkl:one", b"newer", days_ago=98)
    found = collect(workspace)
    assert held(workspace) == {digest(b"newer")}
    assert results(workspace) == {new.key}
    assert [path.stem for path in found.results] == [old.key]
    assert (found.freed > len(b"old"), found.kept) == (True, 1)


def test_young_results_stay(workspace: Workspace) -> None:
    for days in (40, 20, 10):
        made(workspace, "pkl:one", b"%d" % days, days_ago=days)
    collect(workspace, Keep(seconds("30d"), 0))
    assert held(workspace) == {digest(b"20"), digest(b"10")}


def test_the_newest_results_of_each_step_stay(workspace: Workspace) -> None:
    for task in ("pkl:one", "pkl:two"):
        for days in (40, 30, 20, 10):
            made(workspace, task, b"%s %d" % (task.encode(), days), days_ago=days)
    collect(workspace, Keep(0, 2))
    assert held(workspace) == {digest(b"pkl:%s %d" % (one, n)) for one in (b"one", b"two") for n in (10, 20)}


def test_a_restored_result_counts_as_used_now(workspace: Workspace) -> None:
    made(workspace, "pkl:one", b"first", days_ago=99)
    made(workspace, "pkl:one", b"second", days_ago=98)
    back = made(workspace, "pkl:one", b"first")
    assert back.made == "restored"
    made(workspace, "pkl:one", b"third", days_ago=97)
    collect(workspace, Keep(DAY, 0))
    assert held(workspace) == {digest(b"first"), digest(b"third")}


@pytest.mark.parametrize("name", ["v22/a.pkl", "v21/gone/from/the/catalog.pkl"])
def test_a_release_folder_protects_the_bytes_it_holds(workspace: Workspace, name: str) -> None:
    made(workspace, "pkl:one", b"published", days_ago=99)
    made(workspace, "pkl:one", b"current", days_ago=99)
    published = workspace.path(f"ready-for-resources/{name}")
    published.parent.mkdir(parents=True)
    published.write_bytes(b"published")
    collect(workspace)
    assert held(workspace) == {digest(b"published"), digest(b"current")}


def test_a_checksum_in_a_release_protects_what_it_names(workspace: Workspace) -> None:
    made(workspace, "pkl:one", b"whole", days_ago=99)
    made(workspace, "pkl:one", b"current", days_ago=99)
    checksum = workspace.path("ready-for-resources/v22/a.pkl.sha256")
    checksum.parent.mkdir(parents=True)
    checksum.write_text(f"{digest(b'whole')}  a.pkl\n")
    collect(workspace)
    assert digest(b"whole") in held(workspace)


def test_a_record_of_another_format_still_protects(workspace: Workspace) -> None:
    record = made(workspace, "pkl:one", b"whole", days_ago=99)
    path = workspace.records.path_of("pkl_one")
    path.write_text(path.read_text().replace('"format": 1', '"format": 99')[:-5])
    collect(workspace)
    assert (held(workspace), results(workspace)) == ({digest(b"whole")}, {record.key})


def test_a_shut_folder_stops_everything(workspace: Workspace) -> None:
    made(workspace, "pkl:one", b"old", days_ago=99)
    made(workspace, "pkl:one", b"new", days_ago=99)
    dangling = workspace.path("ready-for-resources/v22/a.pkl")
    dangling.parent.mkdir(parents=True)
    dangling.symlink_to("not-mounted")
    with pytest.raises(OSError, match=r"a\.pkl"):
        collect(workspace)
    assert held(workspace) == {digest(b"old"), digest(b"new")}


def test_the_user_can_still_go_back_to_a_kept_generation(workspace: Workspace) -> None:
    made(workspace, "pkl:one", b"first", days_ago=99)
    made(workspace, "pkl:one", b"second", days_ago=98)
    collect(workspace, Keep(0, 2))
    assert made(workspace, "pkl:one", b"first").made == "restored"


def test_what_is_not_ours_is_left_alone(workspace: Workspace) -> None:
    made(workspace, "pkl:one", b"one")
    strangers = [workspace.store.root / "cas" / ".DS_Store", workspace.store.root / "ac" / "notes.txt"]
    for path in strangers:
        path.write_text("mine")
    collect(workspace)
    assert all(path.exists() for path in strangers)


def test_an_empty_workspace_has_no_garbage(workspace: Workspace) -> None:
    assert collect(workspace) == Garbage((), (), (), 0, 0)


# ---- bytes


def test_only_the_last_name_of_a_file_frees_its_bytes(workspace: Workspace) -> None:
    blobs = [workspace.store.path_of(digest(content)) for content in (b"a" * 1000, b"b" * 300)]
    for blob, content in zip(blobs, (b"a" * 1000, b"b" * 300), strict=True):
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
    workspace.path("elsewhere").hardlink_to(blobs[0])
    found = collect(workspace)
    assert (len(found.blobs), found.freed) == (2, 300)
    assert workspace.path("elsewhere").stat().st_size == 1000


def test_a_leftover_link_does_not_hide_freed_bytes(workspace: Workspace) -> None:
    blob = workspace.store.path_of(digest(b"a" * 1000))
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"a" * 1000)
    workspace.path("compiled").mkdir()
    leftover = workspace.path(f"compiled/.tmp-{dead()}-00ff-a.pkl")
    leftover.hardlink_to(blob)
    found = collect(workspace)
    assert (found.temporaries, found.freed) == ((leftover,), 1000)
    assert not leftover.exists()


# ---- what runs left behind, and what a run still needs


def dead() -> int:
    """The number of a process that has ended."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def test_leftovers_go_and_files_in_the_making_stay(workspace: Workspace) -> None:
    scratch = workspace.store.scratch()
    (scratch / "half").write_bytes(b"in the making")
    gone = scratch.with_name(f"{dead()}-{secrets.token_hex(4)}")
    gone.mkdir()
    (gone / "half").write_bytes(b"nobody's")
    mine = workspace.path(f"compiled/.tmp-{os.getpid()}-00ff-a.pkl")
    mine.parent.mkdir()
    mine.write_bytes(b"in the making")
    found = collect(workspace)
    assert (found.temporaries, found.freed) == ((gone,), len(b"nobody's"))
    assert (scratch / "half").exists()
    assert mine.exists()
    assert not gone.exists()


# ---- the command


def gc(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    for name, content in (("models.toml", CATALOG), ("dodo.py", DODO)):
        (folder / name).write_text(content)
    environment = {name: text for name, text in os.environ.items() if name != "MODELS_WORKSPACE"}
    command = [sys.executable, "-m", "doit", "gc", *options]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def stale(workspace: Workspace) -> Workspace:
    for days in (50, 40, 35):
        made(workspace, "pkl:one", b"%d" % days * 500, days_ago=days)
    return workspace


def test_dry_run_tells_what_a_run_then_does(stale: Workspace, tmp_path: Path) -> None:
    before = held(stale)
    dry = gc(tmp_path, "--dry-run", "--json")
    assert (dry.returncode, dry.stderr, held(stale)) == (0, "", before)
    real = gc(tmp_path, "--json")
    told, done = json.loads(dry.stdout), json.loads(real.stdout)
    assert (told.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert told == done
    assert before - held(stale) == set(done["blobs"]) == {digest(b"50" * 500)}
    assert done["bytes_freed"] >= 1000


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ([], {b"40", b"35"}),
        (["--keep", "45d"], {b"40", b"35"}),
        (["--keep=36d"], {b"35"}),
        (["--keep-generations", "3"], {b"50", b"40", b"35"}),
        (["--keep-generations", "0"], {b"35"}),
        (["--keep", "60d", "--keep-generations", "1"], {b"50", b"40", b"35"}),
    ],
)
def test_options_say_what_stays(
    stale: Workspace, tmp_path: Path, options: list[str], kept: set[bytes]
) -> None:
    run = gc(tmp_path, *options)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("freed ")
    assert held(stale) == {digest(one * 500) for one in kept}


def test_a_running_build_keeps_it_out(stale: Workspace, tmp_path: Path) -> None:
    before = held(stale)
    with holding(stale.lock, "doit pkl:one"):
        run = gc(tmp_path, "--keep", "0d")
    assert run.returncode == 4
    assert f"process {os.getpid()} holds this workspace" in run.stderr
    assert held(stale) == before


@pytest.mark.parametrize("options", [["--keep", "soon"], ["--keep-generations", "-1"], ["everything"]])
def test_what_it_does_not_understand_removes_nothing(
    stale: Workspace, tmp_path: Path, options: list[str]
) -> None:
    before = held(stale)
    run = gc(tmp_path, *options)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("ERROR: ")
    assert held(stale) == before


@pytest.mark.parametrize(
    ("text", "age"), [("90m", 5400), ("12h", 43_200), ("30d", 30 * DAY), ("2w", 14 * DAY)]
)
def test_ages(text: str, age: int) -> None:
    assert seconds(text) == age


@given(st.text().filter(lambda text: text[-1:] not in ("m", "h", "d", "w")))
def test_other_ages_are_refused(text: str) -> None:
    with pytest.raises(YardError, match="expected an age"):
        seconds(text)


# ---- releases that models.toml has no more


def released(workspace: Workspace, name: str, *, recorded: bool = True, flat: bool = True) -> dict[str, Path]:
    """A release that was built once: an artifact, its manifest twice, and the id map."""
    manifest = f"model_names_{name}.json"
    places = {
        "a_driving_tinygrad.pkl": f"ready-for-resources/{name}/a_driving_tinygrad.pkl",
        manifest: f"ready-for-resources/{name}/{'' if flat else 'Versions/'}{manifest}",
        "map": f"source-maps/model_id_namespace_{name}.json",
    }
    steps = {"release": places, "manifest": {manifest: f"manifests/{manifest}"}}
    paths = {}
    for kind, outputs in steps.items():
        listed = []
        for output, place in outputs.items():
            path = paths[place] = workspace.path(place)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"{name} {output}".encode() * 100)
            listed.append(Output(output, place, path.stat().st_size, digest(path.read_bytes())))
        record = Record(f"{kind}:{name}", key_of({}), {}, tuple(listed), "built", "", 0.0)
        if recorded:
            workspace.records.write(f"{name}_{kind}", record)
    return paths


def visible(workspace: Workspace) -> set[str]:
    """Everything but the store, as workspace paths."""
    paths = (path.relative_to(workspace.root).as_posix() for path in workspace.root.rglob("*"))
    return {path for path in paths if not path.startswith(".store")}


def test_a_release_that_is_declared_no_more_goes_as_the_dry_run_tells(
    workspace: Workspace, tmp_path: Path
) -> None:
    released(workspace, "v21")
    (workspace.path("ready-for-resources/v21") / "._a_driving_tinygrad.pkl").write_bytes(b"macOS's")
    before = visible(workspace)
    dry = gc(tmp_path, "--dry-run")
    assert visible(workspace) == before
    line = "release v21, which models.toml has no more: 5 files "
    assert dry.stdout.splitlines()[0] == f"{line}would be removed"
    told = json.loads(gc(tmp_path, "--dry-run", "--json").stdout)
    done = gc(tmp_path)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"{line}removed")
    assert visible(workspace) == {"ready-for-resources", "manifests", "source-maps", "results"}
    removed = {str(workspace.path(one)) for one in before - visible(workspace)}
    assert removed - set(told["releases"]["v21"]["files"]) == {
        str(workspace.path(one))
        for one in ("ready-for-resources/v21", "results/v21_release.json", "results/v21_manifest.json")
    }
    assert told["bytes_freed"] > 4000


def test_a_folder_in_a_withdrawn_release_goes_with_it(workspace: Workspace, tmp_path: Path) -> None:
    released(workspace, "v22", flat=False)
    gc(tmp_path)
    assert visible(workspace) == {"ready-for-resources", "manifests", "source-maps", "results"}
    released(workspace, "v22", flat=False)
    added = workspace.path("ready-for-resources/v22/Versions/notes.txt")
    added.write_text("mine")
    assert f"{added.relative_to(workspace.root)}: of no release in models.toml" in gc(tmp_path).stdout
    assert list(workspace.path("ready-for-resources/v22").rglob("*.*")) == [added]


def test_bytes_of_a_withdrawn_release_alone_are_freed_with_it(workspace: Workspace, tmp_path: Path) -> None:
    paths = released(workspace, "v21")
    blobs = [digest(path.read_bytes()) for path in paths.values()]
    for path in paths.values():
        copy = tmp_path / "copy"
        copy.write_bytes(path.read_bytes())
        workspace.store.put(copy)
    told = json.loads(gc(tmp_path, "--dry-run", "--json").stdout)
    assert held(workspace) == set(told["blobs"]) == set(blobs)
    gc(tmp_path)
    assert held(workspace) == set()


def test_what_is_not_as_the_release_was_made_stays_and_is_told(workspace: Workspace, tmp_path: Path) -> None:
    paths = released(workspace, "v21")
    folder = workspace.path("ready-for-resources/v21")
    edited, added = folder / "a_driving_tinygrad.pkl", folder / "notes.txt"
    edited.write_bytes(b"somebody's")
    added.write_text("mine")
    done = gc(tmp_path)
    for path in (edited, added):
        assert f"{path.relative_to(workspace.root)}: of no release in models.toml" in done.stdout
    assert sorted(path for path in folder.iterdir()) == [edited, added]
    assert [path for path in paths.values() if path.exists()] == [edited]


def test_a_folder_that_no_record_knows_is_told_and_left(workspace: Workspace, tmp_path: Path) -> None:
    released(workspace, "v21", recorded=False)
    (workspace.path("ready-for-resources/v21") / "._x").write_bytes(b"macOS's")
    workspace.path("ready-for-resources/mine").mkdir()
    workspace.path("ready-for-resources/mine/v1_driving_tinygrad.pkl").write_bytes(b"mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    released(workspace, "v20")
    workspace.path("ready-for-resources/v20").rename(elsewhere / "v20")
    workspace.path("ready-for-resources/v20").symlink_to(elsewhere / "v20")
    before, far = visible(workspace), sorted(elsewhere.rglob("*"))
    done = gc(tmp_path)
    assert (visible(workspace), sorted(elsewhere.rglob("*"))) == (before, far)
    assert "ready-for-resources/v20: of no release in models.toml" in done.stdout
    assert "ready-for-resources/v21/a_driving_tinygrad.pkl: of no release in models.toml" in done.stdout
    assert "mine" not in done.stdout


def test_a_record_leads_nowhere_but_to_its_own_release(workspace: Workspace, tmp_path: Path) -> None:
    made(workspace, "pkl:one", b"of a model")
    other = workspace.path("made/pkl_one_artifact")
    output = Output("x", "made/pkl_one_artifact", other.stat().st_size, digest(b"of a model"))
    for name, step in (("v21_release", "release:v21"), ("v20_manifest", "manifest:v99")):
        workspace.records.write(name, Record(step, key_of({}), {}, (output,), "built", "", 0.0))
    gc(tmp_path)
    assert other.read_bytes() == b"of a model"
    assert workspace.records.path_of("v20_manifest").exists()


def test_declared_releases_are_never_touched_and_a_withdrawn_one_can_come_back(tmp_path: Path) -> None:
    table = model("pop", generated("vision-conv+attention"), 'since = "v22"')
    v23 = '[release.v23]\nfrom = "v22"\nsuffix = "3"\n'
    project = Project(tmp_path / "yard", f'{table}[release.v22]\ncontract = "warp"\n{v23}')
    project.doit()
    before = project.files()
    assert "release v" not in project.doit("gc", "--keep", "0m").stdout
    assert project.files() == before
    project.edit(v23, "")
    assert "release v23, which models.toml has no more: 5 files" in project.doit("gc").stdout
    after = project.files()
    assert after == {name: one for name, one in before.items() if "v23" not in name}
    assert not project.path("ready-for-resources/v23").exists()
    assert project.made() == []
    (project.folder / "models.toml").open("a").write(v23)
    assert project.made() == ["manifest:v23", "release:v23"]
    again = project.files()
    assert {name: one for name, one in again.items() if not name.startswith("results/")} == {
        name: one for name, one in before.items() if not name.startswith("results/")
    }
    assert project.record("v23_release")["made"] == "built"  # which takes no longer


# ---- the rule, over random stores

BLOBS = [b"blob %d" % number for number in range(8)]
SOME = st.lists(st.sampled_from(range(len(BLOBS))), max_size=4)
RESULTS = st.lists(st.tuples(SOME, st.sampled_from(["a", "b", ""]), st.floats(0, 60)), max_size=6)
KEEPS = st.builds(Keep, st.sampled_from([0.0, DAY, 30.0 * DAY]), st.integers(0, 3))


@settings(deadline=None)
@given(RESULTS, st.lists(st.tuples(SOME, st.booleans()), max_size=4), SOME, KEEPS)
def test_nothing_that_is_referred_to_ever_goes(stored, recorded, released, keep) -> None:
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder))
        for content in BLOBS:
            blob = workspace.store.path_of(digest(content))
            blob.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
        keys = [_store(workspace, number, *one) for number, one in enumerate(stored)]
        protected = _record(workspace, recorded, keys) | _release(workspace, released)
        collect(workspace, keep)
        staying = results(workspace)
        of = {key: {digest(BLOBS[n]) for n in one[0]} for key, one in zip(keys, stored, strict=True)}
        assert {key for key, (_, by_key) in zip(keys, recorded, strict=False) if by_key} <= staying
        assert held(workspace) == protected.union(*(of[key] for key in staying))
        assert {key for key, one in zip(keys, stored, strict=True) if one[2] * DAY < keep.age - 60} <= staying
        for step in {one[1] for one in stored}:
            ages = sorted((one[2], key) for key, one in zip(keys, stored, strict=True) if one[1] == step)
            assert len({key for _, key in ages} & staying) >= min(len(ages), keep.generations)


def _store(workspace: Workspace, number: int, blobs: list[int], step: str, days: float) -> str:
    key = digest(b"key %d" % number)
    outputs = [{"name": str(n), "sha256": digest(BLOBS[n])} for n in blobs]
    workspace.store.note_result(key, {"outputs": outputs, "facts": {}, **({"step": step} if step else {})})
    when = time.time() - days * DAY
    os.utime(workspace.store.root / "ac" / f"{key}.json", (when, when))
    return key


def _record(workspace: Workspace, recorded: list[tuple[list[int], bool]], keys: list[str]) -> set[str]:
    """Records, some of them of a stored result's key; the digests they refer to."""
    for number, (blobs, by_key) in enumerate(recorded):
        key = keys[number] if by_key and number < len(keys) else digest(b"another key %d" % number)
        outputs = tuple(Output(str(n), f"made/{n}", len(BLOBS[n]), digest(BLOBS[n])) for n in blobs)
        workspace.records.write(f"r{number}", Record("a", key, {}, outputs, "built", "", 0.0))
    return {digest(BLOBS[n]) for blobs, _ in recorded for n in blobs}


def _release(workspace: Workspace, released: list[int]) -> set[str]:
    for n in released:
        path = workspace.path(f"ready-for-resources/v1/{n}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(BLOBS[n])
    return {digest(BLOBS[n]) for n in released}
