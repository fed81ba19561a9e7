"""Reconciling an existing release folder: names move once, conflicts are refused, kills are survived."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.clients import starpilot
from rules.errors import ArtifactError
from rules.releasing.reconcile import RDF23, reconcile, with_rdf23

NAMES = {"pop2": "pop23", "deeprl3": "deeprl33", "deeprl33": "deeprl333", "rdf2": "rdf23"}
A, B, C = b"alpha", b"beta" * 100, b"gamma"


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
    assert reconcile(folder, NAMES, dry=True).lines() == [f"{pkl('pop2')} → {pkl('pop23')}"]
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
    assert manifest(folder) == ["deeprl33", "rdfv23", "rdf23", "deeprl333", "elm3", "pop23"]
    (one,) = json.loads((folder / "multipart.json").read_text())
    assert (one["id"], one["filename"]) == ("deeprl333", pkl("deeprl333"))
    assert one["parts"] == [f"{pkl('deeprl333')}.p00", f"{pkl('deeprl333')}.p01"]
    starpilot.check_manifest((folder / "model_names_v23.json").read_bytes())


def test_an_equal_entry_is_dropped_and_another_of_the_same_id_refused(folder):
    put(folder, "pop2", A)
    path = folder / "model_names_v23.json"
    path.write_bytes(starpilot.manifest([entry("pop2"), entry("pop23")]))
    reconcile(folder, NAMES)
    assert manifest(folder) == ["pop23", "rdf23"]
    put(folder, "elm", A)
    path.write_bytes(starpilot.manifest([entry("elm", "One"), entry("elm3", "Two")]))
    before = content(folder)
    with pytest.raises(ArtifactError, match="'elm3' stands 2 times"):
        reconcile(folder, {"elm": "elm3"})
    assert content(folder) == before


def test_rdf23_follows_rdfv23_or_ends_the_list_and_is_added_once():
    one = with_rdf23([entry("a"), entry("rdfv23"), entry("b")])
    assert [e["id"] for e in one] == ["a", "rdfv23", "rdf23", "b"]
    assert [e["id"] for e in with_rdf23([entry("a"), entry("b")])] == ["a", "b", "rdf23"]
    assert with_rdf23(one) == one
    assert RDF23["name"] == "Regret Driven Framework V2 👀📡"
    assert [RDF23[key] for key in ("version", "series", "released")] == ["v15", "OP Series", "2026-08-10"]
    starpilot.check_manifest(starpilot.manifest(one))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", range(12))
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
        patch.setattr(Path, "rename", dying(Path.rename))
        patch.setattr(Path, "unlink", dying(Path.unlink))
        try:
            reconcile(killed, NAMES)
        except Killed:
            pass
        else:
            assert after > 5
    reconcile(killed, NAMES)
    assert content(killed) == content(whole)


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
