"""The whole graph through doit: what a change touches, what is restored, and what a release holds."""

import json
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
from contract import Project, copied_rules, generated, model
from files_server import serving

from rules.clients import starpilot
from rules.errors import ArtifactError
from rules.releasing import parts
from rules.sources.generated import generate

RELEASED = {"pop": "pop3", "elm": "elmv23", "elm3": "elm33", "oak": "oak3", "ash": "ashgrove"}
V22 = [one for one in RELEASED if one != "ash"]


def times(project: Project) -> dict[str, int]:
    """Modification times of every file but the lock, digests and seal: what a run wrote."""
    own = ("lock", "digests.log", "seal.json", "seal")
    paths = (path for path in sorted(project.workspace.rglob("*")) if path.is_file() and path.name not in own)
    return {path.relative_to(project.workspace).as_posix(): path.stat().st_mtime_ns for path in paths}


def log(project: Project, model_id: str) -> bytes:
    """A model's log: what it says was really compiled or verified."""
    return project.path(f"logs/{model_id}.log").read_bytes()


def recovered(project: Project) -> list[str]:
    """Build everything without compiling anything; the tasks carried out."""
    logs = project.files("logs")
    made = project.made()
    assert project.files("logs") == logs
    return made


# ---- idle


def test_a_second_run_writes_nothing(yard: Project) -> None:
    yard.doit()
    before = times(yard)
    assert yard.made() == []
    assert times(yard) == before


def test_a_copied_workspace_is_up_to_date(yard: Project) -> None:
    """Nothing in a record or a key says where the workspace lies or when its files were written."""
    assert recovered(yard) == []


def test_no_database_to_lose(yard: Project) -> None:
    for path in yard.folder.glob(".doit.db*"):
        path.unlink()
    assert recovered(yard) == []


def test_clean_then_doit_restores_without_compiling(yard: Project) -> None:
    before = yard.files()
    yard.doit("clean", "-a")
    assert not [name for name in yard.files() if not name.startswith(("results/", "logs/"))]
    recovered(yard)
    after = yard.files()
    assert {n: c for n, c in after.items() if not n.startswith("results/")} == {
        n: c for n, c in before.items() if not n.startswith("results/")
    }


def test_a_lost_store_costs_nothing_while_targets_stand(yard: Project) -> None:
    shutil.rmtree(yard.path(".store/cas"))
    shutil.rmtree(yard.path(".store/ac"))
    assert recovered(yard) == []


def test_lost_records_are_found_again(yard: Project) -> None:
    shutil.rmtree(yard.path("results"))
    recovered(yard)
    assert recovered(yard) == []


# ---- what a change touches


def test_a_display_name_touches_manifests_and_releases_only(yard: Project) -> None:
    yard.edit('name = "Pop"', 'name = "Poplar 🌳"')
    assert recovered(yard) == ["manifest:v22", "manifest:v23", "release:v22", "release:v23"]
    manifest = yard.path("ready-for-resources/v23/model_names_v23.json").read_text()
    assert "Poplar 🌳" in manifest
    yard.edit('name = "Poplar 🌳"', 'name = "Pop"')
    recovered(yard)
    assert "Poplar" not in yard.path("ready-for-resources/v22/Versions/model_names_v22.json").read_text()


def test_a_flag_of_one_model_rebuilds_that_model_only_and_going_back_restores(yard: Project) -> None:
    (yard.folder / "models.toml").open("a").write('[flags.exact]\nextends = "cpu"\nFLOAT16 = 0\n')
    assert recovered(yard) == []
    first = yard.path("compiled/mlp_tinygrad.pkl").read_bytes()
    yard.edit('type = "generic"', 'type = "generic"\nflags = "exact"')
    assert yard.made() == ["candidate:mlp", "pkl:mlp"]
    content = yard.record("mlp_artifact")["content"]
    assert content["settings"]["flags"]["FLOAT16"] == "0"
    yard.edit('type = "generic"\nflags = "exact"', 'type = "generic"')
    assert recovered(yard) == ["candidate:mlp", "pkl:mlp"]
    assert yard.path("compiled/mlp_tinygrad.pkl").read_bytes() == first
    assert yard.record("mlp_artifact")["made"] == "restored"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('tinygrad = "0.14.0"', 'path = "fork"'),
        ("NUM_CPU_THREADS = 1", "NUM_CPU_THREADS = 2"),
        ("PARALLEL = 0", "PARALLEL = 1"),
        ('version = "v11"\nseries = "Trees"\nreleased = "2026-03-02"\nsince = "v23"', "v12"),
    ],
    ids=["toolchain", "threads", "parallel", "behaviour"],
)
def test_what_enters_the_key_of_a_compile(yard: Project, old: str, new: str) -> None:
    """Asked of doit itself, which must not call these fresh."""
    if new == "v12":
        new = old.replace("v11", "v12")
    if "path" in new:
        import tinygrad

        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(tinygrad.__file__).parent, yard.folder / "fork" / "tinygrad", ignore=ignored)
        with (yard.folder / "fork/tinygrad/tensor.py").open("a") as file:
            file.write("# another commit\n")
    yard.edit(old, new)
    status = yard.doit("list", "--all", "-s").stdout
    (line,) = (line for line in status.splitlines() if re.search(r"\bcandidate:ash\b(?!-)", line))
    assert line.startswith("R"), line


def test_keys_hold_no_place_no_time_no_host(everything: Project) -> None:
    for path in sorted(everything.path("results").glob("*.json")):
        content = json.dumps(json.loads(path.read_text())["content"])
        for told in (str(everything.folder), os.uname().nodename, "/usr", "/tmp", "2026-11", "Pop"):
            assert told not in content or path.name.endswith("manifest.json"), (path.name, told)


def test_a_comment_in_the_worker_stops_at_equal_bytes(tmp_path: Path) -> None:
    environment = copied_rules(tmp_path / "copy")
    catalog = model("pop", generated("vision-conv+attention"), 'since = "v22"')
    project = Project(tmp_path / "yard", catalog + '[release.v22]\ncontract = "warp"\n')
    project.doit(env=environment)
    before = project.files()
    with (tmp_path / "copy/rules/worker/queues.py").open("a") as file:
        file.write("\n# A thought.\n")
    assert project.made(env=environment) == ["candidate:pop", "pkl:pop"]
    assert project.record("pop_artifact")["made"] == "built"
    after = project.files()
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"results/pop_artifact.json", "results/pop_validation.json", "logs/pop.log"}
    assert project.made(env=environment) == []


def test_a_module_added_to_the_worker_is_another_worker(yard: Project, tmp_path: Path) -> None:
    """Also behind the seal of an idle run."""
    environment = copied_rules(tmp_path / "copy")
    yard.doit(env=environment)
    (tmp_path / "copy/rules/worker/extra.py").write_text('"""More."""\n')
    status = yard.doit("list", "--all", "-s", env=environment).stdout
    assert re.search(r"^R.*\bcandidate:mlp\b", status, re.M)
    shutil.rmtree(tmp_path / "copy/rules/worker/__pycache__", ignore_errors=True)
    (tmp_path / "copy/rules/worker/extra.py").unlink()
    assert recovered(yard) == []


def test_an_idle_run_sees_every_kind_of_change(yard: Project) -> None:
    """The seal of an idle run must break for each of these."""
    yard.doit()
    release = yard.path("ready-for-resources/v23")
    changes: dict[str, Callable[[], object]] = {
        "artifact": lambda: yard.path("compiled/pop_driving_tinygrad.pkl").unlink(),
        "released": lambda: (release / "pop3_driving_tinygrad.pkl").unlink(),
        "record": lambda: yard.path("results/pop_parts.json").unlink(),
        "litter": lambda: (release / "._pop3_driving_tinygrad.pkl").write_text("x"),
        "onnx": lambda: yard.path("onnx/pop/pop_driving_vision.onnx").unlink(),
        "monitoring": lambda: yard.path("driver-monitoring/dm_warp_1344x760_tinygrad.pkl").unlink(),
        "id map": lambda: yard.path("source-maps/model_id_namespace_v23.json").unlink(),
    }
    for name, change in changes.items():
        assert yard.made() == []
        change()
        assert recovered(yard) != [], name


def test_a_seal_of_another_modelyard_is_none_of_ours(yard: Project, tmp_path: Path) -> None:
    """Two checkouts, or two environments, share a workspace: what one sealed the other may hold for stale."""
    environment = copied_rules(tmp_path / "copy")
    module = tmp_path / "copy/rules/releasing/parts.py"
    module.write_text(re.sub(r"^LIMIT = \S+", "LIMIT = 90_000_000", module.read_text(), flags=re.M))
    assert "parts:pop" in yard.made(env=environment)
    assert "parts:pop" in yard.made()


# ---- sources


def file_model(model_id: str, path: str) -> str:
    """A generic model from a file."""
    return model(
        model_id, f'source = {{ kind = "file", path = "{path}", format = "generic" }}', 'type = "generic"'
    )


def test_a_missing_source_stops_its_own_model_only(tmp_path: Path) -> None:
    project = Project(tmp_path / "yard", file_model("lost", "lost.onnx") + file_model("here", "here.onnx"))
    (project.folder / "here.onnx").write_bytes(generate("generic-mlp", seed=1, width=4)["model"])
    done = project.doit("--continue", fails=True)
    assert "lost.onnx" in done.stdout + done.stderr
    assert project.path("compiled/here_tinygrad.pkl").exists()


def test_a_changed_source_file_rebuilds_its_model(tmp_path: Path) -> None:
    project = Project(tmp_path / "yard", file_model("here", "here.onnx"))
    source = project.folder / "here.onnx"
    source.write_bytes(generate("generic-mlp", seed=1, width=4)["model"])
    assert project.made() == ["candidate:here", "onnx:here", "pkl:here"]
    before, stat = project.files("compiled"), source.stat()
    source.write_bytes(generate("generic-mlp", seed=2, width=4)["model"])
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as `cp -p` and `rsync -a` do
    assert project.made() == ["candidate:here", "onnx:here", "pkl:here"]
    assert project.files("compiled") != before


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"]
)
def test_a_source_that_is_no_model_keeps_the_last_good_artifact(tmp_path: Path, content: bytes) -> None:
    project = Project(tmp_path / "yard", file_model("here", "here.onnx"))
    source = project.folder / "here.onnx"
    source.write_bytes(generate("generic-mlp", seed=1, width=4)["model"])
    project.doit()
    before = {**project.files("compiled"), **project.files("onnx")}
    source.write_bytes(content)
    project.doit(fails=True)
    assert {**project.files("compiled"), **project.files("onnx")} == before
    assert project.record("here_failure")["step"] == "onnx:here"


def test_a_failure_whose_cause_was_undone_leaves_no_record(tmp_path: Path) -> None:
    """Nothing is stale then, so nothing is built that could take the record away."""
    project = Project(tmp_path / "yard", file_model("here", "here.onnx"))
    source = project.folder / "here.onnx"
    good = generate("generic-mlp", seed=1, width=4)["model"]
    source.write_bytes(good)
    project.doit()
    source.write_bytes(b"")
    project.doit(fails=True)
    source.write_bytes(good)
    project.doit()
    assert "here_failure.json" not in project.files("results")


# ---- releases


def names(project: Project, release: str) -> set[str]:
    return set(project.files(f"ready-for-resources/{release}"))


def test_releases_side_by_side(everything: Project) -> None:
    own = {"multipart.json"}
    v22 = {f"{one}_driving_tinygrad.pkl" for one in V22} | own | {"Versions/model_names_v22.json"}
    v23 = {f"{one}_driving_tinygrad.pkl" for one in RELEASED.values()} | own | {"model_names_v23.json"}
    assert names(everything, "v22") == v22
    assert names(everything, "v23") == v23
    for old, new in RELEASED.items():
        whole = everything.path(f"compiled/{old}_driving_tinygrad.pkl").read_bytes()
        assert everything.path(f"ready-for-resources/v23/{new}_driving_tinygrad.pkl").read_bytes() == whole
    assert json.loads(everything.path("ready-for-resources/v23/multipart.json").read_text()) == []
    id_map = json.loads(everything.path("source-maps/model_id_namespace_v23.json").read_text())
    assert id_map["ids"] == RELEASED


def test_manifests_name_what_is_released_in_catalog_order(everything: Project) -> None:
    for release, ids in (("v22", V22), ("v23", list(RELEASED.values()))):
        manifest = everything.path(f"manifests/model_names_{release}.json").read_bytes()
        assert [entry["id"] for entry in starpilot.check_manifest(manifest)] == ids
        place = "Versions/model_names_v22.json" if release == "v22" else "model_names_v23.json"
        assert everything.path(f"ready-for-resources/{release}/{place}").read_bytes() == manifest


def test_released_files_are_links_or_share_their_blocks(everything: Project) -> None:
    whole = everything.path("compiled/pop_driving_tinygrad.pkl").stat()
    released = everything.path("ready-for-resources/v23/pop3_driving_tinygrad.pkl").stat()
    if whole.st_ino != released.st_ino:
        pytest.skip("this file system gives reflinks, whose blocks a stat does not show")
    assert whole.st_nlink >= 4  # store, candidate, compiled, v22, v23


def test_a_model_that_left_a_release_takes_its_files_along(yard: Project) -> None:
    before, _, after = yard.catalog.partition("[models.oak]")
    yard.catalog = before + after[after.index("[models.ash]") :]
    assert recovered(yard) == ["manifest:v22", "manifest:v23", "release:v22", "release:v23"]
    assert not [name for release in ("v22", "v23") for name in names(yard, release) if name.startswith("oak")]
    assert len(names(yard, "v23")) == 6


def test_strangers_are_refused_and_litter_removed(yard: Project) -> None:
    folder = yard.path("ready-for-resources/v23")
    (folder / "._elm33_driving_tinygrad.pkl").write_bytes(b"\x00\x05\x16\x07")
    assert recovered(yard) == ["release:v23"]
    assert not list(folder.glob("._*"))
    (folder / "pop_driving_tinygrad.pkl.chunkmanifest").write_text("3\n")
    done = yard.doit(fails=True)
    assert "pop_driving_tinygrad.pkl.chunkmanifest" in done.stdout
    assert "does not belong there" in done.stdout
    assert (folder / "pop_driving_tinygrad.pkl.chunkmanifest").read_text() == "3\n"


def test_large_artifacts_enter_a_release_in_parts(yard: Project, tmp_path: Path) -> None:
    """With the limit of a repository lowered, so that these small artifacts are over it."""
    limit, size = 1_000_000, 700_000
    environment = copied_rules(tmp_path / "copy")
    module = tmp_path / "copy/rules/releasing/parts.py"
    text = re.sub(r"^LIMIT = \S+", f"LIMIT = {limit}", module.read_text(), flags=re.M)
    module.write_text(re.sub(r"^PART_SIZE = [^#\n]+", f"PART_SIZE = {size}  ", text, flags=re.M))
    yard.doit(env=environment)
    multipart = json.loads(yard.path("ready-for-resources/v23/multipart.json").read_text())
    split = {entry["id"]: entry for entry in multipart}
    for old, new in RELEASED.items():
        whole = yard.path(f"compiled/{old}_driving_tinygrad.pkl")
        file = f"{new}_driving_tinygrad.pkl"
        released = {name for name in names(yard, "v23") if name.startswith(f"{new}_")}
        assert starpilot.download(yard.path("ready-for-resources/v23"), new) == parts.digest([whole])[0]
        if whole.stat().st_size <= limit:
            assert released == {file}
            continue
        count = -(-whole.stat().st_size // size)
        pieces = [f"{file}.p{index:02}" for index in range(count)]
        assert released == {*pieces, f"{file}.sha256"}
        assert split[new]["parts"] == pieces
        assert parts.read_checksum(yard.path(f"ready-for-resources/v23/{file}.sha256"))[1] == file
    assert 0 < len(split) <= len(RELEASED)
    assert yard.made(env=environment) == []
    yard.doit()  # the limit is raised again: whole files come back, parts go
    assert not [name for name in yard.files() if re.search(r"\.p\d\d$|\.sha256$", name)]


def test_a_release_may_have_every_artifact_in_parts_that_its_client_verifies(yard: Project) -> None:
    yard.edit('suffix = "3"', 'suffix = "3"\nparts = "always"')
    published = [f"{kind}:{release}" for kind in ("manifest", "release") for release in ("v22", "v23")]
    assert recovered(yard) == sorted([*(f"parts:{one}" for one in RELEASED), *published])
    folder, whole = yard.path("ready-for-resources/v23"), yard.path("compiled/ash_driving_tinygrad.pkl")
    file = "ashgrove_driving_tinygrad.pkl"
    assert {one for one in names(yard, "v23") if one.startswith("ash")} == {f"{file}.p00", f"{file}.sha256"}
    assert f"ash{file[8:]}" not in names(yard, "v22") and not [n for n in names(yard, "v22") if "p00" in n]
    sha256, size = parts.digest([whole])
    assert starpilot.download(folder, "ashgrove") == sha256
    (listed,) = (
        one for one in json.loads((folder / "multipart.json").read_text()) if one["id"] == "ashgrove"
    )
    assert (listed["size"], listed["sha256"], listed["parts"]) == (size, sha256, [f"{file}.p00"])
    assert yard.made() == []
    flipped = bytearray((folder / f"{file}.p00").read_bytes())
    flipped[1000] ^= 1
    (folder / f"{file}.p00").unlink()
    (folder / f"{file}.p00").write_bytes(flipped)
    with pytest.raises(ArtifactError, match=f"wrong sha256 over {file}.p00: expected {sha256}"):
        starpilot.download(folder, "ashgrove")
    assert recovered(yard) == ["release:v23"]
    yard.edit('parts = "always"', 'parts = "large"')
    recovered(yard)
    assert not [name for name in yard.files() if re.search(r"\.p\d\d$|\.sha256$", name)]


def fetching(url: str) -> starpilot.Served:
    """A resource repository's raw root, asked over HTTP."""

    def opened(path: str) -> BinaryIO | None:
        try:
            return urllib.request.urlopen(f"{url}/{path}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    return starpilot.Served(url, opened)


@pytest.mark.parametrize("release", ["v22", "v23"])
def test_each_generation_finds_its_manifest_and_every_artifact(everything: Project, release: str) -> None:
    """What lies flat goes into Models, and a folder where its name says."""
    released = everything.files(f"ready-for-resources/{release}")
    ids = RELEASED if release == "v23" else dict(zip(V22, V22, strict=True))
    wholes = {new: everything.path(f"compiled/{old}_driving_tinygrad.pkl") for old, new in ids.items()}
    with serving() as server:
        server.files = {f"/{n}" if "/" in n else f"/Models/{n}": one for n, one in released.items()}
        got = starpilot.installed(fetching(server.url), release)
        assert got == {new: parts.digest([whole])[0] for new, whole in wholes.items()}
        asked = [path for _, path, _ in server.requests if "model_names" in path]
        assert asked == [f"/{'Versions' if release == 'v22' else 'Models'}/model_names_{release}.json"]


def test_ids_that_no_earlier_selection_leads_to_are_told(yard: Project) -> None:
    """`elm` would be `elm3`, which is another's; `ash` is new, so that nobody has selected it."""
    yard.path("ready-for-resources/v23/multipart.json").unlink()
    (line,) = (one for one in yard.doit("release:v23").stdout.splitlines() if one.startswith("!"))
    assert line.startswith("!  release:v23  no earlier selection leads to elmv23: ")
    assert len(yard.record("v23_release")["facts"]["notes"]) == 1
    assert yard.record("v22_release")["facts"]["notes"] == []


def test_a_flat_folder_is_no_release_to_a_v22_client(everything: Project) -> None:
    released = everything.files("ready-for-resources/v22")
    with serving() as server:
        server.files = {f"/Models/{name.rpartition('/')[2]}": one for name, one in released.items()}
        with pytest.raises(ArtifactError, match="no compatible manifest: a v22 client asks for Versions/"):
            starpilot.installed(fetching(server.url), "v22")
        server.files["/model_names_v22.json"] = released["Versions/model_names_v22.json"]
        assert list(starpilot.installed(fetching(server.url), "v22")) == V22


# ---- doit's own commands


def test_list_and_info_know_the_nouns(everything: Project) -> None:
    listed = everything.doit("list", "--all").stdout
    for task in ("onnx:pop", "pkl:pop", "parts:pop", "monitoring", "manifest:v22", "release:v23"):
        assert re.search(rf"^{task}\b", listed, re.M), task
    assert "release:v23" in everything.doit("info", "release:v23").stdout


def test_a_catalog_error_is_a_sentence_before_any_work(tmp_path: Path) -> None:
    project = Project(tmp_path / "yard", model("pop", generated("vision-conv+attention"), 'flags = "cpuu"'))
    done = project.doit(fails=True)
    told = done.stdout + done.stderr
    assert re.search(r"models\.toml:\d+: models\.pop\.flags", told)
    assert "cpu" in told
    assert not project.path("onnx").exists()
