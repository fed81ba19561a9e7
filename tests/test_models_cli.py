"""The console script `models`, as a child process in real folders."""

import hashlib
import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from contract import HEAD

from rules.catalog import load
from rules.networks import behaviour
from rules.releasing import parts
from rules.sources.generated import generate

PROGRAM = "import sys; from rules.models_cli import main; sys.exit(main())"
CATALOG = (
    HEAD
    + """\
[flags.usbgpu]
DEV = "USB+AMD:LLVM"
WARP_DEV = "QCOM"
requires = "device:AMD"
[models.tiny]
name = "Tiny One"
version = "v3"
series = "Tests"
released = "2026-01-01"
type = "generic"
source = { kind = "generated", architecture = "generic-mlp", seed = 1, width = 4 }
[models.list]
name = "An awkward name"
version = "v0"
series = "Tests"
released = "2026-01-01"
type = "generic"
source = { kind = "generated", architecture = "generic-mlp", seed = 2, width = 4 }
"""
)


def models(folder, *words, code=0):
    """Standard output and standard error of `models` in `folder`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MODELS_")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def made(told: str) -> list[str]:
    return [line.split()[1] for line in told.splitlines() if line.startswith("✓")]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    here = tmp_path_factory.mktemp("models")
    (here / "models.toml").write_text(CATALOG)
    return here


@pytest.fixture
def staged(folder, tmp_path):
    """A function that writes a generated model's ONNX files under names of its own."""

    def stage(architecture: str, prefix: str = "", width: int = 4) -> Path:
        for role, content in generate(architecture, seed=1, width=width).items():
            (tmp_path / f"{prefix}{role}.onnx").write_bytes(content)
        return tmp_path

    return stage


def test_list_shows_every_model(folder):
    assert models(folder, "--list").splitlines() == ["tiny  v3   Tiny One", "list  v0   An awkward name"]


def test_a_model_is_built_by_option_or_by_its_own_name_and_once(folder, tmp_path):
    told = models(folder, "--tiny", "--output-dir", tmp_path)
    assert made(told) == ["onnx:tiny", "candidate:tiny", "pkl:tiny"]
    assert (tmp_path / "tiny_tinygrad.pkl").read_bytes() == (
        folder / "artifacts" / "compiled" / "tiny_tinygrad.pkl"
    ).read_bytes()
    assert made(models(folder, "--model", "tiny")) == []
    assert made(models(folder, "--model=list")) == ["onnx:list", "candidate:list", "pkl:list"]
    assert made(models(folder, "--tiny", "--force")) == ["onnx:tiny", "candidate:tiny", "pkl:tiny"]


def test_a_split_model_is_compiled_straight_from_its_files(folder, staged, tmp_path):
    source, out = staged("vision-mixer+gru", "pop22_"), tmp_path / "out=1"
    words = ["--model", "pop22", "--input-format", "split", "--version", "v11"]
    words += ["--input-dir", source, f"--output-dir={out}"]
    told = models(folder, *words)
    assert made(told) == ["onnx:pop22", "candidate:pop22", "pkl:pop22", "parts:pop22"]
    assert [path.name for path in out.iterdir()] == ["pop22_driving_tinygrad.pkl"]
    (record,) = (folder / "artifacts" / "direct" / "results").glob("pop22_artifact.json")
    assert json.loads(record.read_text())["content"]["settings"]["behavior_version"] == "v11"
    assert made(models(folder, *words)) == []
    assert not (folder / "artifacts" / "results" / "pop22_artifact.json").exists()


def test_driver_monitoring_is_four_files(folder, staged, tmp_path):
    out = tmp_path / "out"
    assert "monitoring" in made(
        models(folder, "--dm", "--input-dir", staged("dmonitoring"), "--output-dir", out)
    )
    assert sorted(path.name for path in out.iterdir()) == [
        "dm_warp_1344x760_tinygrad.pkl",
        "dm_warp_1928x1208_tinygrad.pkl",
        "dmonitoring_model_metadata.pkl",
        "dmonitoring_model_tinygrad.pkl",
    ]


def test_the_only_file_staged_is_named_and_never_taken(folder, staged):
    source = staged("supercombo-24", "other_")
    file = source / "other_driving_supercombo.onnx"
    told = models(folder, "--model", "lebowski", "--input-dir", source, code=2)
    assert f"{file} (sha256 {sha256(file)})" in told
    assert f"models --model lebowski --onnx {file}" in told
    told = models(folder, "--dm", "--input-dir", source, code=2)
    assert f"models --dm --onnx {file}" in told


def test_the_small_model_is_not_taken_for_the_external_gpus(folder, staged):
    source = staged("supercombo-24")
    told = models(folder, "--model", "lebowski", "--gpu", "--input-dir", source, code=2)
    assert "no lebowski_driving_*.onnx or big_driving_*.onnx" in told


@pytest.mark.parametrize("word", ["--gpu", "--external-gpu"])
def test_the_external_gpu_has_its_own_flag_set(folder, staged, word):
    source = staged("supercombo-24", "big_")
    models(folder, "--model", "lebowski", word, "--input-dir", source, code=1)
    failure = json.loads((folder / "artifacts/direct/results/lebowski_failure.json").read_text())
    assert "usbgpu" in failure["cause"]


def test_a_split_of_a_large_artifact(folder, tmp_path):
    file = tmp_path / "x_driving_tinygrad.pkl"
    with file.open("wb") as sink:
        sink.write(random.Random(1).randbytes(1024))
        sink.truncate(parts.LIMIT + 1)
    told = models(tmp_path, "--split-artifact", file, "--output-dir", tmp_path / "up")
    names = [f"{file.name}.p00", f"{file.name}.p01", f"{file.name}.sha256"]
    assert told.split() == [str(tmp_path / "up" / name) for name in names]
    assert (tmp_path / "up" / names[2]).read_text() == f"{sha256(file)}  {file.name}\n"


def test_a_delivery_replaces_an_earlier_form(folder, tmp_path):
    name = "tiny_tinygrad.pkl"
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / name).write_text("old")
    parts.split(tmp_path / "earlier" / name, tmp_path, part_size=2, force=True)
    models(folder, "--tiny", "--output-dir", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["earlier", name]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "nothing to build is named"),
        (["--tinny"], "unknown option --tinny\n  → did you mean --tiny?"),
        (["--model", "tinny"], "did you mean tiny?"),
        (["tiny"], "unexpected tiny\n  → did you mean --tiny? else models --list lists the models"),
        (["list"], "did you mean --list?"),
        (["--tiny", "--output-dir", "models.toml"], "expected a folder, got the file"),
        (["--model", "tiny", "--input-format", "whole"], "expected one of supercombo, split, got 'whole'"),
        (["--model", "tiny", "--version", "11"], "--version: expected vNN, got 11"),
        (["--model", "Tiny", "--onnx", "x.onnx"], "not a model ID"),
        (["--model", "new", "--onnx", "x.onnx"], "x.onnx: no such file"),
        (["--model", "new", "--input-dir", "nowhere"], "nowhere: no such folder"),
        (["--model", "new", "--input-dir", "."], "no .onnx file is in it"),
        (["--tiny", "--model", "list", "--version", "v7"], "these options are for one model"),
        (["--dm"], "uncompiledmodels: no such folder"),
        (["--split-artifact", "nowhere.pkl"], "expected a file to split, got nothing"),
    ],
)
def test_a_wrong_command_line_is_refused_in_a_sentence(folder, words, told):
    assert told in models(folder, *words, code=2)


def test_an_unknown_id_is_an_option_beside_its_files_and_enters_the_catalog_by_one_command(folder, staged):
    """The guide's `models --lebowski`: the option names the model, its files tell format and version."""
    source = staged("supercombo-24", "lebowski_")
    here = folder / "other"
    here.mkdir()
    twin = '[flags.cpu-supercombo]\nextends = "cpu"\nNUM_CPU_THREADS = 1\nPARALLEL = 0\nIMAGE = 1\n'
    (here / "models.toml").write_text(CATALOG + twin)
    told = models(here, "--lebowski", "--input-format", "supercombo", "--input-dir", source)
    assert made(told)[-1] == "parts:lebowski"
    assert "lebowski: behaviour version v15, as its files suggest" in told
    record = json.loads((here / "artifacts/direct/results/lebowski_artifact.json").read_text())
    assert record["content"]["settings"]["flags"]["IMAGE"] == "1", "the set for supercombos"
    (line,) = [one for one in told.splitlines() if one.startswith("to keep it in models.toml: ")]
    words = shlex.split(line.partition(": ")[2])
    subprocess.run([sys.executable, "-m", *words], cwd=here, check=True, capture_output=True)
    model = load(here / "models.toml").models["lebowski"]
    assert (model.version, model.flags.name) == ("v15", "cpu-supercombo")
    assert models(here, "--list").splitlines()[-1] == "lebowski  v15  lebowski"


@pytest.mark.parametrize(
    ("architecture", "version"),
    [("supercombo-24", "v15"), ("multi-policy", "v15"), ("vision-mixer+gru", "v11")],
)
def test_versions_that_files_suggest(tmp_path, architecture, version):
    files = {}
    for role, content in generate(architecture, seed=1, width=4).items():
        files[role] = tmp_path / f"{role}.onnx"
        files[role].write_bytes(content)
    assert behaviour.suggested(files) == version


def test_two_policies_without_an_action_suggest_the_twelfth_version(tmp_path):
    policy = tmp_path / "policy.onnx"
    policy.write_bytes(generate("vision-conv+attention", seed=1, width=4)["driving_policy"])
    assert behaviour.suggested({"driving_on_policy": policy, "driving_off_policy": policy}) == "v12"


def test_a_catalog_that_is_wrong_is_told_in_sentences(tmp_path):
    (tmp_path / "models.toml").write_text(CATALOG.replace("v3", "three"))
    assert "models.tiny.version" in models(tmp_path, "--list", code=2)
