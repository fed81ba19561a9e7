"""Pins: the first fetch is recorded, a later one must match, and a pin moves only when told to."""

import hashlib
import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from child import doit
from contract import DODO, HEAD
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rules import pins
from rules.catalog import Source
from rules.errors import SourceError
from rules.keeping.digests import Digest
from rules.sources.generated import generate

SCHEMA = Path(pins.__file__).parents[1] / "schemas" / "lock.schema.json"
ONE, TWO, THREE = (Digest(hashlib.sha256(bytes([n])).hexdigest(), n) for n in (1, 2, 3))
FOUND = {"driving_vision": ONE, "driving_policy": TWO}


def source(sha256: str = "a" * 64) -> Source:
    members = {"driving_vision": "v.onnx", "driving_policy": "p.onnx"}
    return Source("wheel", {"name": "pop", "version": "1.0", "sha256": sha256, "members": members})


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "models.lock.json"


def test_the_lock_lies_beside_the_catalog():
    assert pins.path_of(Path("a/models.toml")) == Path("a/models.lock.json")


def test_the_first_fetch_is_recorded_and_the_next_must_match(lock):
    assert pins.settle(lock, "pop22", source(), FOUND) is True
    before = lock.read_bytes()
    assert pins.settle(lock, "pop22", source(), FOUND) is False
    assert lock.read_bytes() == before
    assert pins.read(lock).of("pop22", source()) == FOUND


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({**FOUND, "driving_vision": THREE}, ["driving_vision.onnx: expected 1 byte, got 3"]),
        (
            {**FOUND, "driving_vision": Digest(THREE.sha256, ONE.size)},
            [f"expected sha256 {ONE.sha256}", f"got {THREE.sha256}"],
        ),
        ({"driving_vision": ONE}, ["expected driving_policy.onnx, got driving_vision"]),
        ({**FOUND, "driving_off_policy": THREE}, ["expected no driving_off_policy.onnx, got one of 3 bytes"]),
    ],
)
def test_another_fetch_is_refused_with_both_values_and_what_to_type(lock, found, told):
    pins.settle(lock, "pop22", source(), FOUND)
    before = lock.read_bytes()
    with pytest.raises(SourceError) as caught:
        pins.settle(lock, "pop22", source(), found)
    for part in [*told, "pop22: ", "models.lock.json", "doit pin --update pop22"]:
        assert part in str(caught.value)
    assert lock.read_bytes() == before


def test_another_source_is_pinned_anew_and_another_mirror_is_not(lock):
    pins.settle(lock, "pop22", source(), FOUND)
    renamed = Source("wheel", {**source().options, "name": "mirror-of-pop"})
    assert pins.read(lock).of("pop22", renamed) == FOUND
    moved = source("b" * 64)
    assert pins.read(lock).of("pop22", moved) == {}
    assert pins.settle(lock, "pop22", moved, {"driving_vision": THREE}) is True
    assert pins.read(lock).of("pop22", source()) == {}


def test_two_models_of_one_source_have_a_pin_each(lock):
    pins.settle(lock, "pop22", source(), FOUND)
    pins.settle(lock, "pop2", source(), FOUND)
    assert sorted(pins.read(lock).models) == ["pop2", "pop22"]


def test_the_bytes_do_not_depend_on_the_order_of_fetching(tmp_path):
    written = []
    for order in (["a", "b", "c"], ["c", "a", "b"]):
        path = tmp_path / "-".join(order) / "models.lock.json"
        path.parent.mkdir()
        for model_id in order:
            pins.settle(path, model_id, source(), dict(reversed(FOUND.items())) if model_id == "a" else FOUND)
        written.append(path.read_bytes())
    assert written[0] == written[1]
    assert written[0].endswith(b"}\n")


def test_pins_of_threads_and_processes_are_all_kept(lock):
    lock.with_name("models.toml").write_text("")  # what writers of pins lock
    script = (
        "import sys; from pathlib import Path; from rules import pins; from rules.catalog import Source\n"
        "from rules.keeping.digests import Digest\n"
        "one = Source('wheel', {'sha256': 'a' * 64, 'members': {}})\n"
        "path = Path(sys.argv[1])\n"
        "for n in range(8): pins.settle(path, f'{sys.argv[2]}{n}', one, {'m': Digest('0' * 64, n)})"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(lock), name]) for name in "xy"]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: pins.settle(lock, f"t{n}", source(), FOUND), range(12)))
    assert [child.wait() for child in children] == [0, 0]
    assert len(pins.read(lock).models) == 28


def test_no_lock_is_no_pins(lock):
    assert pins.read(lock).models == {}
    with pytest.raises(SourceError, match=r"expected no driving_vision.onnx"):
        pins.read(lock).check("pop22", "driving_vision", *ONE)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"<<<<<<< HEAD\n{}",
        b'{"format": 2, "models": {}}',
        b'{"format": 1, "models": {"a": {"source": {}, "files": {"m": {"sha256": "x", "size": 1}}}}}',
        b'{"format": 1, "models": {"a": {"source": {}, "files": {"m": {"sha256": 3, "size": 1}}}}}',
        b'{"format": 1, "models": {"a": []}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_damaged_lock_is_refused_and_left_alone(lock, content):
    lock.write_bytes(content)
    with pytest.raises(SourceError, match=r"models\.lock\.json"):
        pins.settle(lock, "pop22", source(), FOUND)
    assert lock.read_bytes() == content


digests = st.builds(
    Digest, st.binary(min_size=32, max_size=32).map(bytes.hex), st.integers(min_value=0, max_value=2**40)
)
ids = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,6}", fullmatch=True)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(ids, st.dictionaries(ids, digests, min_size=1, max_size=4), max_size=4))
def test_what_is_written_is_read_again_and_follows_the_schema(tmp_path_factory, models):
    path = tmp_path_factory.mktemp("lock") / "models.lock.json"
    lock = pins.Lock(path.name)
    for model_id, found in models.items():
        lock = lock.with_pins(model_id, source(), found)
    pins.write(path, lock)
    assert pins.read(path) == lock
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(json.loads(path.read_text()))


# ---- doit pin, with a wheel that pip finds in a folder

CATALOG = """
[models.pop]
name = "Pop"
version = "v11"
series = "Trees"
released = "2026-01-01"
type = "generic"

[models.pop.source]
kind = "wheel"
name = "pop"
version = "1.0"
sha256 = "{sha256}"
members = {{ model = "m.onnx" }}

[models.made]
name = "Made"
version = "v11"
series = "Trees"
released = "2026-01-01"
type = "generic"
source = {{ kind = "generated", architecture = "generic-mlp", seed = 1, width = 4 }}
"""
METADATA = "Metadata-Version: 2.1\nName: pop\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: modelyard\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def yard(tmp_path, monkeypatch):
    model = generate("generic-mlp", seed=1, width=4)["model"]
    wheel = tmp_path / "wheels" / "pop-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("m.onnx", model)
        file.writestr("pop-1.0.dist-info/METADATA", METADATA)
        file.writestr("pop-1.0.dist-info/WHEEL", WHEEL)
        file.writestr("pop-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    folder = tmp_path / "yard"
    folder.mkdir()
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "models.toml").write_text(HEAD + CATALOG.format(sha256=sha256))
    (folder / "dodo.py").write_text(DODO)
    return folder, Digest(hashlib.sha256(model).hexdigest(), len(model))


def test_pin_pins_what_has_no_pin_and_leaves_the_rest(yard):
    folder, model = yard
    code, out, _ = doit(folder, "pin")
    assert (code, out) == (0, f"pop model: nothing → {model.sha256[:12]}… ({model.size:,} bytes)\n")
    before = (folder / "models.lock.json").read_bytes()
    assert doit(folder, "pin")[1] == "pop: pinned\n"
    assert (folder / "models.lock.json").read_bytes() == before
    assert doit(folder, "pin", "made")[1].startswith("made: a generated source needs no pin")


def test_pin_update_shows_the_change_moves_it_and_has_the_source_fetched_again(yard):
    folder, model = yard
    assert doit(folder, "onnx:pop")[0] == 0
    assert doit(folder, "pin")[0] == 0
    lock = folder / "models.lock.json"
    lock.write_text(lock.read_text().replace(model.sha256, THREE.sha256))
    code, out, _ = doit(folder, "pin", "pop", "--update")
    assert code == 0
    assert out.startswith(f"pop model: {THREE.sha256[:12]}… ")
    assert f"→ {model.sha256[:12]}…" in out
    assert pins.read(lock).models["pop"].files == {"model": model}
    assert "unchanged" in doit(folder, "pin", "--update", "pop")[1]
    assert not (folder / "artifacts" / "results" / "pop_source.json").exists()
    assert doit(folder, "onnx:pop")[0] == 0
    assert json.loads((folder / "artifacts" / "results" / "pop_source.json").read_text())["made"] == "built"


def test_pin_says_what_is_wrong_in_one_sentence(yard):
    folder, _ = yard
    for words, told in [
        (("pin", "--update"), "expected an ID"),
        (("pin", "popp"), "did you mean pop?"),
        (("pin", "--updat"), "--updat"),
    ]:
        code, _, err = doit(folder, *words)
        assert code == 2
        assert told in err
        assert "Traceback" not in err


def test_a_source_that_cannot_be_fetched_is_told_and_pins_nothing(yard, monkeypatch):
    folder, _ = yard
    code, _, err = doit(folder, "pin", PIP_FIND_LINKS="/nonexistent")
    assert code == 2
    assert "pop==1.0" in err
    assert "correct the package's name" in err and "network" not in err
    text = (folder / "models.toml").read_text()
    (folder / "models.toml").write_text(text.replace('version = "1.0"', 'version = "2.0"'))
    assert "name one of the versions that pip lists" in doit(folder, "pin")[2]
    assert not (folder / "models.lock.json").exists()


def test_what_was_built_from_another_source_than_is_pinned_is_out_of_date(yard):
    folder, model = yard
    assert doit(folder)[0] == 0
    assert doit(folder, "outdated")[2].startswith("nothing is outdated")
    lock = folder / "models.lock.json"
    pinned = lock.read_text()
    lock.write_text(pinned.replace(model.sha256, THREE.sha256))  # as a pull of somebody else's pin does
    code, out, _ = doit(folder, "outdated")
    assert code == 0
    assert "  pop: its source is not what models.lock.json pins: model.onnx: expected sha256" in out
    assert THREE.sha256 in out
    code, out, err = doit(folder, "onnx:pop")
    assert code != 0
    assert f"got {model.sha256}" in out + err
    assert "doit pin --update pop" in out + err
    lock.write_text(pinned)
    assert doit(folder, "outdated")[2].startswith("nothing is outdated")
