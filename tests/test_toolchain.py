"""Toolchains: what a key holds of them, and what is said when they are not there."""

import json
import os
import py_compile
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import numpy
import pytest
from contract import ROOT, Project, generated, model

from rules.catalog import FlagSet, Toolchain
from rules.errors import CatalogError, SourceError, YardError
from rules.keeping.digests import Digests
from rules.toolchain import Toolchains, clang_version, machine, snapshot, tinygrad_root, tree_digest

CPU = FlagSet("cpu", {"DEV": "CPU:X86", "CC": "echo"}, None)


def pinned(**fields: str) -> Toolchain:
    return Toolchain("default", *(fields.get(name) for name in ("tinygrad", "path")))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "fork" / "tinygrad"
    (root / "runtime").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "tensor.py").write_text("x = 1\n")
    (root / "runtime" / "ops.py").write_text("y = 2\n")
    return root


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    return Digests(tmp_path / "digests.log")


def test_a_pinned_release_is_the_installed_one() -> None:
    root = tinygrad_root(pinned(tinygrad="0.14.0"), Path())
    assert (root / "tensor.py").is_file()


def test_another_release_is_refused_with_both_versions() -> None:
    with pytest.raises(CatalogError, match=r"0\.13\.0.*0\.14\.0"):
        tinygrad_root(pinned(tinygrad="0.13.0"), Path())


def test_a_folder_is_relative_to_the_catalog(tree: Path) -> None:
    assert tinygrad_root(pinned(path="fork"), tree.parent.parent) == tree


def test_a_folder_without_tinygrad_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is no tinygrad"):
        tinygrad_root(pinned(path="nowhere"), tmp_path)


def test_an_edited_tree_is_another_toolchain(tree: Path, digests: Digests) -> None:
    before = tree_digest(tree, digests)
    (tree / "runtime" / "ops.py").write_text("y = 3\n")
    assert tree_digest(tree, digests) != before


def test_a_renamed_file_is_another_toolchain(tree: Path, digests: Digests) -> None:
    before = tree_digest(tree, digests)
    (tree / "runtime" / "ops.py").rename(tree / "runtime" / "ops_cpu.py")
    assert tree_digest(tree, digests) != before


def test_a_digest_does_not_depend_on_place_time_or_litter(
    tree: Path, digests: Digests, tmp_path: Path
) -> None:
    before = tree_digest(tree, digests)
    copy = tmp_path / "elsewhere, a longer path" / "tinygrad"
    shutil.copytree(tree, copy)
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "tensor.py").write_text("")
    (copy / "._tensor.py").write_text("")
    os.utime(copy / "tensor.py", (1, 1))
    assert tree_digest(copy, digests) == before


def test_a_key_holds_versions_and_the_processor_and_no_place(digests: Digests) -> None:
    root = tinygrad_root(pinned(tinygrad="0.14.0"), Path())
    content = Toolchains(Path(), digests).identity(pinned(tinygrad="0.14.0"), CPU)
    assert {"tinygrad", "python", "numpy", "machine", "cpu_features"} <= content.keys()
    assert str(root.parent) not in str(content)
    assert os.uname().nodename not in str(content)


def test_an_edited_tree_is_seen_when_somebody_looks_again(tree: Path, digests: Digests) -> None:
    toolchains = Toolchains(tree.parent.parent, digests)
    before = toolchains.identity(pinned(path="fork"), CPU)
    (tree / "tensor.py").write_text("x = 2\n")
    toolchains.look_again()
    after = toolchains.identity(pinned(path="fork"), CPU)
    assert before["tinygrad"] != after["tinygrad"]
    assert {**before, "tinygrad": 0} == {**after, "tinygrad": 0}


def test_a_gpu_set_is_not_tied_to_the_processor() -> None:
    assert "cpu_features" not in machine(FlagSet("qcom", {"DEV": "QCOM"}, None))


def compiler(folder: Path, *lines: str) -> str:
    path = folder / "cc"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return str(path)


def test_a_compiler_is_known_by_its_first_line(tmp_path: Path) -> None:
    assert clang_version(compiler(tmp_path, "echo clang version 17", "echo more")) == "clang version 17"


def test_a_compiler_that_is_not_there_is_named() -> None:
    with pytest.raises(SourceError, match="no-such-cc"):
        clang_version("no-such-cc")


@pytest.mark.parametrize("line", ["exit 3", "true"], ids=["fails", "says nothing"])
def test_a_compiler_that_tells_no_version_is_refused_in_a_sentence(tmp_path: Path, line: str) -> None:
    with pytest.raises(YardError, match="cc"):
        clang_version(compiler(tmp_path, line))


# ---- the copy that compiles import


def imported(tree: Path) -> str:
    """What a module of the copy says when a process of its own imports it."""
    words = [sys.executable, "-s", "-P", "-c", "import tinygrad.tensor as t; print(t.x, t.__cached__)"]
    env = {"PYTHONPATH": str(tree.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout.split()[0]


def test_stale_bytecode_of_a_tree_is_not_what_a_compile_imports(
    tree: Path, digests: Digests, tmp_path: Path
) -> None:
    (tree / "tensor.py").write_text("x = 666\n")
    py_compile.compile(
        str(tree / "tensor.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    (tree / "tensor.py").write_text("x = 1\n")
    assert imported(tree) == "666"
    assert imported(snapshot(tree, tree_digest(tree, digests), tmp_path / "kept", digests)) == "1"


@pytest.mark.parametrize("damage", ["cut", "edited source", "no digest", "module beside it"])
def test_a_damaged_copy_is_made_anew(damage: str, tree: Path, digests: Digests, tmp_path: Path) -> None:
    expected = tree_digest(tree, digests)
    copy = snapshot(tree, expected, tmp_path / "kept", digests)
    (bytecode,) = copy.glob("__pycache__/tensor.*.pyc")
    whole = bytecode.read_bytes()
    if damage == "cut":
        bytecode.write_bytes(whole[:-5])
    elif damage == "edited source":
        (copy / "tensor.py").write_text("x = 2\n")
    elif damage == "module beside it":
        (copy.parent / "sitecustomize.py").write_text("raise SystemExit\n")
    else:
        (copy.parent / "bytecode.sha256").unlink()
    assert snapshot(tree, expected, tmp_path / "kept", digests) == copy
    assert bytecode.stat().st_size == len(whole)
    assert imported(copy) == "1"
    assert [path.name for path in copy.parent.parent.iterdir()] == [expected[:16]]


def test_a_copy_that_is_whole_is_left_alone(tree: Path, digests: Digests, tmp_path: Path) -> None:
    expected = tree_digest(tree, digests)
    inode = snapshot(tree, expected, tmp_path / "kept", digests).stat().st_ino
    assert snapshot(tree, expected, tmp_path / "kept", digests).stat().st_ino == inode


def test_a_tree_that_changed_meanwhile_is_not_copied(tree: Path, digests: Digests, tmp_path: Path) -> None:
    expected = tree_digest(tree, digests)
    (tree / "tensor.py").write_text("x = 2\n")
    with pytest.raises(SourceError, match="changed while a compile"):
        snapshot(tree, expected, tmp_path / "kept", digests)
    assert list((tmp_path / "kept").iterdir()) == []


def test_packages_that_a_compile_would_not_see_change_no_key(tmp_path: Path) -> None:
    """In PYTHONPATH, beside the dodo.py and among the user's own: none of them is what compiles."""
    project = Project(tmp_path / "project", model("mlp", generated("generic-mlp"), 'type = "generic"'))
    project.doit()
    home = tmp_path / "home"
    own = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    places = [tmp_path / "python", project.folder, home / ".local" / own]
    for place in places:
        for name, version in (("numpy", "9.9"), ("tinygrad", "0.13.0")):
            metadata = place / f"{name}-{version}.dist-info" / "METADATA"
            metadata.parent.mkdir(parents=True)
            metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    env = {"PYTHONPATH": f"{ROOT}:{places[0]}", "HOME": str(home)}
    assert json.loads(project.doit("outdated", "--json", env=env).stdout)["outdated"] == []
    assert project.made(env=env) == []
    assert project.record("mlp_artifact")["content"]["settings"]["toolchain"]["numpy"] == numpy.__version__
    project.edit("seed = 1", "seed = 2")
    assert "pkl:mlp" in project.made(env=env)
    assert project.record("mlp_artifact")["content"]["settings"]["toolchain"]["numpy"] == numpy.__version__


def test_numpy_that_only_pythonpath_has_is_no_numpy(tmp_path: Path) -> None:
    """An interpreter without packages runs our code from PYTHONPATH: its compiles would not find numpy."""
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    packages = Path(numpy.__file__).parent.parent
    done = subprocess.run(
        [bare / "bin/python", "-c", "from rules import host; host.numpy_version()"],
        env={"PYTHONPATH": f"{ROOT}:{packages}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"numpy is not installed for {bare}/bin/python" in done.stderr.splitlines()[-2]
