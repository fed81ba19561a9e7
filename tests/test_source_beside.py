"""Weights that lie beside an ONNX file come with it from every kind of source, and from nowhere else."""

import hashlib
import io
import os
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from contract import Project, model
from files_server import serving
from onnx import TensorProto, helper

from rules.catalog import Source
from rules.errors import SourceError
from rules.sources import archive
from rules.steps.fetch import fetch

COMMIT = "62bf6fb072880905a4c490f0f4f4a6b3c23346ec"
DATA = b"\0\0\x80\x3f" * 8  # eight times 1.0
NAME = "model.onnx.data"


def network(location: str = NAME, *more: str) -> bytes:
    """x (2, 4) + weights; 16 of their bytes lie at each location."""
    tensors = []
    for number, place in enumerate((location, *more)):
        tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=[4])
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", place), ("offset", "16"), ("length", "16")):
            tensor.external_data.add(key=key, value=text)
        tensors.append(tensor)
    names = ["x", *(f"y{number}" for number in range(len(tensors)))]
    nodes = [
        helper.make_node("Add", [names[at], tensor.name], [names[at + 1]])
        for at, tensor in enumerate(tensors)
    ]
    ends = [helper.make_tensor_value_info(one, TensorProto.FLOAT, (2, 4)) for one in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(made.SerializeToString())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def zipped(members: Mapping[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return target.getvalue()


def fetched(kind: str, options: Mapping[str, Any], folder: Path) -> dict[str, bytes]:
    """What a source gives, by file name."""
    scratch = folder / "scratch"
    scratch.mkdir()
    made = fetch(Source(kind, dict(options)), folder, scratch, folder / "cache")
    return {name: path.read_bytes() for name, path in made.outputs.items() if isinstance(path, Path)}


def refusal(kind: str, options: Mapping[str, Any], folder: Path) -> str:
    with pytest.raises(SourceError) as caught:
        fetched(kind, options, folder)
    return str(caught.value)


# ---- a model and its weights, put where each kind of source has them

Files = Mapping[str, bytes]
Placed = tuple[str, dict[str, Any]]


def written(folder: Path, files: Files) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def in_folder(folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> Placed:
    written(folder / "there", files)
    return "file", {"path": "there/m/net.onnx", "format": "generic"}


def in_archive(folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> Placed:
    whole = zipped(files)
    (folder / "one.zip").write_bytes(whole)
    options = {"path": "one.zip", "sha256": sha256(whole), "size": len(whole), "format": "generic"}
    return "archive", {**options, "members": {"model": "m/net.onnx"}}


def in_pinned_folder(folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> Placed:
    pin = archive.folder_digest(written(folder / "there", files))
    return "archive", {"path": "there", "sha256": pin.sha256, "size": pin.size, "format": "generic"}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def in_git(folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> Placed:
    for key in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(key, "a@example.org")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    repository = written(folder / "repository", files)
    git(repository, "init", "--quiet")
    for name, content in files.items():  # the weights as Git LFS has them: a pointer, and an object
        if not name.endswith(".onnx"):
            kept = repository / ".git/lfs/objects" / sha256(content)[:2] / sha256(content)[2:4]
            written(kept, {sha256(content): content})
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(content)}\nsize "
            (repository / name).write_text(f"{pointer}{len(content)}\n")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message=x")
    ref = git(repository, "rev-parse", "HEAD")
    options = {"repository": "repository", "ref": ref, "format": "generic"}
    return "git", {**options, "paths": {"model": "m/net.onnx"}}


def in_wheel(folder: Path, files: Files, monkeypatch: pytest.MonkeyPatch) -> Placed:
    about = "Metadata-Version: 2.1\nName: pop\nVersion: 1.0\n"
    wheel = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    inside = {"pop-1.0.dist-info/METADATA": about.encode(), "pop-1.0.dist-info/WHEEL": wheel.encode()}
    whole = zipped({**files, **inside, "pop-1.0.dist-info/RECORD": b""})
    written(folder / "wheels", {"pop-1.0-py3-none-any.whl": whole})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder / "wheels"))
    options = {"name": "pop", "version": "1.0", "sha256": sha256(whole)}
    return "wheel", {**options, "members": {"model": "m/net.onnx"}}


KINDS = (in_folder, in_archive, in_pinned_folder, in_git, in_wheel)
Put = Callable[[Path, Files, pytest.MonkeyPatch], Placed]


@pytest.mark.parametrize("put", KINDS)
def test_weights_come_with_their_model(tmp_path, monkeypatch, put: Put):
    files = {"m/net.onnx": network(NAME, "more/b.bin"), f"m/{NAME}": DATA, "m/more/b.bin": DATA + DATA}
    found = fetched(*put(tmp_path, {**files, "m/other.data": b"no"}, monkeypatch), tmp_path)
    assert found == {"model.onnx": files["m/net.onnx"], NAME: DATA, "more/b.bin": DATA + DATA}


@pytest.mark.parametrize("put", KINDS)
@pytest.mark.parametrize("location", ["../secret.data", "/etc/hostname.d", "b.onnx", "a.pkl", "._x.data"])
def test_weights_elsewhere_are_not_taken(tmp_path, monkeypatch, put: Put, location):
    files = {"m/net.onnx": network(location), "secret.data": DATA, "m/b.onnx": DATA, "m/a.pkl": DATA}
    with pytest.raises(SourceError) as caught:
        fetched(*put(tmp_path, files, monkeypatch), tmp_path)
    assert "expected" in str(caught.value)
    assert not (tmp_path / "scratch/secret.data").exists()


@pytest.mark.parametrize("put", KINDS)
def test_weights_that_are_not_there_are_named(tmp_path, monkeypatch, put: Put):
    told = refusal(*put(tmp_path, {"m/net.onnx": network()}, monkeypatch), tmp_path)
    assert NAME in told
    assert "weights" in told


def test_a_hub_gives_the_weights_and_they_are_checked(tmp_path, monkeypatch):
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        for path, content in (("m/net.onnx", network()), (f"m/{NAME}", DATA)):
            place = f"/firestar/models/resolve/{COMMIT}/{path}"
            server.files[place] = content
            server.headers[place] = {"ETag": f'"{sha256(content)}"', "X-Repo-Commit": COMMIT}
        options = {"repo": "firestar/models", "revision": COMMIT, "files": {"model": "m/net.onnx"}}
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
        found = fetched("hub", options, tmp_path / "first")
        assert found == {"model.onnx": network(), NAME: DATA}
        pinned = {**options, "sha256": {NAME: "0" * 64}}
        told = refusal("hub", pinned, tmp_path / "second")
    assert f"expected sha256 {'0' * 64}, got {sha256(DATA)}" in told
    assert f'sha256."{NAME}"' in told


def test_a_link_is_not_followed(tmp_path):
    written(tmp_path, {"there/m/net.onnx": network(), "secret.data": DATA})
    (tmp_path / "there/m" / NAME).symlink_to(tmp_path / "secret.data")
    told = refusal("file", {"path": "there/m", "format": "generic"}, tmp_path)
    assert "a link" in told


def two(folder: Path, first: bytes, second: bytes) -> Placed:
    members = {"a/driving_vision.onnx": network("w.data"), "a/w.data": first}
    members |= {"b/driving_policy.onnx": network("w.data"), "b/w.data": second}
    kind, options = in_archive(folder, members, pytest.MonkeyPatch())
    chosen = {"driving_vision": "a/driving_vision.onnx", "driving_policy": "b/driving_policy.onnx"}
    return kind, {**options, "members": chosen}


def test_two_networks_may_share_weights_but_not_a_name_for_two(tmp_path):
    (tmp_path / "same").mkdir()
    found = fetched(*two(tmp_path / "same", DATA, DATA), tmp_path / "same")
    assert sorted(found) == ["driving_policy.onnx", "driving_vision.onnx", "w.data"]
    told = refusal(*two(tmp_path, DATA, DATA[::-1]), tmp_path)
    assert "b/w.data and a/w.data are different files of one model" in told


def test_a_folder_s_pin_holds_for_the_weights_too(tmp_path):
    kind, options = in_pinned_folder(tmp_path, {"net.onnx": network(), NAME: DATA}, pytest.MonkeyPatch())
    (tmp_path / "there" / NAME).write_bytes(DATA[::-1])
    assert "expected sha256" in refusal(kind, options, tmp_path)


# ---- in a project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "yard")
    written(made.folder / "onnx", {"net.onnx": network(), NAME: DATA, "notes.txt": b"hello"})
    source = 'source = { kind = "file", path = "onnx/net.onnx", format = "generic" }\n'
    made.catalog = model("net", source, 'type = "generic"')
    return made


def test_weights_are_an_output_and_part_of_the_key(project):
    assert project.made("onnx:net") == ["onnx:net"]
    found = project.files("onnx/net")
    assert found == {"net_model.onnx": network(), NAME: DATA}
    assert onnx.load(project.folder / "onnx/net.onnx").graph.initializer[0].raw_data == DATA[16:]
    assert project.made("onnx:net") == []
    (project.folder / "onnx/notes.txt").write_text("other")
    assert project.made("onnx:net") == []
    (project.folder / "onnx" / NAME).write_bytes(DATA[::-1])
    assert NAME in project.doit_any("why", "onnx:net").stdout
    assert project.made("onnx:net") == ["onnx:net"]
    assert project.files("onnx/net")[NAME] == DATA[::-1]
    project.path(f"onnx/net/{NAME}").unlink()
    assert project.made("onnx:net") == ["onnx:net"]


def test_a_model_that_is_added_brings_its_weights_and_says_its_open_sizes(tmp_path):
    """Its name tells no role, so it is copied; the refusal says what to write, and that is what helps."""
    made = Project(tmp_path / "yard")
    files = {f"{name}.onnx": opened(network(NAME)) for name in ("net", "driving_vision")}
    written(tmp_path / "from", {**files, NAME: DATA})
    made.catalog = model("other", 'source = { kind = "file", path = "o.onnx", format = "generic" }\n')
    add = ("add", str(tmp_path / "from/net.onnx"), "--id", "net", "--format", "generic")
    told = made.doit(*add, fails=True).stderr
    assert "shapes = { x = [1, 4] }" in told
    assert "--shape x=1,4" in told
    assert "expected NAME=SIZE" in made.doit("add", "--shape", "x=1,", "n.onnx", fails=True).stderr
    made.doit(*add, "--shape", "x=2,4")
    assert made.made("onnx:net") == ["onnx:net"]
    assert made.record("net_source")["facts"]["model"]["inputs"]["x"]["shape"] == [2, 4]
    assert made.files("onnx/net") == {"net_model.onnx": files["net.onnx"], NAME: DATA}
    made.edit("x = [2, 4]", "x = [2, 5]")
    assert "shapes gives input 'x' the shape (2, 5)" in made.doit("onnx:net", fails=True).stdout
    made.edit("x = [2, 5]", "x = [2, 4], z = [2, 4]")
    assert "shapes.z: expected an input of x" in made.doit("onnx:net", fails=True).stdout


def opened(content: bytes) -> bytes:
    """The same network for any number of rows."""
    made = onnx.load_from_string(content)
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    return bytes(made.SerializeToString())


def test_weights_that_are_short_or_a_pointer_are_named(project):
    beside = project.folder / "onnx" / NAME
    beside.write_bytes(DATA[:20])
    assert "found 20 bytes, expected 32 bytes or more" in project.doit("onnx:net", fails=True).stdout
    beside.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 32\n")
    assert "a Git LFS pointer" in project.doit("onnx:net", fails=True).stdout
    assert not project.path("onnx/net").exists()


def test_weights_of_others_are_pinned(project):
    whole = zipped({"net.onnx": network(), NAME: DATA})
    (project.folder / "one.zip").write_bytes(whole)
    source = f'kind = "archive", path = "one.zip", sha256 = "{sha256(whole)}", size = {len(whole)}'
    table = f'source = {{ {source}, format = "generic" }}\n'
    project.catalog = model("net", table, 'type = "generic"')
    project.doit("onnx:net")
    lock = project.folder / "models.lock.json"
    assert f'"{NAME}"' in lock.read_text()
    lock.write_text(lock.read_text().replace(sha256(DATA), "0" * 64))
    done = project.doit("onnx:net", fails=True)
    assert f"{NAME}: expected sha256 {'0' * 64}" in done.stdout + done.stderr
