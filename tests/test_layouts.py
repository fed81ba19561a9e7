"""The other layouts: the same networks say the same, verify, replay, and stay out of releases."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CAMERAS, HEADS, MORE, STEPS, Driver
from contract import Project, as_client, generated, model

from rules import catalog, layouts
from rules.errors import CatalogError
from rules.graph import Graph
from rules.inspection.artifact import inspect
from rules.playback import replaying
from rules.workspace import Workspace

BESIDE = """
[flags.beside]
extends = "cpu"
WARP_DEV = "CPU"
FRAME_DEV = "CPU"
NUM_CPU_THREADS = 1
PARALLEL = 0
"""
SPLIT = ("on_policy", "off_policy")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The twins of two models of `everything` in other layouts; the split one is for an external GPU."""
    split = ('layout = "openpilot-split"', "uses_external_gpu = true", 'flags = "beside"')
    tables = model("elm3-o", generated("multi-policy"), *split)
    tables += model("ash-i", generated("supercombo-24"), 'layout = "iqpilot-supercombo"')
    project = Project(tmp_path_factory.mktemp("others"), BESIDE + tables)
    project.doit("-n", "2")
    return project


def test_each_layout_has_the_files_its_runtime_looks_for(others: Project) -> None:
    sizes = ["1344x760", "1928x1208"]
    networks = [f"driving_{one}" for one in ("off_policy", "on_policy", "vision")]
    split = [f"{one}_{what}.pkl" for one in networks for what in ("metadata", "tinygrad")]
    split += [f"warp_{one}_tinygrad.pkl" for one in sizes]
    assert sorted(others.files("compiled")) == [
        "driving_supercombo_ash-i.pkl",
        *(f"elm3-o/{one}" for one in sorted(split)),
    ]


def test_the_inspector_knows_the_layouts(others: Project) -> None:
    whole = inspect(others.path("compiled/driving_supercombo_ash-i.pkl"))
    assert (whole.verdict, whole.layout, whole.contract) == ("ok", "iqpilot-supercombo", "policy")
    assert (whole.frame_skip, sorted(whole.cameras), whole.out_of_band) == (4, sorted(CAMERAS), False)
    roles = {}
    for name in sorted(others.files("compiled/elm3-o")):
        report = inspect(others.path(f"compiled/elm3-o/{name}"))
        assert report.verdict == "ok", name
        assert report.out_of_band == (report.layout != "metadata"), name
        roles[name] = (report.layout, report.role)
    assert roles["driving_vision_tinygrad.pkl"] == ("openpilot-split", "vision")
    assert roles["driving_on_policy_tinygrad.pkl"] == ("openpilot-split", "policy")
    assert roles["warp_1344x760_tinygrad.pkl"] == ("openpilot-split", "warp")
    assert roles["driving_off_policy_metadata.pkl"] == ("metadata", None)


def steps() -> Iterator[str]:
    """The keys of every frame that a drive ran."""
    yield from (f"{camera}.{step}" for camera in CAMERAS for step in range(STEPS))


def test_openpilot_s_runtime_drives_the_split_files(others: Project, drive: Driver, tmp_path: Path) -> None:
    """It gets what the single artifact of the same networks says, and every head."""
    single = drive("elm3")
    told, split = as_client("openpilot", tmp_path, others.path("compiled/elm3-o"))
    heads = [sorted({*HEADS, *MORE["multi-policy"]})] * 10
    assert told["heads"] == dict.fromkeys(CAMERAS, heads)
    for key in steps():
        for index in range(1 + len(SPLIT)):
            left, right = split[f"{key}.out.{index}"], single.arrays[f"{key}.out.{index}"]
            np.testing.assert_allclose(left, right, rtol=0, atol=1e-5)


def test_iqpilot_s_runtime_drives_its_file(others: Project, drive: Driver, tmp_path: Path) -> None:
    """It gets what StarPilot's artifact of the same network says, and every head."""
    single = drive("ash-p")
    told, arrays = as_client("iqpilot", tmp_path, others.path("compiled/driving_supercombo_ash-i.pkl"))
    cameras = [repr(camera) for camera in CAMERAS.values()]
    assert told["keys"] == ["'metadata'", "'frame_skip'", "'run_policy'", *cameras]
    heads = [sorted({*HEADS, *MORE["supercombo-24"]})] * 10
    assert told["heads"] == dict.fromkeys(CAMERAS, heads)
    for key in steps():
        assert (arrays[f"{key}.out.0"] == single.arrays[f"{key}.out.0"]).all()


@pytest.mark.parametrize(("model_id", "roles"), [("elm3-o", ("vision", *SPLIT)), ("ash-i", ("run_policy",))])
def test_verified_in_a_fresh_process(others: Project, model_id: str, roles: tuple[str, ...]) -> None:
    made, seen = (others.record(f"{model_id}_{name}") for name in ("artifact", "validation"))
    assert set(seen["facts"]["captures"]) == {*roles, *CAMERAS}
    assert made["facts"]["replay"] == seen["facts"]["replay"]
    assert [one["sha256"] for one in made["outputs"]] == [one["sha256"] for one in seen["outputs"]]


@pytest.mark.parametrize("model_id", ["elm3-o", "ash-i"])
def test_replayed_at_20_hz(others: Project, model_id: str, tmp_path: Path) -> None:
    file = others.folder / "models.toml"
    graph = Graph(catalog.load(file), Workspace(others.workspace))
    wish = replaying.Wish(camera=catalog.Camera(1344, 760), seconds=0.5, messages=tmp_path / "said.jsonl")
    report = replaying.replay(graph, model_id, wish)
    assert report.good
    assert set(report.rides[0].finite) >= {"plan", "lane lines", "pose", "lead"}
    said = [json.loads(line) for line in wish.messages.read_text().splitlines()] if wish.messages else []
    assert len(said) == report.rides[0].frames > 0
    assert said[0]["modelV2"]["position"]["x"]


def test_how_it_is_pickled_is_part_of_the_key(others: Project) -> None:
    split, whole = (others.record(f"{one}_artifact")["content"]["settings"] for one in ("elm3-o", "ash-i"))
    assert (split["pickle"], split["layout"]) == ("out-of-band", "openpilot-split")
    assert (whole["pickle"], whole["layout"]) == ("in-band", "iqpilot-supercombo")


@pytest.mark.parametrize(
    ("layout", "architecture", "told"),
    [
        ("openpilot-split", "supercombo-24", "make a supercombo, expected a vision_policy or"),
        ("iqpilot-supercombo", "vision-mixer+gru", "make a vision_policy, expected a supercombo"),
    ],
)
def test_a_layout_that_the_files_cannot_have(
    tmp_path: Path, layout: str, architecture: str, told: str
) -> None:
    project = Project(tmp_path, model("odd", generated(architecture), f'layout = "{layout}"'))
    done = project.doit("pkl:odd", fails=True)
    assert told in done.stdout
    assert not project.path("compiled").exists()


def refusal(tmp_path: Path, *lines: str) -> str:
    """What the catalog says of one model with these lines."""
    release = '[release.v22]\ncontract = "warp"\n'
    project = Project(tmp_path, model("odd", generated("supercombo-24"), *lines) + release)
    with pytest.raises(CatalogError) as caught:
        catalog.load(project.folder / "models.toml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            ('layout = "openpilot-split"', 'since = "v22"'),
            'models.odd.layout: found "openpilot-split"; expected starpilot-single, the only layout',
        ),
        (
            ('layout = "iqpilot-supercombo"', 'contract = "warp"'),
            'models.odd.contract: found "warp"; expected policy, the only contract',
        ),
        (
            ('layout = "openpilot-split"', 'type = "supercombo"'),
            'models.odd.type: found "supercombo"; expected vision_policy or vision_multi_policy',
        ),
        (('layout = "openpilot"',), "did you mean openpilot-split?"),
    ],
)
def test_what_the_catalog_refuses(tmp_path: Path, lines: tuple[str, ...], told: str) -> None:
    assert told in refusal(tmp_path, *lines)


def test_a_layout_brings_its_contract(tmp_path: Path) -> None:
    def contract(layout: str) -> Any:
        text = model("one", generated("supercombo-24"), f'layout = "{layout}"')
        project = Project(tmp_path / layout, text)
        return catalog.load(project.folder / "models.toml").models["one"].contract

    assert [contract(one) for one in (layouts.RELEASED, layouts.SPLIT, layouts.SUPERCOMBO)] == [
        "warp",
        "warp",
        "policy",
    ]
