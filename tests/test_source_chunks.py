"""ONNX files in chunks, from every kind of source that can list its names: joined, or a sentence."""

import hashlib
import io
import subprocess
import zipfile
from pathlib import Path

import pytest
from contract import Project, model
from files_server import serving

from rules.errors import SourceError
from rules.sources import archive, git, hub, local
from rules.sources.generated import generate

CONTENT = bytes(range(256)) * 5
NAME = "driving_supercombo.onnx"
COMMIT = "c" * 40


def chunked(count: int = 3, *, name: str = NAME, empty: int = 0, marker: str = "") -> dict[str, bytes]:
    """`CONTENT` in so many chunks, of which the last `empty` hold nothing."""
    step = -(-len(CONTENT) // (count - empty))
    pieces = {
        f"{name}.chunk{index + 1:02}of{count:02}": CONTENT[index * step : (index + 1) * step]
        for index in range(count)
    }
    return {**pieces, f"{name}.chunkmanifest": (marker or str(count)).encode()}


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def from_folder(files: dict[str, bytes], tmp_path: Path) -> dict[str, Path]:
    put(tmp_path / "in", files)
    return local.fetch({"path": "in", "format": "supercombo"}, tmp_path, tmp_path / "out", cache=tmp_path)


def from_file(files: dict[str, bytes], tmp_path: Path) -> dict[str, Path]:
    put(tmp_path / "in", files)
    options = {"path": f"in/{NAME}", "format": "supercombo"}
    return local.fetch(options, tmp_path, tmp_path / "out", cache=tmp_path)


def from_zip(files: dict[str, bytes], tmp_path: Path) -> dict[str, Path]:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as packed:
        for name, content in files.items():
            packed.writestr(f"models/{name}", content)
    (tmp_path / "a.zip").write_bytes(target.getvalue())
    sha256 = hashlib.sha256(target.getvalue()).hexdigest()
    size = len(target.getvalue())
    options = {"path": "a.zip", "sha256": sha256, "size": size, "format": "supercombo"}
    return archive.fetch(options, tmp_path, tmp_path / "out", cache=tmp_path)


def committed(files: dict[str, bytes], tmp_path: Path) -> dict[str, str]:
    folder = put(tmp_path / "repository", {f"{git.PREFIXES[1]}/{name}": one for name, one in files.items()})
    identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
    for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-qm", "x")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    )
    return {"repository": str(folder), "ref": head.stdout.strip(), "format": "supercombo"}


def from_git(files: dict[str, bytes], tmp_path: Path) -> dict[str, Path]:
    return git.fetch(committed(files, tmp_path), tmp_path, tmp_path / "out", cache=tmp_path / "cache")


def from_git_path(files: dict[str, bytes], tmp_path: Path) -> dict[str, Path]:
    paths = {"paths": {"driving_supercombo": f"{git.PREFIXES[1]}/{NAME}"}}
    options = {**committed(files, tmp_path), **paths}
    return git.fetch(options, tmp_path, tmp_path / "out", cache=tmp_path / "cache")


def from_hub(files: dict[str, bytes], tmp_path: Path) -> dict[str, Path]:
    with serving() as server:
        for name, content in files.items():
            place = f"/a/b/resolve/{COMMIT}/{name}"
            server.files[place] = content
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            server.headers[place] = {"ETag": etag, "X-Repo-Commit": COMMIT}
        missing = {"X-Error-Code": "EntryNotFound"}
        server.headers.setdefault(f"/a/b/resolve/{COMMIT}/{NAME}", missing)
        pins = {"driving_supercombo": hashlib.sha256(CONTENT).hexdigest()}
        options = {"repo": "a/b", "revision": COMMIT, "files": {"driving_supercombo": NAME}, "sha256": pins}
        return hub.fetch({**options, "endpoint": server.url}, tmp_path, tmp_path / "out", cache=tmp_path)


LISTED = [from_folder, from_file, from_zip, from_git, from_git_path]
KINDS = [*LISTED, from_hub]


@pytest.fixture(autouse=True)
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.mark.parametrize("fetched", KINDS)
@pytest.mark.parametrize("empty", [0, 2])
def test_chunks_are_joined_in_their_order(fetched, empty, tmp_path, out):
    """Chunks that were planned and not needed are empty."""
    got = fetched(chunked(12, empty=empty), tmp_path)
    assert got["driving_supercombo"].read_bytes() == CONTENT
    assert [path.name for path in out.iterdir()] == [NAME]


@pytest.mark.parametrize("fetched", LISTED)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: files.pop(f"{NAME}.chunk02of03"), "chunk02of03: this chunk is missing"),
        (lambda files: files.pop(f"{NAME}.chunkmanifest"), "expected "),
        (lambda files: [files.pop(one) for one in list(files) if ".chunk0" in one], "got no chunk"),
        (lambda files: files.update({f"{NAME}.chunkmanifest": b"2"}), "expected 3, as its chunks are"),
        (lambda files: files.update({f"{NAME}.chunkmanifest": b"three"}), "expected a count of chunks"),
        (lambda files: files.update({f"{NAME}.chunk01of02": b"x"}), "chunks of 02 and of 03"),
        (lambda files: files.update({NAME: CONTENT}), "expected one form"),
        (lambda files: files.update({f"{NAME}.chunk02of03": b""}), "chunk02of03: empty, although"),
    ],
)
def test_what_is_not_all_there_is_a_sentence(fetched, change, said, tmp_path):
    files = chunked(3)
    change(files)
    with pytest.raises(SourceError, match=said) as caught:
        fetched(files, tmp_path)
    assert caught.value.fix


def test_a_hub_that_lacks_a_chunk_or_sends_another_whole_is_told(tmp_path):
    files = chunked(3)
    del files[f"{NAME}.chunk02of03"]
    with pytest.raises(SourceError, match="chunk02of03"):
        from_hub(files, tmp_path)


def test_the_joined_whole_is_what_a_hub_pins(tmp_path):
    with pytest.raises(SourceError, match="expected sha256 "):
        from_hub({**chunked(3), f"{NAME}.chunk02of03": b"another"}, tmp_path)


def test_a_model_of_chunks_is_fetched_and_fetched_again_when_one_changes(tmp_path):
    whole = generate("generic-mlp", seed=1, width=4)["model"]
    source = 'source = { kind = "file", path = "in", format = "generic" }'
    project = Project(tmp_path / "yard", model("mlp", source, 'type = "generic"'))
    half = len(whole) // 2
    pieces = {"x.onnx.chunk01of02": whole[:half], "x.onnx.chunk02of02": whole[half:]}
    put(project.folder / "in", {**pieces, "x.onnx.chunkmanifest": b"2"})
    assert project.made("onnx:mlp") == ["onnx:mlp"]
    assert project.path("onnx/mlp/mlp_model.onnx").read_bytes() == whole
    assert project.made("onnx:mlp") == []
    other = generate("generic-mlp", seed=2, width=4)["model"]
    put(project.folder / "in", {"x.onnx.chunk01of02": other[:half], "x.onnx.chunk02of02": other[half:]})
    assert project.made("onnx:mlp") == ["onnx:mlp"]
    assert project.path("onnx/mlp/mlp_model.onnx").read_bytes() == other
