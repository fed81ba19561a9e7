"""Reconciling a handed-over release folder: names move once, conflicts are refused, kills are survived."""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from child import doit as doit_plain
from contract import PATH, ROOT, Project, generated, model
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.clients import starpilot
from rules.errors import ArtifactError
from rules.keeping.lock import holding
from rules.releasing import reconcile as reconciling
from rules.releasing.reconcile import Known, Naming

RDF23 = starpilot.manifest_entry(
    "rdf23", name="Regret 👀📡", version="v15", series="OP Series", released="2026-08-10"
)
NAMES = Naming(
    "v23",
    {"pop2": "pop23", "deeprl3": "deeprl33", "deeprl33": "deeprl333", "rdf2": "rdf23"},
    {"rdf23": "rdfv23"},
    {"rdf23": RDF23},
)
A, B, C = b"alpha", b"beta" * 100, b"gamma"


def reconcile(folder: Path, naming: Naming, known: Known | None = None, *, dry: bool = False) -> list[str]:
    """By a workspace that stands beside the folder."""
    return reconciling.reconcile(folder, naming, known, kept=kept(folder), dry=dry)


def kept(folder: Path) -> Path:
    return folder.parent / "workspace/.store/reconcile"


def pkl(model_id: str) -> str:
    return f"{model_id}_driving_tinygrad.pkl"


def put(folder: Path, model_id: str, content: bytes, *, parts: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    name = pkl(model_id)
    if not parts:
        (folder / name).write_bytes(content)
        return
    step = -(-len(content) // parts)
    for index in range(parts):
        (folder / f"{name}.p{index:02}").write_bytes(content[index * step : (index + 1) * step])
    (folder / f"{name}.sha256").write_text(f"{hashlib.sha256(content).hexdigest()}  {name}\n")


def entry(model_id: str, name: str = "A name") -> dict[str, object]:
    return starpilot.manifest_entry(model_id, name=name, version="v11", series="S", released="2026-01-01")


def manifest(folder: Path) -> list[str]:
    return [one["id"] for one in json.loads((folder / "model_names_v23.json").read_text())["models"]]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "ready-for-resources"
    folder.mkdir()
    return folder


def test_a_chain_of_names_does_not_cascade(folder):
    put(folder, "deeprl3", A)
    put(folder, "deeprl33", B, parts=2)
    reconcile(folder, NAMES)
    assert starpilot.download(folder, "deeprl33") == hashlib.sha256(A).hexdigest()
    assert starpilot.download(folder, "deeprl333") == hashlib.sha256(B).hexdigest()
    assert (folder / f"{pkl('deeprl333')}.sha256").read_text().endswith(f"  {pkl('deeprl333')}\n")
    assert not list(folder.glob("deeprl3_*"))
    before = content(folder)
    reconcile(folder, NAMES)
    assert content(folder) == before


def test_files_of_macos_go(folder):
    put(folder, "pop23", A)
    for name in (f"._{pkl('pop23')}", f"._{pkl('pop2')}", ".DS_Store"):
        (folder / name).write_bytes(b"junk")
    reconcile(folder, NAMES)
    assert list(content(folder)) == [pkl("pop23")]


@pytest.mark.parametrize("parts", [0, 3])
def test_an_equal_duplicate_is_dropped(folder, parts):
    put(folder, "pop2", B, parts=parts)
    put(folder, "pop23", B, parts=parts)
    before = {name: one for name, one in content(folder).items() if name.startswith("pop23_")}
    reconcile(folder, NAMES)
    assert content(folder) == before


def test_the_release_copy_of_the_head_of_a_chain_is_not_taken_for_a_source(folder):
    put(folder, "deeprl3", A)
    put(folder, "deeprl33", A)
    reconcile(folder, NAMES)
    assert content(folder) == {pkl("deeprl33"): A}


@pytest.mark.parametrize("parts", [0, 2])
def test_a_conflict_is_refused_and_nothing_at_all_is_changed(folder, parts):
    put(folder, "deeprl3", A)
    put(folder, "pop2", A)
    put(folder, "pop23", B, parts=parts)
    (folder / "._x").write_bytes(b"junk")
    before = content(folder)
    with pytest.raises(
        ArtifactError, match=r"pop23_driving_tinygrad.pkl: expected nothing or the same bytes"
    ):
        reconcile(folder, NAMES)
    assert content(folder) == before


def test_a_dry_run_tells_and_changes_nothing(folder):
    put(folder, "pop2", A)
    before = content(folder)
    assert reconcile(folder, NAMES, dry=True) == ["pop2 → pop23"]
    assert content(folder) == before


def test_parts_list_and_manifest_follow_the_files(folder):
    put(folder, "deeprl3", A)
    put(folder, "deeprl33", B, parts=2)
    put(folder, "pop2", A)
    whole = {
        "id": "deeprl33",
        "filename": pkl("deeprl33"),
        "size": len(B),
        "sha256": hashlib.sha256(B).hexdigest(),
    }
    listed = [{**whole, "parts": [f"{pkl('deeprl33')}.p00", f"{pkl('deeprl33')}.p01"]}]
    (folder / "multipart.json").write_bytes(starpilot.multipart(listed))
    entries = [entry("deeprl3"), entry("rdfv23"), entry("deeprl33", "Another"), entry("elm3"), entry("pop2")]
    (folder / "model_names_v23.json").write_bytes(starpilot.manifest(entries))
    reconcile(folder, NAMES)
    assert manifest(folder) == ["deeprl33", "rdfv23", "deeprl333", "elm3", "pop23"]
    (one,) = json.loads((folder / "multipart.json").read_text())
    assert (one["id"], one["filename"]) == ("deeprl333", pkl("deeprl333"))
    assert one["parts"] == [f"{pkl('deeprl333')}.p00", f"{pkl('deeprl333')}.p01"]
    starpilot.check_manifest((folder / "model_names_v23.json").read_bytes())


def test_an_equal_entry_is_dropped_and_another_of_the_same_id_refused(folder):
    put(folder, "pop2", A)
    path = folder / "model_names_v23.json"
    path.write_bytes(starpilot.manifest([entry("pop2"), entry("pop23")]))
    reconcile(folder, NAMES)
    assert manifest(folder) == ["pop23"]
    put(folder, "elm", A)
    path.write_bytes(starpilot.manifest([entry("elm", "One"), entry("elm3", "Two")]))
    before = content(folder)
    with pytest.raises(ArtifactError, match="'elm3' stands 2 times"):
        reconcile(folder, Naming("v23", {"elm": "elm3"}))
    assert content(folder) == before


def test_a_placed_model_gets_an_entry_where_its_artifact_is_and_one_lacks(folder):
    path = folder / "model_names_v23.json"
    for own in ("rdf2", "rdf23"):
        put(folder, own, A)
        path.write_bytes(starpilot.manifest([entry("a"), entry("rdfv23"), entry("b")]))
        assert "rdf23: gets an entry in the manifest" in reconcile(folder, NAMES)
        assert json.loads(path.read_text())["models"][2] == RDF23
        assert manifest(folder) == ["a", "rdfv23", "rdf23", "b"]
        assert reconcile(folder, NAMES) == []
    path.write_bytes(starpilot.manifest([entry("a"), entry("b")]))
    reconcile(folder, NAMES)
    assert manifest(folder) == ["a", "b", "rdf23"]
    path.write_bytes(starpilot.manifest([entry("rdf23", "As told"), entry("rdfv23")]))
    reconcile(folder, NAMES)
    assert manifest(folder) == ["rdf23", "rdfv23"]  # what is listed stays where it is
    (folder / pkl("rdf23")).unlink()
    path.write_bytes(starpilot.manifest([entry("a"), entry("rdfv23")]))
    assert reconcile(folder, NAMES) == []
    assert manifest(folder) == ["a", "rdfv23"]


# ---- a name that is a source's and a release's


@pytest.mark.parametrize("parts", [0, 2])
def test_a_name_that_may_be_either_is_asked_for_and_the_answer_remembered(folder, parts):
    put(folder, "deeprl33", B, parts=parts)
    put(folder, "pop2", A)
    before = content(folder)
    with pytest.raises(ArtifactError, match="deeprl33 is a source, to be deeprl333, and the release's name"):
        reconcile(folder, NAMES)
    assert content(folder) == before
    assert reconcile(folder, NAMES, Known(published=["deeprl33"])) == ["pop2 → pop23"]
    assert reconcile(folder, NAMES) == []
    assert starpilot.download(folder, "deeprl33") == hashlib.sha256(B).hexdigest()


def test_a_source_that_is_called_one_moves(folder):
    put(folder, "deeprl33", B, parts=2)
    assert reconcile(folder, NAMES, Known(sources=["deeprl33"])) == ["deeprl33 → deeprl333"]
    assert {name.partition("_")[0] for name in content(folder)} == {"deeprl333"}


def test_a_chain_that_another_tool_did_is_done(folder):
    put(folder, "deeprl33", A)
    put(folder, "deeprl333", B)
    assert reconcile(folder, NAMES) == []


def test_a_duplicate_in_a_chain_is_no_release_of_another_model(folder):
    put(folder, "deeprl33", B)
    put(folder, "deeprl333", B)
    assert reconcile(folder, NAMES) == ["deeprl33: dropped, deeprl333 is the same"]
    assert content(folder) == {pkl("deeprl333"): B}


# ---- damage


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("multipart.json", "{"),
        ("multipart.json", "5"),
        ("multipart.json", "[5]"),
        ("multipart.json", '[{"id": "pop2", "parts": 5}]'),
        ("multipart.json", '[{"id": "pop2", "filename": "pop2", "parts": 5}]'),
        ("multipart.json", "[" * 100_000),
        ("model_names_v23.json", "[]"),
        ("model_names_v23.json", '{"models": [{"id": ["pop2"]}]}'),
        ("model_names_v23.json", '{"models": [{"id": "pop2"}]}'),
        (f"{pkl('pop2')}.sha256", ""),
        (f"{pkl('pop2')}.sha256", "soon  pop2"),
    ],
)
def test_a_damaged_list_is_refused_by_its_name_and_nothing_is_changed(folder, name, text):
    put(folder, "pop2", A)
    (folder / name).write_text(text)
    (folder / "._x").write_bytes(b"junk")
    before = content(folder)
    with pytest.raises(ArtifactError, match=re.escape(str(folder / name))):
        reconcile(folder, NAMES)
    assert content(folder) == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", range(24))
def test_a_run_killed_between_two_files_is_finished_by_the_next(tmp_path, monkeypatch, after):
    def filled(folder: Path) -> Path:
        put(folder, "deeprl3", A, parts=2)
        put(folder, "deeprl33", B, parts=3)
        put(folder, "pop2", C)
        (folder / "._junk").write_bytes(b"junk")
        (folder / "model_names_v23.json").write_bytes(starpilot.manifest([entry("pop2"), entry("deeprl3")]))
        return folder

    whole, killed = filled(tmp_path / "whole"), filled(tmp_path / "killed")
    reconcile(whole, NAMES)
    left = [after]

    def dying(function):
        def call(*arguments, **options):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("link", "rename", "replace", "unlink"):
            patch.setattr(os, name, dying(getattr(os, name)))
        try:
            reconcile(killed, NAMES)
        except Killed:
            pass
        else:
            assert after > 15
    reconcile(killed, NAMES)
    assert content(killed) == content(whole)


@pytest.mark.parametrize("after", range(0, 20, 2))
def test_a_manifest_elsewhere_and_the_artifacts_are_never_renamed_apart(tmp_path, monkeypatch, after):
    root, lists = tmp_path / "in", [tmp_path / "manifests"]
    lists[0].mkdir()
    for one, its_bytes in (("deeprl3", A), ("deeprl33", B), ("pop2", C)):
        put(root, one, its_bytes)
    listed = [entry(one, f"The {one}") for one in ("deeprl3", "deeprl33", "pop2")]
    (lists[0] / "model_names_v23.json").write_bytes(starpilot.manifest(listed))
    left = [after]

    def dying(function):
        def call(*arguments, **options):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in ("link", "rename", "replace", "unlink"):
            patch.setattr(os, name, dying(getattr(os, name)))
        with contextlib.suppress(Killed):
            reconciling.reconcile(root, NAMES, kept=kept(root), lists=lists)
    reconciling.reconcile(root, NAMES, kept=kept(root), lists=lists)
    models = json.loads((lists[0] / "model_names_v23.json").read_text())["models"]
    assert [(one["id"], one["name"]) for one in models] == [
        ("deeprl33", "The deeprl3"),
        ("deeprl333", "The deeprl33"),
        ("pop23", "The pop2"),
    ]
    assert content(root) == {pkl("deeprl33"): A, pkl("deeprl333"): B, pkl("pop23"): C}


@pytest.fixture
def half_done(folder, monkeypatch) -> Path:
    """A folder whose reconciling was killed after its first file."""
    put(folder, "deeprl3", A)
    put(folder, "deeprl33", B)
    put(folder, "pop2", C)
    moves = iter([os.link])

    def link(*names: str, **options: object) -> None:
        for move in moves:
            return move(*names, **options)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        with pytest.raises(Killed):
            reconcile(folder, NAMES)
    return folder


def test_what_a_killed_run_planned_is_told(half_done):
    before, planned = content(half_done), ["deeprl3 → deeprl33", "deeprl33 → deeprl333", "pop2 → pop23"]
    assert reconcile(half_done, NAMES, dry=True) == planned
    assert content(half_done) == before
    assert reconcile(half_done, NAMES) == planned
    assert content(half_done) == {pkl("deeprl33"): A, pkl("deeprl333"): B, pkl("pop23"): C}


def test_what_came_after_a_kill_is_not_overwritten(half_done):
    put(half_done, "pop23", b"another")
    with pytest.raises(ArtifactError, match="expected nothing or the same bytes"):
        reconcile(half_done, NAMES)
    assert {A, B, C, b"another"} == set(content(half_done).values())


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.sampled_from(["deeprl3", "deeprl33", "deeprl333", "pop2", "pop23"]), st.sampled_from([A, B, C])
    ),
    st.integers(0, 2),
)
def test_no_bytes_are_ever_lost_and_a_second_run_changes_nothing(tmp_path_factory, artifacts, parts):
    folder = tmp_path_factory.mktemp("any") / "flat"
    folder.mkdir()
    for model_id, one in artifacts.items():
        put(folder, model_id, one, parts=parts)
    before = content(folder)

    def held() -> set[str]:
        ids = {path.name.partition("_driving")[0] for path in folder.iterdir()}
        return {starpilot.download(folder, one) for one in ids}

    bytes_before = held()
    try:
        reconcile(folder, NAMES)
    except ArtifactError:
        assert content(folder) == before
        return
    assert held() == bytes_before
    after = content(folder)
    reconcile(folder, NAMES)
    assert content(folder) == after


# ---- the command

SINCE = {"pop2": "v22", "deeprl3": "v22", "rdfv2": "v22", "deeprl33": "v23", "rdf2": "v23"}
NETWORK = generated("vision-conv+attention")
CATALOG = (
    "".join(model(one, NETWORK, f'since = "{since}"', name=f"The {one}") for one, since in SINCE.items())
    + '[release.v22]\ncontract = "warp"\n[release.v23]\nfrom = "v22"\nsuffix = "3"\n'
    + 'ids = { deeprl3 = "deeprl33" }\nafter = { rdf23 = "rdfv23" }\n'
)
PLUGIN = '[tool.doit.plugins.command]\nreconcile = "rules.commands.reconcile:Reconcile"\n'


@pytest.fixture
def project(tmp_path) -> Project:
    project = Project(tmp_path / "yard", CATALOG)
    (project.folder / "pyproject.toml").write_text(PLUGIN)
    return project


def told(project: Project, *words: object, code: int = 0) -> list[str]:
    """The lines that `doit reconcile` prints; also those on stderr when it is to fail."""
    done = subprocess.run(
        [sys.executable, "-m", "doit", "reconcile", *map(str, words)],
        cwd=project.folder,
        env={"PATH": PATH, "HOME": str(project.folder), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return (done.stdout + done.stderr if code else done.stdout).splitlines()


def handed_over(folder: Path) -> Path:
    folder.mkdir(parents=True)
    files = {"deeprl3": A, "deeprl33": B, "pop2": C, "pop23": C, "rdf2": B, "rdfv23": C, "oak9": A}
    for one, its_bytes in files.items():
        put(folder, one, its_bytes)
    (folder / f"._{pkl('pop2')}").write_bytes(b"junk")
    (folder / "model_names_v23.json").write_bytes(starpilot.manifest([entry("rdfv23"), entry("pop23")]))
    return folder


DONE = [
    "deeprl3 → deeprl33",
    "deeprl33 → deeprl333",
    "rdf2 → rdf23",
    "pop2: dropped, pop23 is the same",
    f"._{pkl('pop2')}: removed",
    "model_names_v23.json: written",
    "rdf23: gets an entry in the manifest",
    "oak9: no model of v23, left as it is",
]


def test_the_command_does_what_its_dry_run_tells_and_no_more_the_second_time(project, tmp_path):
    folder = handed_over(tmp_path / "handed over")
    before = content(folder)
    assert told(project, folder, "--dry-run") == [*DONE, f"{folder}: would be changed (--dry-run)"]
    assert content(folder) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["handed over", "yard"]
    assert told(project, "../handed over", "--release", "v23") == [*DONE, f"{folder}: changed"]
    after = content(folder)
    kept = {pkl("deeprl33"): A, pkl("deeprl333"): B, pkl("pop23"): C, pkl("rdf23"): B, pkl("oak9"): A}
    kept[pkl("rdfv23")] = C
    assert {name: one for name, one in after.items() if name.endswith(".pkl")} == kept
    models = json.loads(after["model_names_v23.json"])["models"]
    assert [one["id"] for one in models] == ["rdfv23", "rdf23", "pop23"]
    assert (models[1]["name"], models[1]["version"]) == ("The rdf2", "v11")  # as the catalog has it
    assert told(project, folder) == [DONE[-1], f"{folder}: already as v23 names it"]
    assert content(folder) == after


def test_an_entry_without_an_artifact_is_told_and_fails(project, tmp_path):
    folder = handed_over(tmp_path / "in")
    (folder / pkl("rdfv23")).unlink()
    put(folder, "pop23", C, parts=1)  # as good as whole
    (folder / pkl("pop23")).unlink()
    (folder / pkl("pop2")).unlink()
    line = "rdfv23: in the manifest, and no artifact of it here, whole or in parts"
    said = told(project, folder, "--dry-run", code=1)
    assert said[-2:] == [line, f"{folder}: would be changed (--dry-run), and lacks 1 artifact"]
    assert told(project, folder, code=1)[-1] == f"{folder}: changed, and lacks 1 artifact"
    assert told(project, folder, code=1)[-2:] == [line, f"{folder}: nothing to rename, and lacks 1 artifact"]
    (folder / f"{pkl('pop23')}.sha256").unlink()  # no client takes parts without it
    assert told(project, folder, code=1)[-1] == f"{folder}: nothing to rename, and lacks 2 artifacts"


@pytest.mark.parametrize("inside", ["ready-for-resources", "ready-for-resources/v23"])
def test_a_workspace_is_taken_by_its_root_with_its_manifest(project, tmp_path, inside):
    root = tmp_path / "drive"
    folder = handed_over(root / inside)
    manifests = root / "manifests"
    manifests.mkdir()
    (folder / "model_names_v23.json").unlink()
    listed = [entry(one) for one in ("rdfv23", "deeprl3", "deeprl33", "pop2")]
    (manifests / "model_names_v23.json").write_bytes(starpilot.manifest(listed))
    before = content(folder), content(manifests)
    done = told(project, root, "--dry-run")
    assert "manifests/model_names_v23.json: written" in done
    assert (content(folder), content(manifests)) == before
    assert told(project, root)[-1] == f"{folder}: changed"
    assert manifest(manifests) == ["rdfv23", "rdf23", "deeprl33", "deeprl333", "pop23"]
    assert content(folder)[pkl("deeprl333")] == B
    assert told(project, root)[-1] == f"{folder}: already as v23 names it"
    (folder / pkl("pop23")).unlink()
    assert told(project, root, code=1)[-1] == f"{folder}: nothing to rename, and lacks 1 artifact"


def test_a_folder_without_anything_of_a_release_is_no_release(project, tmp_path):
    for folder in (tmp_path / "empty", tmp_path / "root/ready-for-resources"):
        folder.mkdir(parents=True)
    for folder in (tmp_path / "empty", tmp_path / "root", project.folder):
        said = " ".join(told(project, folder, code=2))
        assert "no driving model's artifact is in it, and no manifest of v23" in said


def test_a_conflict_is_told_and_changes_nothing(project, tmp_path):
    folder = handed_over(tmp_path / "in")
    put(folder, "pop23", A)
    before = content(folder)
    for words in ((folder,), (folder, "--dry-run")):
        said = " ".join(told(project, *words, code=2))
        assert f"{folder / pkl('pop23')}: expected nothing or the same bytes under this name" in said
        assert content(folder) == before


def test_the_workspace_is_held_only_for_a_folder_in_it(project, tmp_path):
    outside, inside = handed_over(tmp_path / "out"), handed_over(project.path("handed-over"))
    before = content(inside)
    with holding(project.path(".store/lock"), "doit pkl:pop2"):
        told(project, outside)
        said = " ".join(told(project, inside, code=4))
    assert f"process {os.getpid()} holds this workspace" in said
    assert content(inside) == before
    told(project, inside)
    assert content(inside) == content(outside)


@pytest.mark.parametrize(
    "folder", ["artifacts/compiled", "artifacts/ready-for-resources/v22", "artifacts/.store/candidates"]
)
def test_what_doit_makes_keeps_its_names(project, folder):
    path = handed_over(project.folder / folder)
    before = content(path)
    assert "holds what doit makes" in " ".join(told(project, path, code=2))
    assert content(path) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["."], "no driving model's artifact is in it"),
        ([], "too few arguments"),
        (["in", "more"], "too many arguments: more"),
        (["in", "--release", "v32"], "v32: no such release in the catalog → did you mean v23?"),
        (["in", "--source", "pop2"], "pop2: expected an ID that two models go by"),
        (["in", "--source", "deeprl33", "--published=deeprl33"], "deeprl33: both --source and --published"),
    ],
)
def test_mistakes_are_a_sentence(project, words, said):
    folder = handed_over(project.folder / "in")
    before = content(folder)
    assert said in " ".join(" ".join(told(project, *words, code=2)).split())
    assert content(folder) == before


def test_without_a_release_that_renames_one_must_be_named(project):
    folder = handed_over(project.folder / "in")
    project.catalog = model("pop2", NETWORK, 'since = "v22"') + '[release.v22]\ncontract = "warp"\n'
    assert "expected one release that renames its models, got none" in " ".join(told(project, folder, code=2))
    before = content(folder)
    del before[f"._{pkl('pop2')}"]
    told(project, folder, "--release", "v22")
    assert content(folder) == before


def test_the_real_catalog_renames_all_of_its_sources(project, tmp_path):
    """Every ID of the two real maps, through the commands alone."""
    data = os.environ.get("MODELYARD_DATA")
    if not data:
        pytest.skip("MODELYARD_DATA does not name the folder of real files")
    maps = [Path(data, "catalog", f"model_source_map_{release}.json") for release in ("v22", "v23")]
    (project.folder / "models.toml").unlink()
    code, _, err = doit_plain(project.folder, "import", *(f"--source-map={one}" for one in maps))
    assert (code, err) == (0, "")
    sources = [one for path in maps for one in json.loads(path.read_text())]
    folder = tmp_path / "in"
    for one in sources:
        put(folder, one, one.encode())
    said = told(project, folder)
    assert said[:-1] == [f"{one} → {one}3" for one in sorted(sources)]
    assert content(folder) == {pkl(f"{one}3"): one.encode() for one in sources}
