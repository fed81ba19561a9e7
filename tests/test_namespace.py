"""New IDs for a release: the real catalog, the rules one by one, and what must hold for any catalog."""

import json
import os
import random
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.errors import CatalogError
from rules.releasing.namespace import id_flaw, placed, rename

RECONCILED = """
opv8→opv83 opv9→opv93 opv10→opv103 opv11→opv113 opv12→opv123 opv13→opv133 op16→op163 op16d→op16d3
op16dv2→op16dv23 rlv1dl→rlv1dl3 deeprl3→deeprl33 deeprl3v2→deeprl3v23 ms2→ms23 pp222→pp2223 nn222→nn2223
pop2→pop23 nid22→nid223 kerrygold22→kerrygold223 karnbir→karnbir3 karnbir2→karnbir23 michael-rl→michael-rl3
michael-rl2→michael-rl23 tobyrl→tobyrl3 nopp→nopp3 drl→drl3 deeprl33→deeprl333 rl34→rl343 gyhu→gyhu3
rdf2→rdf23
"""


@pytest.fixture
def catalog() -> list[str]:
    folder = os.environ.get("MODELYARD_DATA")
    if not folder:
        pytest.skip("MODELYARD_DATA does not name the folder of real files")
    maps = [Path(folder, "catalog", f"model_source_map_{release}.json") for release in ("v22", "v23")]
    return [model for file in maps for model in json.loads(file.read_text())]


def v23(ids, explicit=None):
    return rename(ids, version="v23", suffix="3", explicit=explicit or {})


def line_to_add(error: CatalogError) -> dict[str, str]:
    line = error.fix[error.fix.index("[release") :].replace("] ids", "]\nids")
    (release,) = tomllib.loads(line)["release"].values()
    return release["ids"]


def test_the_real_catalog_becomes_the_reconciled_names(catalog):
    names = v23(catalog, {"deeprl3": "deeprl33"})
    assert len(catalog) == 73
    assert names == {model: f"{model}3" for model in catalog}
    assert list(names) == catalog
    reconciled = dict(pair.split("→") for pair in RECONCILED.split())
    assert len(reconciled) == 29
    assert {old: names[old] for old in reconciled} == reconciled


def test_the_real_catalog_alone_depends_on_order_and_the_error_gives_the_line(catalog):
    seen = set()
    for seed in range(5):
        random.Random(seed).shuffle(catalog)
        with pytest.raises(CatalogError) as caught:
            v23(catalog)
        seen.add(str(caught.value))
    (message,) = seen
    assert "models.toml: release.v23.ids: 'deeprl3' and 'deeprl3v2' both become 'deeprl3v23'" in message
    assert message.endswith('[release.v23] ids = { "deeprl3" = "deeprl33" }')
    assert v23(catalog, line_to_add(caught.value))["deeprl3v2"] == "deeprl3v23"


def test_the_line_keeps_the_explicit_names_that_are_there():
    with pytest.raises(CatalogError) as caught:
        v23(["a", "a3", "av2", "b"], {"b": "bee"})
    assert line_to_add(caught.value) == {"b": "bee", "a": "a3"}


def test_names_are_applied_once():
    assert v23(["deeprl3", "deeprl33"], {"deeprl3": "deeprl33"}) == {
        "deeprl3": "deeprl33",
        "deeprl33": "deeprl333",
    }


@pytest.mark.parametrize(
    ("ids", "explicit", "expected"),
    [
        (["a"], {}, {"a": "a3"}),
        (["a", "a3"], {}, {"a": "av23", "a3": "a33"}),
        (["a", "a3", "av23"], {}, {"a": "av23_", "a3": "a33", "av23": "av233"}),
        (["a", "b"], {"b": "a3"}, {"a": "a3_", "b": "a3"}),
        (["a", "b", "c"], {"b": "a3", "c": "a3_"}, {"a": "a3__", "b": "a3", "c": "a3_"}),
        (["a", "b"], {"a": "b", "b": "a"}, {"a": "b", "b": "a"}),
    ],
)
def test_the_rule(ids, explicit, expected):
    assert v23(ids, explicit) == expected
    assert v23(ids[::-1], explicit) == expected


@pytest.mark.parametrize(
    ("ids", "explicit", "what", "fix"),
    [
        (["pop22", "op22"], {"pop2": "x"}, "release.v23.ids.pop2: no such model", "did you mean 'pop22'?"),
        (["pop22"], {"zzz": "x"}, "release.v23.ids.zzz: no such model", "remove the entry"),
        (["a", "b"], {"a": "x", "b": "x"}, "'a' and 'b' are both named 'x'", "name of its own"),
        (["a"], {"a": "X"}, "release.v23.ids.a: not a model ID: expected ^[a-z0-9]", "a to z"),
        (["a"], {"a": "x_driving_y"}, "expected no '_driving_'", ""),
        (["a", "a"], {}, "'a' is listed twice", "remove one"),
        (["a\n"], {}, r"got 'a\n'", ""),
        (["_a"], {}, "got '_a'", ""),
    ],
)
def test_refusals(ids, explicit, what, fix):
    with pytest.raises(CatalogError) as caught:
        v23(ids, explicit)
    assert what in caught.value.what
    assert caught.value.what.startswith("models.toml: ")
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("version", "suffix"), [("23", "3"), ("v23\n", "3"), ("v23", ""), ("v23", "é"), ("v23", "3,")]
)
def test_a_bad_release_or_suffix_is_refused(version, suffix):
    with pytest.raises(CatalogError):
        rename(["a"], version=version, suffix=suffix, explicit={})


def test_a_derived_name_is_checked_too():
    with pytest.raises(CatalogError, match="got 'a_driving_3'"):
        rename(["a_driving"], version="v23", suffix="_3", explicit={})


# Few letters, so that names collide often.
short = st.text("a3v2_", min_size=1, max_size=5).filter(lambda text: not id_flaw(text))
catalogs = st.lists(short, unique=True, max_size=12)


@st.composite
def overridden(draw):
    ids = draw(catalogs)
    chosen = draw(st.lists(st.sampled_from(ids), unique=True, max_size=4)) if ids else []
    names = draw(st.lists(short, unique=True, min_size=len(chosen), max_size=len(chosen)))
    return ids, dict(zip(chosen, names, strict=True))


def outcome(ids, explicit):
    try:
        return v23(ids, explicit)
    except CatalogError as error:
        return str(error)


@given(overridden(), st.randoms(use_true_random=False))
def test_any_order_gives_the_same_names_or_the_same_error(case, chance):
    ids, explicit = case
    first = outcome(ids, explicit)
    shuffled = chance.sample(ids, len(ids))
    items = list(explicit.items())
    second = outcome(shuffled, dict(items))
    assert first == second
    if isinstance(first, dict):
        assert list(second) == shuffled


@given(overridden())
def test_names_are_injective_explicit_ones_hold_and_nothing_cascades(case):
    ids, explicit = case
    names = outcome(ids, explicit)
    if isinstance(names, str):
        return
    assert list(names) == ids
    assert len(set(names.values())) == len(ids)
    assert explicit.items() <= names.items()
    for old in set(ids) - set(explicit):
        derived = names[old].rstrip("_")
        assert derived in {(old + "3").rstrip("_"), (old + "v23").rstrip("_")}
        assert names[old] not in ids
        if old + "3" not in {*ids, *explicit.values()}:
            assert names[old] == old + "3"


@given(overridden())
def test_adding_the_line_that_errors_give_always_ends_in_success(case):
    ids, explicit = case
    for _ in range(len(ids) + 1):
        try:
            names = v23(ids, explicit)
        except CatalogError as error:
            added = line_to_add(error)
            assert explicit.items() < added.items()
            explicit = added
        else:
            assert len(set(names.values())) == len(ids)
            return
    pytest.fail("the advice goes in circles")


# ---- order


@pytest.mark.parametrize(
    ("ids", "after", "told"),
    [
        ("a rdfv23 b rdf23", {"rdf23": "rdfv23"}, "a rdfv23 rdf23 b"),
        ("rdf23 a rdfv23", {"rdf23": "rdfv23"}, "a rdfv23 rdf23"),
        ("rdf23 a b", {"rdf23": "rdfv23"}, "a b rdf23"),
        ("a rdfv23 b", {"rdf23": "rdfv23"}, "a rdfv23 b"),
        ("a b c d", {"d": "a", "b": "d"}, "a d b c"),
        ("a b c d", {"d": "a", "c": "a"}, "a c d b"),
        ("a b c", {"a": "x", "b": "a"}, "c a b"),
        ("a b", {}, "a b"),
    ],
)
def test_an_id_stands_right_after_its_anchor_or_at_the_end(ids, after, told):
    assert placed(ids.split(), after) == told.split()


SOME = st.sampled_from("abcdefxy")


@given(st.permutations("abcdef"), st.lists(st.tuples(SOME, SOME)))
def test_no_id_is_lost_and_the_others_keep_their_order(ids, pairs):
    after = {one: anchor for one, anchor in pairs if one > anchor}  # so that there is no cycle
    got = placed(ids, after)
    assert sorted(got) == sorted(ids)
    free = [one for one in ids if one not in after]
    assert [one for one in got if one not in after] == free
    for one, anchor in after.items():
        if one in ids and anchor in ids:
            between = got[got.index(anchor) + 1 : got.index(one)]
            assert all(it in after for it in between)
        elif one in ids:
            assert all(it in after for it in got[got.index(one) :])
