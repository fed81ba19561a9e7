"""The catalog: what a good one holds, what each mistake says, and that the cache changes nothing."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from contract import HEAD
from hypothesis import given, settings
from hypothesis import strategies as st

from rules import catalog, faults
from rules.catalog import Camera
from rules.errors import CatalogError
from rules.sources import generated

ROOT = Path(__file__).parent.parent
SHIPPED = [ROOT / "models.toml", ROOT / "examples" / "starpilot" / "models.toml"]

GOOD = (
    HEAD
    + """
[flags.qcom]
DEV = "QCOM"
IMAGE = 2
requires = "device:QCOM"

[models.pop2]
name = "Poplar 2"
version = "v11"
series = "Trees"
released = "2026-03-02"
since = "v22"
source = { kind = "generated", architecture = "supercombo-24", seed = 1, width = 8 }

[models.ash]
name = "Ash"
version = "v15"
series = "Shrubs"
released = "2026-07-20"
since = "v23"
flags = "qcom"
source = { ref = "62bf6fb072880905a4c490f0f4f4a6b3c23346ec", format = "split" }

[release.v22]
contract = "warp"

[release.v23]
from = "v22"
suffix = "3"
ids = { ash = "ashgrove" }
"""
)
CPU = {
    "CC": "echo",
    "DEV": "CPU:X86",
    "FLOAT16": "1",
    "IMAGE": "0",
    "NUM_CPU_THREADS": "1",
    "PARALLEL": "0",
}


def write(tmp_path, text):
    path = tmp_path / "models.toml"
    path.write_text(text, "utf-8")
    return path


def load(tmp_path, text, **options):
    return catalog.load(write(tmp_path, text), machine="x86_64", **options)


def refusal(tmp_path, text):
    with pytest.raises(CatalogError) as caught:
        load(tmp_path, text)
    return caught.value


def line_of(text, start):
    return next(number for number, line in enumerate(text.split("\n"), 1) if line.startswith(start))


# ---- good catalogs


def test_a_good_catalog(tmp_path):
    found = load(tmp_path, GOOD)
    pop2, ash = found.models.values()
    assert (pop2.id, pop2.name, pop2.version, pop2.series) == ("pop2", "Poplar 2", "v11", "Trees")
    assert (pop2.released, pop2.since, pop2.type, pop2.frame_skip) == ("2026-03-02", "v22", None, None)
    assert (pop2.contract, pop2.model_size, pop2.community_favorite) == ("warp", (512, 256), False)
    assert pop2.cameras == (Camera(1928, 1208), Camera(1344, 760))
    assert str(pop2.cameras[0]) == "1928x1208"
    assert pop2.flags.values == CPU
    assert pop2.source.kind == "generated"
    assert pop2.source.options == {"architecture": "supercombo-24", "seed": 1, "width": 8}
    assert (ash.flags.name, ash.flags.requires, ash.flags.expected_device) == ("qcom", "device:QCOM", "QCOM")
    assert (ash.source.kind, ash.source.options["format"]) == ("git", "split")
    assert (ash.contract, found.monitoring, found.defaults.frame_skip) == ("warp", None, 4)
    assert found.toolchains["default"].tinygrad == "0.14.0"


def test_members_are_the_origins_first_then_those_new_in_the_release(tmp_path):
    late = GOOD.replace('since = "v22"', 'since = "v23"', 1).replace(
        'since = "v23"\nflags', 'since = "v22"\nflags'
    )
    found = load(tmp_path, late)
    ids = [[model.id for model in found.members(release)] for release in found.releases.values()]
    assert ids == [["ash"], ["ash", "pop2"]]


def test_the_cache_is_made_of_everything_that_checks():
    used = [one for one in vars(faults).values() if isinstance(one, ModuleType) and "rules" in one.__name__]
    assert {Path(one.__file__) for one in used} <= set(catalog.MADE_OF)
    assert len(used) >= 3


def test_a_place_may_name_an_id_that_is_not_there_yet(tmp_path):
    text = GOOD.replace("suffix", 'after = { pop23 = "rdfv23" }\nsuffix')
    for _ in range(2):  # the second time from the cache
        found = load(tmp_path, text, cache=tmp_path / "catalog.json")
        assert [release.after for release in found.releases.values()] == [{}, {"pop23": "rdfv23"}]


def test_the_real_forks_catalog_lacks_one_line_and_offers_what_else_must_be_chosen(tmp_path):
    text = SHIPPED[1].read_text().replace('# repository = "https://…"', 'repository = "/a/clone"')
    found = load(tmp_path, text)
    assert {model.source.options["repository"] for model in found.models.values()} == {"/a/clone"}
    assert found.monitoring is None and found.flag_sets["usbgpu"].expected_device == "AMD"
    assert all(one.tolerance for one in found.flag_sets.values())
    chosen = load(tmp_path, text.replace("# [monitoring]\n# source", "[monitoring]\nsource")).monitoring
    assert chosen is not None and chosen.source.options["format"] == "dmonitoring"


def test_a_model_overrides_the_defaults(tmp_path):
    extra = 'frame_skip = 1\ncameras = ["640x480"]\nmodel_size = "64x32"\n'
    extra += 'type = "supercombo"\nuses_external_gpu = true\n'
    text = GOOD.replace("[models.ash]\n", "[models.ash]\n" + extra)
    before, _, after = text.partition("[models.ash]")
    after = after.replace('flags = "qcom"', 'flags = "usb"', 1)
    text = f'{before}[models.ash]{after}\n[flags.usb]\nDEV = "USB+AMD:LLVM"\nWARP_DEV = "QCOM"\n'
    model = load(tmp_path, text).models["ash"]
    assert (model.frame_skip, model.model_size, model.cameras) == (1, (64, 32), (Camera(640, 480),))
    assert (model.type, model.uses_external_gpu) == ("supercombo", True)


def test_warp_device_is_warp_dev_or_the_expected_device(tmp_path):
    text = (
        GOOD + '\n[flags.usb]\nDEV = "USB+AMD:LLVM"\nWARP_DEV = "QCOM"\n[flags.usb2]\nDEV = "USB+AMD:LLVM"\n'
    )
    sets = load(tmp_path, text).flag_sets
    assert [(sets[name].expected_device, sets[name].warp_device) for name in ("usb", "usb2")] == [
        ("AMD", "QCOM"),
        ("AMD", "AMD"),
    ]


def test_default_flags_by_machine(tmp_path):
    path = write(tmp_path, GOOD.replace('flags = "cpu"', 'flags = { x86_64 = "cpu", arm64 = "qcom" }', 1))
    chosen = [
        catalog.load(path, machine=machine).models["pop2"].flags.name for machine in ("x86_64", "arm64")
    ]
    assert chosen == ["cpu", "qcom"]
    with pytest.raises(CatalogError, match=r"models\.toml:2: defaults\.flags: .*arm64, x86_64.*riscv64 = "):
        catalog.load(path, machine="riscv64")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("machine", ["x86_64", "arm64", "aarch64"])
def test_the_shipped_catalogs_are_good(path, machine):
    found = catalog.load(path, machine=machine)
    assert found.releases["v23"].ids
    assert all(
        model.flags.values["OPENPILOT_HACKS"] for model in found.models.values() if "qcom" in model.flags.name
    )


def test_the_starpilot_catalog_holds_every_recovered_source():
    data = os.environ.get("MODELYARD_DATA")
    if not data:
        pytest.skip("MODELYARD_DATA does not name the folder of real files")
    found = catalog.load(SHIPPED[1])
    for release in ("v22", "v23"):
        entries = json.loads((Path(data) / "catalog" / f"model_source_map_{release}.json").read_text("utf-8"))
        ours = {
            model.id: {"ref": model.source.options["ref"], "input_format": model.source.options["format"]}
            for model in found.models.values()
            if model.since == release
        }
        assert list(ours.items()) == list(entries.items())


# ---- one mistake each: (replaced, by, start of the line blamed, key, rest of the message in pieces)

MISTAKES = {
    "id in capitals": (
        "[models.pop2]",
        "[models.Pop_2]",
        "[models.Pop_2]",
        "models.Pop_2",
        ["did you mean pop_2?"],
    ),
    "id the client deletes": (
        "[models.pop2]",
        "[models.x_driving_y]",
        "[models.x",
        "models.x_driving_y",
        ["`_driving_`", "sweep"],
    ),
    "ids equal but for case": (
        "[models.ash]",
        "[models.POP2]",
        "[models.POP2]",
        "models.POP2",
        ["case from pop2"],
    ),
    "comma": (
        '"Poplar 2"',
        '"Poplar, 2"',
        "name",
        "models.pop2.name",
        ['"Poplar, 2"', "no comma", "shifts", "did you mean Poplar 2?"],
    ),
    "empty": ('"Trees"', '""', "series", "models.pop2.series", ['""', "not empty"]),
    "blank": ('"Trees"', '"  "', "series", "models.pop2.series", ["not empty"]),
    "line break": ('"Trees"', '"a\\nb"', "series", "models.pop2.series", ["line break"]),
    "line break at the end": ('"Trees"', '"a\\n"', "series", "models.pop2.series", ["line break"]),
    "control character": ('"Trees"', '"a\\u0007"', "series", "models.pop2.series", ["control character"]),
    "version": ('"v11"', '"11"', "version", "models.pop2.version", ['"11"', "did you mean v11?"]),
    "version with a line break": ('"v11"', '"v11\\n"', "version", "models.pop2.version", ["v11"]),
    "date": ('"2026-03-02"', '"2 March"', "released", "models.pop2.released", ['"2 March"', "ISO date"]),
    "no such day": (
        '"2026-03-02"',
        '"2026-02-30"',
        "released",
        "models.pop2.released",
        ["day of the calendar"],
    ),
    "unquoted date": (
        '"2026-03-02"',
        "2026-03-02",
        "released",
        "models.pop2.released",
        ["unquoted", "quotes"],
    ),
    "missing key": ('series = "Trees"\n', "", "[models.pop2]", "models.pop2.series", ["found nothing"]),
    "unknown flag set": (
        'flags = "qcom"',
        'flags = "qcmo"',
        'flags = "qcmo"',
        "models.ash.flags",
        ["did you mean qcom?"],
    ),
    "an external GPU's tag on a model for the device": (
        "[models.ash]",
        "[models.ash]\nuses_external_gpu = true",
        "uses_external_gpu",
        "models.ash.uses_external_gpu",
        ["compiles for QCOM", "flags.usbgpu"],
    ),
    "an external GPU's set without the tag": (
        'DEV = "QCOM"\nIMAGE = 2',
        'DEV = "USB+AMD:LLVM"',
        'flags = "qcom"',
        "models.ash.flags",
        ["USB+AMD:LLVM", "uses_external_gpu = true"],
    ),
    "unknown default flag set": (
        'flags = "cpu"',
        'flags = "cpx"',
        "flags",
        "defaults.flags",
        ["did you mean cpu?"],
    ),
    "unknown toolchain": (
        "[models.ash]",
        '[models.ash]\ntoolchain = "defalt"',
        "toolchain",
        "models.ash.toolchain",
        ["mean default?"],
    ),
    "unknown release": (
        '"v23"\nflags',
        '"v24"\nflags',
        'since = "v24"',
        "models.ash.since",
        ["did you mean v23?"],
    ),
    "unknown source kind": (
        '"generated"',
        '"genrated"',
        "source",
        "models.pop2.source.kind",
        ["mean generated?"],
    ),
    "source without a kind": (
        'kind = "generated", architecture = "supercombo-24", ',
        "",
        "source",
        "models.pop2.source",
        ["kind, ref, path"],
    ),
    "architecture missing": (
        'architecture = "supercombo-24", ',
        "",
        "source",
        "models.pop2.source.architecture",
        ["found nothing"],
    ),
    "seed of the wrong kind": (
        "seed = 1",
        "seed = 1.0",
        "source",
        "models.pop2.source.seed",
        ["1.0", "whole number"],
    ),
    "short commit": ('"62bf6fb0', '"62bf', "source = { ref", "models.ash.source.ref", ["40 hexadecimal"]),
    "unknown key of a source": (
        "width = 8",
        "width = 8, sed = 1",
        "source",
        "models.pop2.source.sed",
        ["mean seed?"],
    ),
    "unknown key of a model": (
        "[models.ash]",
        "[models.ash]\nserie = 1",
        "serie =",
        "models.ash.serie",
        ["mean series?"],
    ),
    "unknown table": ("[release.v22]", "[relase.v22]", "[relase.v22]", "relase", ["did you mean release?"]),
    "unknown key of the defaults": (
        "model_size",
        "modelsize",
        "modelsize",
        "defaults.modelsize",
        ["mean model_size?"],
    ),
    "unknown extends": (
        "IMAGE = 2",
        'IMAGE = 2\nextends = "cpu2"',
        "extends",
        "flags.qcom.extends",
        ["did you mean cpu?"],
    ),
    "extends itself": (
        "IMAGE = 2",
        'extends = "qcom"',
        "extends",
        "flags.qcom.extends",
        ["cycle qcom → qcom"],
    ),
    "extends cycle": (
        "IMAGE = 2",
        'extends = "b"\n[flags.b]\nextends = "c"\n[flags.c]\nextends = "b"',
        'extends = "c"',
        "flags.b.extends",
        ["cycle b → c → b"],
    ),
    "unknown flag": (
        "IMAGE = 2",
        "IMGAE = 2",
        "IMGAE",
        "flags.qcom.IMGAE",
        ["unchecked", "did you mean IMAGE?"],
    ),
    "unknown setting": ("requires", "require", "require ", "flags.qcom.require", ["did you mean requires?"]),
    "flag of the wrong kind": (
        "IMAGE = 2",
        'IMAGE = "2"',
        'IMAGE = "2"',
        "flags.qcom.IMAGE",
        ['"2"', "mean 2?"],
    ),
    "no device": ('DEV = "QCOM"\n', "", "[flags.qcom]", "flags.qcom.DEV", ["found nothing"]),
    "no thread pin": (
        "NUM_CPU_THREADS = 1\n",
        "",
        "[flags.cpu]",
        "flags.cpu.NUM_CPU_THREADS",
        ["bytes depend"],
    ),
    "no parallel pin": ("PARALLEL = 0\n", "", "[flags.cpu]", "flags.cpu.PARALLEL", ["bytes depend"]),
    "absent flag added": (
        "IMAGE = 2",
        'absent = ["IMAGE"]\n[flags.b]\nextends = "qcom"\nIMAGE = 1',
        "IMAGE = 1",
        "flags.b.IMAGE",
        ["absent"],
    ),
    "unknown origin": ('from = "v22"', 'from = "v222"', "from", "release.v23.from", ["did you mean v22?"]),
    "origin near itself": ('from = "v22"', 'from = "v21"', "from", "release.v23.from", ["did you mean v22?"]),
    "origin cycle": (
        'contract = "warp"',
        'from = "v23"',
        'from = "v23"',
        "release.v22.from",
        ["cycle v22 → v23 → v22"],
    ),
    "origin of another contract": (
        'suffix = "3"',
        'contract = "policy"',
        'contract = "policy"',
        "release.v23.contract",
        ["cannot enter"],
    ),
    "model of another contract": (
        "[models.ash]",
        '[models.ash]\ncontract = "policy"',
        "contract",
        "models.ash.contract",
        ["cannot enter", "warp"],
    ),
    "name of an unknown ID": (
        "ids = { ash",
        "ids = { ahs",
        "ids",
        "release.v23.ids.ahs",
        ["did you mean ash?"],
    ),
    "place of an ID that is not published": (
        "suffix",
        'after = { popp3 = "ashgrove" }\nsuffix',
        "after",
        "release.v23.after.popp3",
        ['found "popp3"', "an ID that release v23 publishes", "did you mean pop23?"],
    ),
    "place of a model's own ID": (
        "suffix",
        'after = { ash = "pop23" }\nsuffix',
        "after",
        "release.v23.after.ash",
        ["did you mean ashgrove?"],
    ),
    "place after a model's own ID": (
        "suffix",
        'after = { pop23 = "ash" }\nsuffix',
        "after",
        "release.v23.after.pop23",
        ['found "ash"', "ashgrove, the name of ash in release v23"],
    ),
    "places in a ring": (
        "suffix",
        'after = { pop23 = "ashgrove", ashgrove = "pop23" }\nsuffix',
        "after",
        "release.v23.after.ashgrove",
        ["the cycle ashgrove → pop23 → ashgrove", "a chain that ends"],
    ),
    "place after itself": (
        "suffix",
        'after = { pop23 = "pop23" }\nsuffix',
        "after",
        "release.v23.after.pop23",
        ["the cycle pop23 → pop23"],
    ),
    "place that is no ID": (
        "suffix",
        "after = { pop23 = 3 }\nsuffix",
        "after",
        "release.v23.after.pop23",
        ["found the number 3", "an ID of a-z"],
    ),
    "misspelled table of places": (
        "suffix",
        'aftre = { pop23 = "ashgrove" }\nsuffix',
        "aftre",
        "release.v23.aftre",
        ["an unknown key", "did you mean after?"],
    ),
    "bad name in a release": (
        '"ashgrove"',
        '"Ash Grove"',
        "ids",
        "release.v23.ids.ash",
        ["did you mean ash-grove?"],
    ),
    "odd camera": ('"1344x760"', '"1344x761"', "cameras", "defaults.cameras[1]", ['"1344x761"', "even"]),
    "camera of no size": ('"1344x760"', '"0x760"', "cameras", "defaults.cameras[1]", ["positive"]),
    "camera without x": ('"1344x760"', '"1344"', "cameras", "defaults.cameras[1]", ["width x height"]),
    "camera twice": ('"1344x760"', '"1928x1208"', "cameras", "defaults.cameras", ["each once"]),
    "model size": ('"512x256"', '"512x255"', "model_size", "defaults.model_size", ["even"]),
    "frame skip of 0": (
        "frame_skip = 4",
        "frame_skip = 0",
        "frame_skip",
        "defaults.frame_skip",
        ["from 1 to 20"],
    ),
    "frame skip of 21": (
        "frame_skip = 4",
        "frame_skip = 21",
        "frame_skip",
        "defaults.frame_skip",
        ["number 21"],
    ),
    "frame skip true": ("frame_skip = 4", "frame_skip = true", "frame_skip", "defaults.frame_skip", ["true"]),
    "huge number": ("IMAGE = 2", "IMAGE = 0x" + "f" * 5000, "IMAGE = 0x", "flags.qcom.IMAGE", ["64 bits"]),
    "two toolchains in one": (
        'tinygrad = "0.14.0"',
        'tinygrad = "0.14.0"\npath = "x"',
        "[toolchains",
        "toolchains.default",
        ["either tinygrad"],
    ),
    "a toolchain from git": (
        'tinygrad = "0.14.0"',
        'git = "x"',
        "[toolchains",
        "toolchains.default",
        ["the keys git", "a clone"],
    ),
    "unknown architecture": (
        '"supercombo-24"',
        '"supercombo-25"',
        "source",
        "models.pop2.source.architecture",
        ['"supercombo-25"', "vision-mixer+gru", "did you mean supercombo-24?"],
    ),
    "odd width": ("width = 8", "width = 7", "source", "models.pop2.source.width", ["even number from 4"]),
    "release name": ("[release.v22]", "[release.next]", "[release.next]", "release.next", ["v22"]),
    "wrong table": ("[models.pop2]", "[models]\nx = 1\n[models.pop2]", "x", "models.x", ["a model"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_names_its_line_its_key_and_what_was_meant(tmp_path, mistake):
    before, after, start, key, pieces = MISTAKES[mistake]
    assert before in GOOD
    text = GOOD.replace(before, after, 1)
    error = refusal(tmp_path, text)
    place = f"models.toml:{line_of(text, start)}: {key}: found "
    blamed = [line for line in error.what.split("\n") if line.startswith(place)]
    assert blamed, error.what
    assert any(all(piece in line for piece in [*pieces, "; expected "]) for line in blamed), error.what
    assert error.fix


def test_all_mistakes_at_once_in_the_order_of_the_file(tmp_path):
    text = GOOD.replace('"512x256"', '"x"').replace("IMAGE = 2", "IMGAE = 2").replace('"Shrubs"', '","')
    lines = refusal(tmp_path, text).what.split("\n")
    assert [line.split(": ")[1] for line in lines] == [
        "defaults.model_size",
        "flags.qcom.IMGAE",
        "models.ash.series",
    ]


def test_no_mistake_is_told_twice_or_drags_others_along(tmp_path):
    for before, after in (("IMAGE = 2", 'IMAGE = "2"'), ('"v11"', '"11"'), ("seed = 1", "seed = -1")):
        assert "\n" not in refusal(tmp_path, GOOD.replace(before, after)).what


def test_nothing_is_suggested_in_place_of_nothing(tmp_path):
    assert "did you mean" not in refusal(tmp_path, GOOD.replace('"Trees"', '""')).what


def test_a_model_twice_names_both_lines(tmp_path):
    text = GOOD + '\n[models.pop2]\nname = "again"\n'
    first, second = line_of(text, "[models.pop2]"), len(text.split("\n")) - 2
    what = refusal(tmp_path, text).what
    assert what.startswith(f"models.toml:{second}: models.pop2: found this name again")
    assert f"line {first}" in what


def test_a_key_twice_names_both_lines(tmp_path):
    text = GOOD.replace("IMAGE = 2", "IMAGE = 2\nIMAGE = 1")
    what = refusal(tmp_path, text).what
    assert what.startswith(f"models.toml:{line_of(text, 'IMAGE = 1')}: flags.qcom.IMAGE: ")
    assert f"line {line_of(text, 'IMAGE = 2')}" in what


def test_a_syntax_error_keeps_its_line_and_column(tmp_path):
    what = refusal(tmp_path, GOOD.replace("IMAGE = 2", "IMAGE = two")).what
    assert what.startswith(f"models.toml:{line_of(GOOD, 'IMAGE = 2')}:9: not TOML: ")


def test_text_inside_strings_and_arrays_is_no_statement(tmp_path):
    odd = 'cameras = [ # ]\n  "1928x1208",\n  """\nIMAGE = 9\n[models.pop2]\n""",\n]'
    text = GOOD.replace('cameras = ["1928x1208", "1344x760"]', odd).replace("IMAGE = 2", "IMAGE = 2.5")
    places = [line.split(": found")[0] for line in refusal(tmp_path, text).what.split("\n")]
    assert f"models.toml:{line_of(text, 'IMAGE = 2.5')}: flags.qcom.IMAGE" in places
    assert "models.toml:4: defaults.cameras[1]" in places


def test_bytes_that_are_not_utf8_and_files_that_are_not_there(tmp_path):
    path = tmp_path / "models.toml"
    path.write_bytes(b'# one\nname = "\xff"\n')
    with pytest.raises(CatalogError, match=r"models\.toml:2: found the byte 0xff; expected UTF-8"):
        catalog.load(path)
    with pytest.raises(CatalogError, match="cannot be read"):
        catalog.load(tmp_path / "none.toml")
    with pytest.raises(CatalogError, match="cannot be read"):
        catalog.load(tmp_path)


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 5000, "x" + ".y" * 5000 + " = 1", "x = " + "[" * 50 + "]" * 50]
)
def test_depths_that_no_catalog_has(tmp_path, text):
    assert "levels" in refusal(tmp_path, text).what


# ---- the cache


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_a_warm_cache_gives_the_same_catalog(tmp_path, path):
    cache = tmp_path / "state" / "catalog.json"
    cold = catalog.load(path, cache=cache)
    kept = cache.read_bytes()
    assert cold == catalog.load(path, cache=cache) == catalog.load(path)
    assert cache.read_bytes() == kept


def test_a_warm_cache_needs_neither_toml_nor_schema(tmp_path):
    cache = tmp_path / "catalog.json"
    catalog.load(SHIPPED[0], cache=cache)
    program = (
        "import sys; from pathlib import Path; from rules import catalog; "
        "catalog.load(Path(sys.argv[1]), cache=Path(sys.argv[2])); "
        "print([m for m in ('tomllib', 'jsonschema', 'difflib', 'numpy', 'tinygrad') if m in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(SHIPPED[0]), str(cache)]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_other_bytes_or_another_machine_are_not_taken_from_the_cache(tmp_path):
    cache = tmp_path / "cache"
    by_machine = GOOD.replace('flags = "cpu"', 'flags = { x86_64 = "cpu", arm64 = "qcom" }', 1)
    assert load(tmp_path, by_machine, cache=cache).models["pop2"].flags.name == "cpu"
    other = catalog.load(tmp_path / "models.toml", machine="arm64", cache=cache)
    assert other.models["pop2"].flags.name == "qcom"
    assert load(tmp_path, GOOD.replace("Poplar 2", "Oak"), cache=cache).models["pop2"].name == "Oak"
    with pytest.raises(CatalogError):
        load(tmp_path, GOOD.replace('"v11"', '"11"'), cache=cache)


@given(position=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_damaged_cache_is_made_anew(position, byte, cut):
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        good = load(Path(folder), GOOD, cache=cache)
        kept = cache.read_bytes()
        at = int(position * len(kept))
        cache.write_bytes(kept[:at] if cut else kept[:at] + bytes([byte]) + kept[at + 1 :])
        assert load(Path(folder), GOOD, cache=cache) == good
        assert cache.read_bytes() == kept


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    assert load(tmp_path, GOOD, cache=tmp_path / "file" / "cache").models


# ---- any text at all

ODD = """
"" "v22" "a,b" [] [[]] {} {a=1} nan -inf 1e400 true 07:00:00 2026-01-01 0xffffffffffffffffff [1,'a'] "\\u0000"
{kind=1} "cpu" "qcom" "policy" "768x432" {x86_64="qcom"} {ref="v22",format="split"}"""
VALUES = st.one_of(
    st.sampled_from([*ODD.split(), "'''\n'''"]),
    st.integers().map(str),
    st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)),
)
KEYS = sorted(set(re.findall(r"^(\[.*\]|\w+) ?=?", GOOD, re.MULTILINE)))


@st.composite
def mutated(draw):
    lines = GOOD.split("\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        key = draw(st.sampled_from([lines[at].split(" = ")[0] or "x", *KEYS, '"a\\tb"', "a.b.c", "é"]))
        statement = key if key.startswith("[") else f"{key} = {draw(VALUES)}"
        change = draw(st.sampled_from(["replace", "remove", "insert"]))
        lines[at : at + (change != "insert")] = [] if change == "remove" else [statement]
        lines = lines or [""]
    return "\n".join(lines)


@given(st.one_of(mutated(), st.text(), st.text("[]{}\"'.=,#ab1\n \\")))
@settings(max_examples=300, deadline=None)
def test_any_text_gives_a_catalog_or_a_catalog_error(text):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "models.toml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            found = catalog.load(path, machine="x86_64")
        except CatalogError as error:
            assert re.match(r"models\.toml:\d+: |models\.toml:\d+:\d+: ", error.what)
        else:
            assert found == catalog.load(path, machine="x86_64")


def test_the_catalog_knows_every_architecture_and_every_width_that_can_be_made():
    schema = json.loads(catalog.SCHEMA.read_text("utf-8"))
    made = schema["$defs"]["generated_source"]["properties"]
    assert made["architecture"]["enum"] == list(generated.architectures())
    assert [made["width"][key] for key in ("minimum", "maximum")] == [generated.NARROWEST, generated.WIDEST]


def test_the_schema_is_a_schema_and_its_examples_hold():
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for

    schema = json.loads(catalog.SCHEMA.read_text("utf-8"))
    assert validator_for(schema) is Draft202012Validator
    Draft202012Validator.check_schema(schema)
    for name, definition in schema["$defs"].items():
        assert definition.get("title"), name
        assert definition.get("description"), name
        assert definition.get("examples"), name
        whole = Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": schema["$defs"]})
        for example in definition["examples"]:
            whole.validate(example)
