"""The recovered sources: from the two real maps to a release with every published name, and its order."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest
from child import doit
from contract import Project, generated, model

from rules.clients import starpilot
from rules.errors import CatalogError
from rules.tasks import Yard

RECONCILED = """
opv8→opv83 opv9→opv93 opv10→opv103 opv11→opv113 opv12→opv123 opv13→opv133 op16→op163 op16d→op16d3
op16dv2→op16dv23 rlv1dl→rlv1dl3 deeprl3→deeprl33 deeprl3v2→deeprl3v23 ms2→ms23 pp222→pp2223 nn222→nn2223
pop2→pop23 nid22→nid223 kerrygold22→kerrygold223 karnbir→karnbir3 karnbir2→karnbir23 michael-rl→michael-rl3
michael-rl2→michael-rl23 tobyrl→tobyrl3 nopp→nopp3 drl→drl3 deeprl33→deeprl333 rl34→rl343 gyhu→gyhu3
rdf2→rdf23
"""
WANTED = dict(pair.split("→") for pair in RECONCILED.split())
RDF23 = {
    "id": "rdf23",
    "name": "Regret Driven Framework V2 👀📡",
    "version": "v15",
    "series": "OP Series",
    "released": "2026-08-10",
    "community_favorite": False,
}
AFTER = 'after = { rdf23 = "rdfv23" }\n'
# Names that are each other's have bytes of their own, by weights or by version; all others are one network.
SEEDS = {"deeprl3": 2, "deeprl33": 3, "rdf2": 4}
MIXED_UP = (*SEEDS, "deeprl3v2", "rdfv2")
NETWORK = "vision-conv+attention"
ACTING = "multi-policy"  # has the head that v15 steers by


@pytest.fixture(scope="module")
def maps() -> list[Path]:
    folder = os.environ.get("MODELYARD_DATA")
    if not folder:
        pytest.skip("MODELYARD_DATA does not name the folder of real files")
    return [Path(folder, "catalog", f"model_source_map_{release}.json") for release in ("v22", "v23")]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, maps: list[Path]) -> str:
    """The catalog that `doit init` and `doit import` write of both maps."""
    folder = tmp_path_factory.mktemp("imported")
    options = [word for one in maps for word in ("--source-map", one)]
    assert doit(folder, "init", ".", *options)[0] == 0
    kept = [folder / "artifacts/source-maps" / one.name for one in maps]
    code, out, err = doit(folder, "import", *(word for one in kept for word in ("--source-map", one)))
    assert (code, err) == (0, "")
    assert "release.v23.ids: deeprl3 → deeprl33" in out
    assert "release.v23.after: rdf23 right after rdfv23, or at the end" in out
    assert "rdf2: Regret Driven Framework V2 👀📡, v15, OP Series, 2026-08-10" in out
    return (folder / "models.toml").read_text()


def buildable(catalog: str) -> str:
    """The catalog with small networks that are made here in place of the fork's commits."""
    tables = re.split(r"(?m)^(?=\[)", catalog)
    return "".join(_made_here(one) for one in tables if not one.startswith("[models.example]"))


def _made_here(table: str) -> str:
    model_id = table.partition("]")[0].removeprefix("[models.")
    network = ACTING if 'version = "v15"' in table else NETWORK
    source = generated(network, seed=SEEDS.get(model_id, 1))
    return re.sub(r'source = \{ kind = "git", ref = "\w{40}", format = "\w+" \}\n', source, table)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, imported: str) -> Project:
    """Every real source released as v23, and `rdfv2` besides. Read only."""
    project = Project(tmp_path_factory.mktemp("recovered"))
    regret = model("rdfv2", generated(NETWORK), 'since = "v22"')
    allowed = re.sub(r"(?m)^(\[release\.v2[23]\])$", r'\1\nallow = ["placeholders"]', buildable(imported))
    (project.folder / "models.toml").write_text(allowed + regret)
    project.doit("-n", "2", "release:v23")
    return project


def test_a_release_takes_no_placeholders_for_true(tmp_path: Path, imported: str) -> None:
    project = Project(tmp_path)
    (project.folder / "models.toml").write_text(buildable(imported))
    listed = Yard(project.folder / "models.toml").graph.steps["manifest:v22"]
    with pytest.raises(
        CatalogError, match=r"release v22: .* of tr1422, .* and \d+ more are placeholders"
    ) as told:
        listed.settings()
    assert 'allow = ["placeholders"] under [release.v22]' in told.value.fix


def ids(project: Project) -> list[str]:
    """The manifest's, in its order."""
    content = project.path("ready-for-resources/v23/model_names_v23.json").read_bytes()
    return [entry["id"] for entry in starpilot.check_manifest(content)]


def test_the_import_writes_what_no_map_tells(imported: str) -> None:
    document = tomllib.loads(imported)
    assert document["release"]["v23"] == {
        "from": "v22",
        "suffix": "3",
        "ids": {"deeprl3": "deeprl33"},
        "after": {"rdf23": "rdfv23"},
    }
    told = {key: RDF23[key] for key in ("name", "version", "series", "released")}
    assert {key: document["models"]["rdf2"][key] for key in told} == told
    assert "[models.rdf2]\n" in imported


def test_the_73_real_sources_are_released_under_the_reconciled_names(
    released: Project, maps: list[Path]
) -> None:
    sources = [one for path in maps for one in json.loads(path.read_text())]
    id_map = json.loads(released.path("source-maps/model_id_namespace_v23.json").read_text())["ids"]
    assert (len(sources), len(WANTED)) == (73, 29)
    assert id_map == {one: f"{one}3" for one in (*sources, "rdfv2")}
    assert {old: id_map[old] for old in WANTED} == WANTED
    files = {name.partition("_driving_tinygrad.pkl")[0] for name in released.files("ready-for-resources/v23")}
    assert files == {*id_map.values(), "model_names_v23.json", "multipart.json"}


def test_names_that_are_each_others_hold_their_own_bytes(released: Project) -> None:
    seen = set()
    for old in MIXED_UP:
        whole = released.path(f"compiled/{old}_driving_tinygrad.pkl").read_bytes()
        seen.add(whole)
        assert released.path(f"ready-for-resources/v23/{old}3_driving_tinygrad.pkl.p00").read_bytes() == whole
    assert len(seen) == len(MIXED_UP)


def test_rdf23_stands_right_after_rdfv23_under_its_known_name(released: Project, maps: list[Path]) -> None:
    v22, v23 = ([f"{one}3" for one in json.loads(path.read_text())] for path in maps)
    assert ids(released) == [*v22, "rdfv23", "rdf23", *v23[:-1]]
    manifest = json.loads(released.path("manifests/model_names_v23.json").read_text())
    assert next(entry for entry in manifest["models"] if entry["id"] == "rdf23") == RDF23
    assert released.path("ready-for-resources/v23/model_names_v23.json").read_bytes() == (
        released.path("manifests/model_names_v23.json").read_bytes()
    )


@pytest.fixture
def few(tmp_path: Path) -> Project:
    """Three models of one network."""
    models = [model(one, generated(NETWORK), 'since = "v22"') for one in ("rdf2", "rdfv2", "oak")]
    releases = f'[release.v22]\ncontract = "warp"\n[release.v23]\nfrom = "v22"\nsuffix = "3"\n{AFTER}'
    return Project(tmp_path / "few", "".join(models) + releases)


def test_a_place_is_in_the_keys_and_a_model_that_is_not_there_is_never_listed(few: Project) -> None:
    few.doit("release:v23")
    assert ids(few) == ["rdfv23", "rdf23", "oak3"]
    place = few.record("v23_manifest")["content"]["settings"]["order"]
    assert place == ["rdfv23", "rdf23", "oak3"]
    few.edit(AFTER, "")
    assert few.made("release:v23") == ["manifest:v23", "release:v23"]
    assert ids(few) == ["rdf23", "rdfv23", "oak3"]
    few.edit('suffix = "3"\n', f'suffix = "3"\n{AFTER}')
    assert few.made("release:v23") == ["manifest:v23", "release:v23"]
    assert ids(few) == ["rdfv23", "rdf23", "oak3"]
    few.catalog = few.catalog.replace("[models.rdfv2]", "[models.elm]")  # not there: at the end
    few.doit("release:v23")
    assert ids(few) == ["elm3", "oak3", "rdf23"]
    few.edit("rdf2]", "ash]")
    told = few.doit("release:v23", fails=True)
    assert 'release.v23.after.rdf23: found "rdf23"; expected an ID that release v23 publishes' in told.stderr
    few.edit(AFTER, "")
    few.doit("release:v23")
    assert ids(few) == ["ash3", "elm3", "oak3"]
