"""Import, add and init: real maps, every form of manifest, comments kept, nothing guessed in silence."""

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import onnx as onnx_package
import pytest
from child import doit
from conftest import needs
from contract import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.catalog import load
from rules.clients import starpilot
from rules.commands.init import lay_out
from rules.editing import adding, catalogtext, importing, published, starter
from rules.editing.importing import Wishes
from rules.errors import CatalogError, SourceError, YardError
from rules.sources.generated import generate
from rules.steps import release as releasing
from rules.steps.release import names

REFS = ["a" * 40, "b" * 40, "c" * 40]
RECONCILED = """
opv8→opv83 opv9→opv93 opv10→opv103 opv11→opv113 opv12→opv123 opv13→opv133 op16→op163 op16d→op16d3
op16dv2→op16dv23 rlv1dl→rlv1dl3 deeprl3→deeprl33 deeprl3v2→deeprl3v23 ms2→ms23 pp222→pp2223 nn222→nn2223
pop2→pop23 nid22→nid223 kerrygold22→kerrygold223 karnbir→karnbir3 karnbir2→karnbir23 michael-rl→michael-rl3
michael-rl2→michael-rl23 tobyrl→tobyrl3 nopp→nopp3 drl→drl3 deeprl33→deeprl333 rl34→rl343 gyhu→gyhu3
rdf2→rdf23
"""
ENTRY = {
    "id": "pop22",
    "name": "Poplar 2, the 2nd",
    "version": "v12",
    "series": "Trees",
    "released": "2026-06-17",
    "community_favorite": True,
}


@pytest.fixture
def maps() -> list[Path]:
    folder = os.environ.get("MODELYARD_DATA")
    if not folder:
        pytest.skip("MODELYARD_DATA does not name the folder of real files")
    return [Path(folder, "catalog", f"model_source_map_{release}.json") for release in ("v22", "v23")]


def write(path: Path, document: object) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def imported(
    catalog: Path, *sources: Path, manifest: Path | None = None, dry: bool = False, **wishes: object
):
    told = published.read_manifest(manifest) if manifest else None
    read = [published.read_source_map(one) for one in sources]
    return importing.run(catalog, told, read, Wishes(**wishes), dry=dry)


def git(ref: str, form: str = "split") -> dict[str, str]:
    return {"ref": ref, "input_format": form}


# ---- the real maps


def test_the_73_real_sources_become_a_valid_catalog(tmp_path, maps):
    path = tmp_path / "models.toml"
    report = imported(path, *maps)
    real = [json.loads(one.read_text()) for one in maps]
    catalog = load(path)
    assert report.unusable == {}
    assert report.added == list(catalog.models) == [*real[0], *real[1]]
    assert len(catalog.models) == 73
    for release, entries in zip(("v22", "v23"), real, strict=True):
        for model_id, entry in entries.items():
            model = catalog.models[model_id]
            assert model.source.options == {"ref": entry["ref"], "format": entry["input_format"]}
            assert model.since == release
            suffix = "-supercombo" if entry["input_format"] == "supercombo" else ""
            assert model.flags.name == f"qcom{suffix}"


def test_the_imported_release_has_the_reconciled_names(tmp_path, maps):
    path = tmp_path / "models.toml"
    report = imported(path, *maps)
    catalog = load(path)
    assert report.claimed == {"v23": {"deeprl3": "deeprl33"}}
    assert names(catalog, catalog.releases["v23"]) == {one: f"{one}3" for one in catalog.models}


def test_the_published_example_has_the_reconciled_names():
    catalog = load(ROOT / "examples" / "starpilot" / "models.toml")
    wanted = dict(pair.split("→") for pair in RECONCILED.split())
    renamed = names(catalog, catalog.releases["v23"])
    assert len(wanted) == 29
    assert {old: renamed[old] for old in wanted} == wanted
    rdf2 = catalog.models["rdf2"]
    assert catalog.releases["v23"].after == {"rdf23": "rdfv23"}
    told = (rdf2.name, rdf2.version, rdf2.series, rdf2.released)
    assert told == ("Regret Driven Framework V2 👀📡", "v15", "OP Series", "2026-08-10")


def test_what_a_manifest_tells_of_rdf2_is_taken_and_where_it_stands_too(tmp_path):
    path = tmp_path / "models.toml"
    manifest = write(tmp_path / "names.json", [ENTRY | {"id": "rdf2"}])
    report = imported(path, write(tmp_path / "m_v23.json", {"rdf2": git(REFS[0])}), manifest=manifest)
    catalog = load(path)
    assert (catalog.models["rdf2"].name, catalog.models["rdf2"].version) == ("Poplar 2 the 2nd", "v12")
    assert (report.recovered, report.placed, catalog.releases["v23"].after) == ([], {}, {})


@pytest.mark.parametrize(
    ("release", "after"),
    [
        ('suffix = "3"', {"rdf23": "rdfv23"}),
        ('suffix = "4"', {}),  # rdf24: another name, whose place nobody knows
        ('suffix = "4"\nids = { rdf2 = "rdf23" }', {"rdf23": "rdfv23"}),
        ('suffix = "3"\nafter = { rdf23 = "elm3" }', {"rdf23": "elm3"}),
        ('suffix = "3"\nafter = { elm3 = "oak3" } # mine', {"elm3": "oak3", "rdf23": "rdfv23"}),
    ],
)
def test_the_place_of_rdf23_is_written_once_and_only_under_that_name(tmp_path, release, after):
    text = CATALOG + f'\n[release.v23]\nfrom = "v22"\n{release}\n'
    path = write(tmp_path / "models.toml", text)
    imported(path, write(tmp_path / "m_v23.json", {"rdf2": git(REFS[0])}))
    assert load(path).releases["v23"].after == after
    assert "# mine" not in release or "# mine" in path.read_text()


def test_importing_twice_changes_nothing(tmp_path, maps):
    path = tmp_path / "models.toml"
    imported(path, *maps)
    before = path.read_bytes()
    report = imported(path, *maps)
    assert path.read_bytes() == before
    assert (report.added, report.updated, report.kept, report.claimed) == ([], {}, [], {})


def test_a_dry_run_tells_and_writes_nothing(tmp_path, maps):
    assert len(imported(tmp_path / "models.toml", *maps, dry=True).added) == 73
    assert list(tmp_path.iterdir()) == []


# ---- manifests


BUNDLE = {
    "short_name": "POP 22",
    "display_name": "Poplar 2",
    "ref": REFS[0],
    "is_big": True,
    "build_time": "2026-06-17T10:00:00Z",
    "overrides": {"folder": "Trees"},
    "models": [{"type": "supercombo"}],
}


@pytest.mark.parametrize(
    "document",
    [
        {"models": [ENTRY]},
        [ENTRY],
        {"models": {"pop22": {key: value for key, value in ENTRY.items() if key != "id"}}},
        {"pop22": ENTRY},
        {
            "models": [
                ENTRY
                | {"artifact_format": "tinygrad_single_v1", "artifact_size": 5, "artifact_chunk_count": 0}
            ]
        },
        {"models": [ENTRY | {"version": 12}]},
    ],
    ids=["v22", "bare", "by-id", "table", "v25", "number"],
)
def test_every_form_of_manifest_is_read(tmp_path, document):
    manifest = write(tmp_path / "model_names_v21.json", document)
    path = tmp_path / "models.toml"
    imported(path, write(tmp_path / "map_v22.json", {"pop22": git(REFS[0])}), manifest=manifest)
    model = load(path).models["pop22"]
    assert (model.name, model.version, model.series) == (
        "Poplar 2 the 2nd",
        "v12",
        "Trees",
    )  # no comma: see FACTS
    assert (model.released, model.community_favorite, model.since) == ("2026-06-17", True, "v22")


def test_a_sunnypilot_catalog_brings_its_sources_along(tmp_path):
    manifest = write(tmp_path / "driving_models_v9.json", {"tinygrad_ref": "x", "bundles": [BUNDLE]})
    path = tmp_path / "models.toml"
    report = imported(path, manifest=manifest, release="v22")
    model = load(path).models["pop-22"]
    assert report.added == ["pop-22"]
    assert (model.name, model.series, model.released) == ("Poplar 2", "Trees", "2026-06-17")
    assert (model.version, model.uses_external_gpu, model.flags.name) == ("v15", True, "usbgpu")
    assert model.source.options == {"ref": REFS[0], "format": "supercombo"}


@pytest.mark.parametrize(
    "document", ["", "[]", "{}", '{"models": 3}', '{"models": [ENTRY]}', "\x00", '"text"']
)
def test_what_is_no_manifest_is_refused(tmp_path, document):
    path = write(tmp_path / "names.json", document)
    with pytest.raises(SourceError, match=r"names\.json"):
        published.read_manifest(path)
    with pytest.raises(SourceError, match=r"names\.json"):
        published.read_source_map(path)


def test_an_id_that_stands_twice_in_a_manifest_is_refused(tmp_path):
    with pytest.raises(SourceError, match="pop22 stands in it twice"):
        published.read_manifest(write(tmp_path / "names.json", [ENTRY, ENTRY]))


def test_what_has_no_source_and_what_has_no_entry_is_told(tmp_path):
    manifest = write(tmp_path / "names.json", [ENTRY, ENTRY | {"id": "lost"}])
    path = tmp_path / "models.toml"
    source_map = write(tmp_path / "map_v22.json", {"pop22": git(REFS[0]), "bare": git(REFS[1], "supercombo")})
    report = imported(path, source_map, manifest=manifest)
    assert report.without_source == ["lost"]
    assert report.without_entry == ["bare"]
    assert list(load(path).models) == ["pop22", "bare"]
    assert "[models.bare] # placeholders: name, version, series, released\n" in path.read_text()
    assert "[models.pop22]\n" in path.read_text()
    told = "\n".join(report.lines())
    assert "no source: lost" in told
    assert "no manifest entry: bare" in told


def test_a_later_manifest_fills_the_placeholders(tmp_path):
    path = tmp_path / "models.toml"
    source_map = write(tmp_path / "map_v22.json", {"pop22": git(REFS[0]), "oak": git(REFS[1])})
    imported(path, source_map)
    report = imported(path, manifest=write(tmp_path / "names.json", [ENTRY]))
    model = load(path).models["pop22"]
    assert (model.name, model.version, model.community_favorite) == ("Poplar 2 the 2nd", "v12", True)
    assert report.updated == {"pop22": ["name", "version", "series", "released", "community_favorite"]}
    assert "[models.pop22]\n" in path.read_text()
    assert "[models.oak] # placeholders" in path.read_text()


def publication(folder: Path, catalog: Path, release: str = "v23", **changed: str) -> Path:
    """The manifest of a release as its build publishes it; `changed` are display names by model id."""
    loaded = load(catalog)
    renamed = names(loaded, loaded.releases[release])
    models = [replace(one, name=changed.get(one.id, one.name)) for one in loaded.models.values()]
    content = starpilot.manifest([releasing.entry(one, renamed[one.id]) for one in models])
    (folder / f"model_names_{release}.json").write_bytes(content)
    return folder / f"model_names_{release}.json"


def test_our_own_published_manifest_is_of_models_that_are_there(tmp_path, maps):
    words = [one for each in maps for one in ("--source-map", each)]
    assert doit(tmp_path, "import", *words)[0] == 0
    path = tmp_path / "models.toml"
    manifest = publication(tmp_path, path, pop2="Poplar", deeprl3="Deep", deeprl33="Deeper")
    told = "73 entries under published names of release v23 (tr14223 is tr1422, "
    code, out, _ = doit(tmp_path, "import", "--base-manifest", manifest)
    assert (code, told in out) == (0, True)
    assert out.splitlines()[1:] == [
        "updated deeprl3: name",
        "updated pop2: name",
        "updated deeprl33: name",
        "models.toml: written",
    ]
    models = load(path).models
    assert len(models) == 73
    assert [models[one].name for one in ("pop2", "deeprl3", "deeprl33")] == ["Poplar", "Deep", "Deeper"]
    # Into a catalog that is not there yet, beside the maps of the sources.
    (tmp_path / "new").mkdir()
    code, out, _ = doit(tmp_path / "new", "import", "--base-manifest", manifest, *words)
    assert (code, told in out, "added 73: " in out, "no source" in out) == (0, True, True, False)
    assert load(tmp_path / "new" / "models.toml").models == models


def test_a_map_under_published_names_adds_nothing(tmp_path):
    path = tmp_path / "models.toml"
    first = write(tmp_path / "map_v23.json", {"pop2": git(REFS[0]), "oak": git(REFS[1])})
    imported(path, first)
    before = path.read_bytes()
    report = imported(path, write(tmp_path / "x_v23.json", {"pop23": git(REFS[0]), "oak3": git(REFS[2])}))
    assert report.published == [
        "x_v23.json: 2 entries under published names of release v23 (pop23 is pop2, oak3 is oak)"
    ]
    assert (report.added, len(report.kept)) == ([], 1)
    assert path.read_bytes() == before


# ---- what is left to do by hand


WARNED = "no repository is named for the {} of {}: under [defaults] in models.toml, write repository = "


def test_a_fork_that_nobody_names_is_asked_for_in_one_line(tmp_path):
    write(tmp_path / "a_v22.json", {"pop22": git(REFS[0]), "oak": git(REFS[1])})
    _, out, err = doit(tmp_path, "import", "--source-map", "a_v22.json")
    written, *steps = out.splitlines()[-5:]
    assert (err, written) == ("", "models.toml: written")
    assert steps[0].startswith(f"next: 1. {WARNED.format('2 git sources', 'pop22, oak')}")
    assert [step.partition(": ")[2] for step in steps[1:]] == [
        "doit flags qcom --against SCRIPT",
        "doit import --base-manifest FILE",
        "doit pkl:pop22",
    ]
    add = ["add", "--ref", REFS[2], "--format", "supercombo"]
    assert f"\nWARNING: {WARNED.format('1 git source', 'ash')}" in doit(tmp_path, *add, "--id", "ash")[1]
    assert "WARNING" not in doit(tmp_path, *add, "--id", "elm", "--repository", "../fork")[1]
    assert "next" not in doit(tmp_path, "import", "--source-map", "a_v22.json")[1]  # nothing was written


@pytest.mark.parametrize(
    ("named", "warned"),
    [
        ("https://git.example/fork", True),
        ("https://example.com/fork.git", True),
        ("<URL of the fork>", True),
        ("../openpilot", False),
        ("https://git.company.net/examples/fork.git", False),
    ],
)
def test_a_repository_that_is_only_an_example_is_asked_for_too(tmp_path, named, warned):
    text = importing.starter_text().replace("[defaults]", f'[defaults]\nrepository = "{named}"')
    (tmp_path / "models.toml").write_text(text)
    write(tmp_path / "a_v22.json", {"pop22": git(REFS[0])})
    code, out, _ = doit(tmp_path, "import", "--source-map", "a_v22.json")
    assert (code, "no repository is named" in out) == (0, warned)


def test_placeholders_that_had_to_be_written_are_listed(tmp_path):
    manifest = write(tmp_path / "names.json", [ENTRY, {"id": "oak", "name": "Oak", "version": "v3"}])
    source_map = write(tmp_path / "m_v22.json", {one: git(REFS[0]) for one in ("pop22", "oak", "elm")})
    _, out, _ = doit(tmp_path, "import", "--source-map", source_map, "--base-manifest", manifest)
    assert "placeholders: series, released of oak\n" in out
    assert "placeholders: name, version, series, released of elm\n" in out
    assert "what the maps do not tell of 2 models: doit import --base-manifest FILE\n" in out


# ---- source maps


def test_a_later_map_adds_and_never_changes_until_told(tmp_path):
    path = tmp_path / "models.toml"
    first = write(tmp_path / "map_v22.json", {"pop22": git(REFS[0])})
    second = write(tmp_path / "map_v23.json", {"pop22": git(REFS[1]), "oak": git(REFS[1])})
    report = imported(path, first, second)
    assert load(path).models["pop22"].source.options["ref"] == REFS[0]
    assert load(path).models["oak"].source.options["ref"] == REFS[1]  # ids may share a commit
    assert len(report.kept) == 1
    for part in ("pop22", REFS[0][:12], REFS[1][:12], "map_v23.json", "--update-sources"):
        assert part in report.kept[0]
    assert len(imported(path, second).kept) == 1
    assert load(path).models["pop22"].source.options["ref"] == REFS[0]
    assert imported(path, second, update_sources=True).updated == {"pop22": ["source"]}
    assert load(path).models["pop22"].source.options["ref"] == REFS[1]


def test_what_a_map_cannot_tell_stays_when_a_source_moves(tmp_path):
    path = tmp_path / "models.toml"
    first = write(tmp_path / "a.json", {"pop22": git(REFS[0]) | {"repository": "../fork"}})
    imported(path, first)
    assert imported(path, write(tmp_path / "same.json", {"pop22": git(REFS[0])})).kept == []
    imported(path, write(tmp_path / "b.json", {"pop22": git(REFS[1])}), update_sources=True)
    options = load(path).models["pop22"].source.options
    assert options == {"ref": REFS[1], "format": "split", "repository": "../fork"}


@pytest.mark.parametrize(
    "entry",
    [
        {
            "input_format": "split",
            "archive": {"url": "https://x.example/a.zip", "sha256": "d" * 64, "size": 7},
        },
        {"input_format": "split", "archive": "https://x.example/a.zip", "sha256": "d" * 64, "size": 7},
        {"input_format": "split", "url": "https://x.example/a.zip", "sha256": "D" * 64, "size": 7},
    ],
)
def test_an_archive_in_place_of_a_ref(tmp_path, entry):
    read = published.read_source_map(write(tmp_path / "map.json", {"pop22": entry}))
    assert read.sources["pop22"] == {
        "kind": "archive",
        "url": "https://x.example/a.zip",
        "sha256": "d" * 64,
        "size": 7,
        "format": "split",
    }
    text, report = importing.merged(starter.CATALOG, None, [read], Wishes(release="v22"))
    assert report.added == ["pop22"]
    assert tomllib.loads(text)["models"]["pop22"]["source"] == read.sources["pop22"]


def test_an_archive_on_this_machine_is_pinned_by_what_it_is(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"zip")
    entry = {"archive": "a.zip", "input_format": "supercombo"}
    source = published.read_source_map(write(tmp_path / "map.json", {"pop22": entry})).sources["pop22"]
    assert (source["path"], source["size"]) == (str(tmp_path / "a.zip"), 3)
    assert source["sha256"] == hashlib.sha256(b"zip").hexdigest()


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (
            {"ref": "main", "input_format": "split"},
            "expected a commit of 40 hexadecimal digits as ref, got 'main'",
        ),
        ({"ref": REFS[0]}, "expected input_format split or supercombo, got None"),
        ({"input_format": "split"}, "expected a ref or an archive, got neither"),
        (
            {"input_format": "split", "archive": "https://x.example/a"},
            "expected sha256 and size of https://x",
        ),
    ],
)
def test_an_unusable_source_is_told_and_does_not_stop_the_others(tmp_path, entry, told):
    path = tmp_path / "models.toml"
    report = imported(
        path, write(tmp_path / "m_v22.json", {"bad": entry, "Bad ID": git(REFS[1]), "pop22": git(REFS[0])})
    )
    assert told in report.unusable["bad"]
    assert "not a model ID" in report.unusable["Bad ID"]
    assert list(load(path).models) == ["pop22"]


# ---- the catalog's text


MODELS = """
# ---- models

[models.elm] # a tree
name = "Elm" # as told
version = "v11"
series = "Trees"
released = "2026-01-01"
since = "v22"
source = { kind = "git", ref = "REF", format = "split" } # keep me

# ---- releases

[release.v22]
contract = "warp"
""".replace("REF", REFS[2])
CATALOG = starter.CATALOG + MODELS


def test_comments_order_and_sections_are_kept(tmp_path):
    path = write(tmp_path / "models.toml", CATALOG)
    manifest = write(tmp_path / "names.json", [ENTRY, ENTRY | {"id": "elm", "name": "Elm the Great"}])
    imported(path, write(tmp_path / "m_v22.json", {"pop22": git(REFS[0])}), manifest=manifest)
    text = path.read_text()
    assert 'name = "Elm the Great" # as told' in text
    assert "[models.elm] # a tree" in text
    head, _, rest = text.partition("# ---- models")
    assert head == CATALOG.partition("# ---- models")[0]
    models, _, releases = rest.partition("# ---- releases")
    assert "[models.pop22]" in models
    assert releases == CATALOG.partition("# ---- releases")[2]
    assert list(load(path).models) == ["elm", "pop22"]
    removed = set(CATALOG.splitlines()) - set(text.splitlines())
    assert removed == {'name = "Elm" # as told', 'version = "v11"', 'released = "2026-01-01"'}


def test_line_ends_are_kept(tmp_path):
    path = tmp_path / "models.toml"
    path.write_bytes(CATALOG.replace("\n", "\r\n").encode())
    imported(path, write(tmp_path / "m_v23.json", {"pop22": git(REFS[0])}))
    assert b"pop22" in path.read_bytes()
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n")
    assert load(path).models["pop22"].since == "v23"


def test_a_catalog_that_would_not_be_valid_is_not_written(tmp_path):
    path = write(tmp_path / "models.toml", CATALOG.replace('version = "v11"', 'version = "eleven"'))
    before = path.read_bytes()
    with pytest.raises(CatalogError, match=r"models.elm.version"):
        imported(path, write(tmp_path / "m_v22.json", {"pop22": git(REFS[0])}))
    path.write_text("[models")
    with pytest.raises(CatalogError, match="not TOML"):
        imported(path, write(tmp_path / "m_v22.json", {"pop22": git(REFS[0])}))
    assert before != path.read_bytes() == b"[models"


texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
plain = st.one_of(texts, st.booleans(), st.integers(0, 9))
tables = st.dictionaries(st.from_regex("[a-z_]{1,6}", fullmatch=True), plain, max_size=3)
heads = st.sampled_from(
    [
        "",
        '[release.v1]\nx = """\n[models.fake]\n"""\n',
        "[models]\n",
        '[models.a]\ny = [\n["b"],\n]\n\n# end\n\n[z]\n',
    ]
)


@settings(deadline=None)
@given(
    heads, st.dictionaries(st.from_regex("m[a-z0-9_-]{0,5}", fullmatch=True), tables, min_size=1, max_size=3)
)
def test_models_put_into_any_text_are_read_again_and_nothing_else_changes(head, models):
    blocks = "".join(catalogtext.block(one, table) for one, table in models.items())
    got = tomllib.loads(catalogtext.with_models(head, blocks, models))
    before = tomllib.loads(head)
    assert got == {**before, "models": {**before.get("models", {}), **models}}


# ---- add


@pytest.fixture
def catalog(tmp_path) -> Path:
    path = tmp_path / "yard" / "models.toml"
    path.parent.mkdir()
    path.write_text(CATALOG)
    return path


def onnx(folder: Path, architecture: str, prefix: str = "") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for role, content in generate(architecture, seed=1, width=4).items():
        written.append(folder / f"{prefix}{role}.onnx")
        written[-1].write_bytes(content)
    return written


def test_a_split_model_is_added_where_it_lies_with_its_id_from_its_names(catalog):
    files = onnx(catalog.parent / "staged", "vision-conv+attention", "oak_")
    added = adding.add_files(catalog, files, adding.Asked(version="v12", release="v22"))
    model = load(catalog).models["oak"]
    assert (added.id, added.copied) == ("oak", ())
    assert model.source.options == {"path": "staged", "format": "split"}
    assert (model.version, model.since, model.name) == ("v12", "v22", "oak")


def test_a_supercombo_needs_no_version_and_no_telling_name(catalog, tmp_path):
    (file,) = onnx(tmp_path / "elsewhere", "supercombo-24")
    odd = file.rename(file.with_name("downloaded.onnx"))
    added = adding.add_files(catalog, [odd], adding.Asked(id="lebowski", gpu=True))
    model = load(catalog).models["lebowski"]
    assert (model.version, model.uses_external_gpu, model.flags.name) == ("v15", True, "usbgpu")
    assert model.source.options == {"path": "sources/lebowski", "format": "supercombo"}
    assert [path.read_bytes() for path in added.copied] == [odd.read_bytes()]
    assert added.copied[0].name == "driving_supercombo.onnx"


def test_files_beside_strangers_are_copied(catalog, tmp_path):
    files = onnx(tmp_path / "mixed", "vision-conv+attention", "oak_")
    onnx(tmp_path / "mixed", "supercombo-24", "ash_")
    added = adding.add_files(catalog, files, adding.Asked(version="v12"))
    assert sorted(path.name for path in added.copied) == ["driving_policy.onnx", "driving_vision.onnx"]


def test_a_generic_network_is_added_when_it_is_called_one(catalog):
    (file,) = onnx(catalog.parent, "generic-mlp")
    with pytest.raises(SourceError, match="neither its name nor its inputs"):
        adding.add_files(catalog, [file], adding.Asked(id="mlp"))
    adding.add_files(catalog, [file], adding.Asked(id="mlp", format="generic"))
    model = load(catalog).models["mlp"]
    assert (model.type, model.source.options["path"]) == ("generic", file.name)


def test_a_new_model_gets_the_version_that_its_files_suggest(catalog):
    adding.add_files(catalog, onnx(catalog.parent / "oak", "vision-conv+attention", "oak_"), adding.Asked())
    assert load(catalog).models["oak"].version == "v11"


@pytest.mark.parametrize(
    ("make", "asked", "told"),
    [
        (lambda d: onnx(d, "vision-conv+attention"), {"version": "v11"}, "--id ID"),
        (lambda d: onnx(d, "vision-conv+attention", "oak_")[:1], {"version": "v11"}, "lacks"),
        (
            lambda d: onnx(d, "supercombo-24", "a_") + onnx(d, "supercombo-24", "b_"),
            {"id": "c"},
            "are both a",
        ),
        (lambda d: onnx(d, "dmonitoring"), {"id": "dm"}, "[monitoring]"),
        (lambda d: [cut(onnx(d, "generic-mlp")[0])], {"id": "x", "format": "generic"}, "truncated"),
        (lambda d: [unheard(d / "net.onnx")], {"id": "x", "format": "generic"}, "does not implement Unheard"),
        (
            lambda d: [onnx(d, "generic-mlp")[0].rename(d / "My Net.onnx")],
            {},
            "My Net.onnx --id my-net --format generic",
        ),
        (lambda d: onnx(d / "Oak Tree", "vision-conv+attention"), {}, "--id oak-tree"),
        (lambda d: [d / "none.onnx"], {}, "no such file"),
        (lambda d: [write(d / "driving_supercombo.onnx", POINTER)], {"id": "x"}, "pointer"),
    ],
)
def test_what_cannot_be_inferred_is_asked_for_and_nothing_is_written(catalog, tmp_path, make, asked, told):
    (tmp_path / "staged").mkdir()
    with pytest.raises(YardError) as caught:
        adding.add_files(catalog, make(tmp_path / "staged"), adding.Asked(**asked))
    assert told in str(caught.value)
    assert catalog.read_text() == CATALOG
    assert sorted(path.name for path in catalog.parent.iterdir()) == ["models.toml"]


def cut(path: Path) -> Path:
    os.truncate(path, path.stat().st_size - 9)
    return path


def unheard(path: Path) -> Path:
    """A network of an operator that no tinygrad has."""
    helper = onnx_package.helper
    values = [helper.make_tensor_value_info(name, 1, [1, 4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Unheard", ["x"], ["y"])], "g", values[:1], values[1:])
    path.write_bytes(helper.make_model(graph, ir_version=8).SerializeToString())
    return path


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'e' * 64}\nsize 12345\n"


def test_a_known_model_keeps_its_source_until_told_and_its_version(catalog, tmp_path):
    files = onnx(tmp_path / "new", "vision-conv+attention", "elm_")
    with pytest.raises(SourceError, match=f"another source.*{REFS[2]}"):
        adding.add_files(catalog, files, adding.Asked())
    adding.add_files(catalog, files, adding.Asked(update_sources=True))
    model = load(catalog).models["elm"]
    assert (model.version, model.source.kind) == ("v11", "file")
    assert "[models.elm] # a tree" in catalog.read_text()


def committed(folder: Path, *files: str) -> str:
    run = lambda *words: subprocess.run(  # noqa: E731
        [needs("git"), "-C", folder, "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    folder.mkdir()
    run("init", "-q")
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(POINTER)
    run("add", ".")
    run("commit", "-q", "-m", "models")
    return run("rev-parse", "HEAD")


@pytest.mark.parametrize(
    ("files", "form"),
    [(("driving_supercombo",), "supercombo"), (("driving_vision", "driving_policy"), "split")],
)
def test_a_commit_is_added_with_the_format_that_its_files_tell(catalog, tmp_path, files, form):
    fork = tmp_path / "fork"
    ref = committed(fork, *(f"selfdrive/modeld/models/{name}.onnx" for name in files))
    asked = adding.Asked(id="oak", version="v12")
    adding.add_ref(catalog, ref, str(fork), asked)
    assert load(catalog).models["oak"].source.options == {"ref": ref, "format": form, "repository": str(fork)}


def test_a_commit_that_cannot_be_listed_needs_a_format_and_an_id(catalog):
    everything = r"--id ID --format split or supercombo --version vNN"
    with pytest.raises(SourceError, match=everything):
        adding.add_ref(catalog, REFS[0], None, adding.Asked())
    with pytest.raises(SourceError, match="--format split or supercombo"):
        adding.add_ref(catalog, REFS[0], None, adding.Asked(id="oak", version="v12"))
    adding.add_ref(catalog, REFS[0], None, adding.Asked(id="oak", format="supercombo"))
    assert load(catalog).models["oak"].version == "v15"


# ---- init


def test_a_new_folder_has_all_it_needs_and_nothing_is_written_over(tmp_path, monkeypatch):
    monkeypatch.delenv("MODELS_WORKSPACE", raising=False)
    folder = tmp_path / "new földer"
    source_map = write(tmp_path / "model_source_map_v22.json", {"pop22": git(REFS[0])})
    made = lay_out(folder, None, [source_map])
    assert len((folder / "dodo.py").read_text().splitlines()) == 3
    assert list(load(folder / "models.toml").models) == ["example"]
    kept = folder / "artifacts" / "source-maps" / source_map.name
    assert kept.read_bytes() == source_map.read_bytes()
    assert {path.name for path in made if path.is_dir()} >= {
        "onnx",
        "compiled",
        "results",
        "logs",
        "manifests",
    }
    (folder / "models.toml").write_text("mine")
    kept.write_text("mine too")
    assert lay_out(folder, None, [source_map]) == []
    assert (folder / "models.toml").read_text() == "mine"
    assert kept.read_text() == "mine too"


def test_init_says_what_to_type_next(tmp_path, monkeypatch):
    monkeypatch.delenv("MODELS_WORKSPACE", raising=False)
    assert doit(tmp_path, "init", "yard")[1].splitlines()[-1].startswith("next: cd yard, then doit builds")
    assert doit(tmp_path, "init", "yard")[1] == "yard: everything is laid out already\n"


def test_the_new_folder_is_one_that_doit_can_list(tmp_path, monkeypatch):
    monkeypatch.delenv("MODELS_WORKSPACE", raising=False)
    lay_out(tmp_path / "yard", None, [])
    doit = [sys.executable, "-m", "doit", "list", "--all", "--quiet"]
    ran = subprocess.run(doit, cwd=tmp_path / "yard", capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "pkl:example" in ran.stdout.split()


def test_the_example_of_a_new_folder_is_one_that_can_be_made(tmp_path, monkeypatch):
    monkeypatch.delenv("MODELS_WORKSPACE", raising=False)
    lay_out(tmp_path / "yard", None, [])
    code, out, err = doit(tmp_path / "yard", "onnx:example")
    assert code == 0, out + err
    made = [path.name for path in (tmp_path / "yard" / "artifacts" / "onnx" / "example").iterdir()]
    assert sorted(made) == ["example_driving_policy.onnx", "example_driving_vision.onnx"]


def test_the_workspace_may_lie_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("MODELS_WORKSPACE", str(tmp_path / "drive"))
    lay_out(tmp_path / "yard", None, [])
    assert (tmp_path / "drive" / "onnx").is_dir()
    assert not (tmp_path / "yard" / "artifacts").exists()


# ---- the commands


def test_the_commands_make_a_catalog_from_nothing(tmp_path, maps):
    folder = tmp_path / "a yard"
    assert doit(tmp_path, "init", folder)[0] == 0
    words = [f"--source-map={maps[0]}", "--source-map", maps[1], "--dry-run"]
    code, out, _ = doit(folder, "import", *words)
    assert code == 0 and "\nmodels.toml: not written (--dry-run)\n" in out
    assert "\nmodels.toml: written\n" in doit(folder, "import", *words[:-1])[1]
    assert doit(folder, "import", *words[:-1])[1].endswith("models.toml: unchanged\n")
    assert len(load(folder / "models.toml").models) == 74
    (file,) = onnx(folder / "in", "supercombo-24", "ash=_")
    code, out, err = doit(folder, "add", file, "--id", "ash", "--release=v23")
    assert (code, err) == (0, "")
    assert "[models.ash]" in out
    assert out.endswith("next: doit pkl:ash\n")
    assert load(folder / "models.toml").models["ash"].since == "v23"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["import"], "nothing to import"),
        (["import", "map.json"], "too many arguments: map.json\n  → doit import --source-map FILE"),
        (["import", "--source-map", "none.json"], "none.json: cannot be read"),
        (["import", "--source-map", "none.json", "--release", "next"], "a generation such as v22"),
        (["import", "--source-maps", "none.json"], "--source-maps"),
        (["add"], "expected ONNX files or a --ref, got neither"),
        (["add", "--ref", "main", "--id", "x", "--format", "split", "--version", "v11"], "git commit"),
        (["add", "--onnx", "none.onnx"], "none.onnx: no such file"),
        (["init", ".", "--source-map", "none.json"], "none.json: no such file"),
    ],
)
def test_mistakes_are_told_in_one_sentence_and_write_nothing(tmp_path, words, told):
    code, _, err = doit(tmp_path, *words)
    assert code == 2
    assert told in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_an_unusable_source_is_told_by_the_exit_code_too(tmp_path):
    write(tmp_path / "m_v22.json", {"bad": git("main"), "pop22": git(REFS[0])})
    code, out, _ = doit(tmp_path, "import", "--source-map", "m_v22.json")
    assert code == 1
    assert "unusable source: bad" in out
    assert list(load(tmp_path / "models.toml").models) == ["pop22"]
