"""Changes that no stat tells: writes through a mapping of a file in memory, which move none of its times."""

import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tinygrad
from contract import Project, model

from rules.keeping.digests import Stamp
from rules.sources.generated import generate

CHAIN = ["candidate:mlp", "onnx:mlp", "pkl:mlp"]
MEMORY = Path("/dev/shm")
SOURCE = 'source = {{ kind = "file", path = "{}", format = "generic" }}\n'


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder on a tmpfs."""
    if not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        pytest.skip("this machine has no file system in memory")
    folder = MEMORY / f"modelyard-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


def write_unseen(path: Path, old: bytes, new: bytes) -> None:
    """Replace some bytes of a file and no time of it; skips where the system moves one."""
    assert len(old) == len(new)
    before = Stamp.of(path)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        at = content.find(old)
        assert at >= 0
        content[at : at + len(new)] = new
    if Stamp.of(path) != before:
        pytest.skip("here a write through a mapping moves a file's times")


def put_a_source(memory: Path, seed: int = 1) -> Path:
    path = memory / "mlp_model.onnx"
    path.write_bytes(generate("generic-mlp", seed=seed, width=4)["model"])
    return path


def other_bytes(path: Path, seed: int) -> tuple[bytes, bytes]:
    """A stretch of the file, and what another seed has there: still a model, with another weight."""
    one, other = path.read_bytes(), generate("generic-mlp", seed=seed, width=4)["model"]
    assert len(one) == len(other)
    at = next(index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
    return one[at - 32 : at + 2], other[at - 32 : at + 2]


@pytest.fixture
def changed(tmp_path: Path, memory: Path) -> tuple[Project, Path]:
    """A built project, and its source, which then became another model unseen."""
    source = put_a_source(memory)
    project = Project(tmp_path, model("mlp", SOURCE.format(memory), 'type = "generic"'))
    project.doit()
    write_unseen(source, *other_bytes(source, seed=2))
    assert project.made() == []  # a stat is trusted, and tells nothing
    return project, source


def test_a_run_that_verifies_reads_sources_again(changed: tuple[Project, Path]) -> None:
    project, source = changed
    done = project.doit("--verify")
    assert f"damaged: {source}: its bytes changed, and its times did not: sha256 " in done.stdout
    assert "3 made" in done.stdout
    assert project.path("onnx/mlp/mlp_model.onnx").read_bytes() == source.read_bytes()
    assert "damaged" not in project.doit("--verify").stdout


def test_fsck_reads_sources_again_and_the_next_run_knows(changed: tuple[Project, Path]) -> None:
    project, source = changed
    told = project.doit("fsck", fails=True).stdout
    assert f"{source}: its bytes changed, and its times did not: sha256 " in told
    assert project.made() == CHAIN
    assert "every byte is as recorded" in project.doit("fsck").stdout


def test_a_list_that_verifies_reads_sources_again(changed: tuple[Project, Path]) -> None:
    project, _ = changed
    told = project.doit("outdated", "--verify").stdout
    assert told.startswith("onnx:mlp       model ")
    assert project.doit("outdated").stdout == told
    assert project.made() == CHAIN


@pytest.fixture
def toolchain(memory: Path) -> Path:
    """A tinygrad of one's own, as `path` pins it."""
    package = Path(tinygrad.__file__).parent
    shutil.copytree(package, memory / "mine/tinygrad", ignore=shutil.ignore_patterns("__pycache__"))
    return memory / "mine"


@pytest.mark.parametrize("command", ["--verify", "fsck"])
def test_the_toolchain_is_read_again(tmp_path: Path, memory: Path, toolchain: Path, command: str) -> None:
    put_a_source(memory)
    project = Project(tmp_path, model("mlp", SOURCE.format(memory), 'type = "generic"'))
    project.edit('tinygrad = "0.14.0"', f'path = "{toolchain}"')
    project.doit()
    module = toolchain / "tinygrad/tensor.py"
    text = module.read_bytes()
    comment = next(line for line in text.splitlines() if line.lstrip().startswith(b"# ") and len(line) > 20)
    write_unseen(module, comment, comment.replace(b"# ", b"#-", 1))
    assert project.made() == []
    done = project.doit(command, fails=command == "fsck")
    assert f"{module}: its bytes changed, and its times did not: sha256 " in done.stdout
    if command == "fsck":
        done = project.doit()
    assert "✓  candidate:mlp" in done.stdout


@pytest.mark.parametrize("command", ["--verify", "fsck"])
@pytest.mark.parametrize("name", ["tensor.py", "__pycache__/tensor.*.pyc"])
def test_our_copy_of_the_toolchain_is_read_again(
    tmp_path: Path, memory: Path, name: str, command: str
) -> None:
    put_a_source(memory)
    project = Project(tmp_path, model("mlp", SOURCE.format(memory), 'type = "generic"'))
    drive = memory / "drive"
    project.doit("--workspace", str(drive))
    (file,) = drive.glob(f".store/toolchains/*/tinygrad/{name}")
    content = file.read_bytes()
    write_unseen(file, content[-200:], content[-200:][::-1])
    done = project.doit(command, "--workspace", str(drive), fails=command == "fsck")
    (copy,) = (one for one in file.parents if one.parent.name == "toolchains")
    assert f"{copy.relative_to(drive)}: this copy of tinygrad is not that of its name" in done.stdout
    assert not copy.exists()
    put_a_source(memory, seed=3)
    project.doit("--workspace", str(drive))
    assert file.exists()
    assert "every byte is as recorded" in project.doit("fsck", "--workspace", str(drive)).stdout
