"""Delivered files that somebody writes into: refused to most, found always, restored where it can be."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import needs
from contract import PATH, Project, generated, model
from test_workspace import without_links

POP = model("pop", generated("vision-conv+attention"), 'since = "v22"')
CATALOG = POP + '[release.v22]\ncontract = "warp"\n'
MLP = model("mlp", generated("generic-mlp"), 'type = "generic"')
NOBODY = 65534
DELIVERED = ("onnx/", "compiled/", "manifests/", "ready-for-resources/")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A released model, built once."""
    project = Project(tmp_path_factory.mktemp("template") / "project", CATALOG)
    project.doit()
    return project.folder


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    """A copy that keeps links between its files."""
    subprocess.run(["cp", "-a", template, tmp_path / "project"], check=True)
    return Project(tmp_path / "project")


def delivered(project: Project) -> list[Path]:
    return [project.path(name) for name in project.files() if name.startswith(DELIVERED)]


def scribble(project: Project, path: Path, **more: int) -> "subprocess.CompletedProcess[str]":
    """dd a byte into the middle of a file, as a careless tool does."""
    words = [f"of={path.relative_to(project.folder)}", "bs=1", "seek=50", "conv=notrunc", "status=none"]
    return subprocess.run(
        ["dd", *words], cwd=project.folder, input="x", text=True, capture_output=True, check=False, **more
    )


def test_nobody_writes_into_a_delivered_file_by_mistake(project: Project) -> None:
    ordinary = {}
    if os.geteuid() == 0:  # root may write anywhere
        ordinary = {"user": NOBODY, "group": NOBODY}
        project.folder.chmod(0o755)
        for path in (project.workspace, *project.workspace.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    whole = project.files()
    for path in delivered(project):
        assert "Permission denied" in scribble(project, path, **ordinary).stderr
    assert project.files() == whole


def test_a_copy_on_a_drive_without_links_is_as_safe(tmp_path: Path) -> None:
    project = Project(tmp_path, MLP)
    without_links(project)
    assert [path for path in delivered(project) if path.stat().st_mode & 0o222] == []
    artifact = project.path("compiled/mlp_tinygrad.pkl")
    artifact.chmod(0o644)
    assert scribble(project, artifact).returncode == 0
    without_links(project)
    assert project.record("mlp_validation")["made"] == "restored"
    assert artifact.stat().st_mode & 0o222 == 0


@pytest.mark.parametrize("name", ["compiled/pop_driving_tinygrad.pkl", "onnx/pop/pop_driving_policy.onnx"])
@pytest.mark.parametrize("seen_by", ["doit", "doit --verify", "doit fsck"])
def test_a_write_into_a_link_is_found_in_every_copy_and_made_anew(
    project: Project, name: str, seen_by: str
) -> None:
    path, whole = project.path(name), project.files()
    if path.stat().st_nlink == 1:
        pytest.skip("this disk shares bytes without links")
    path.chmod(0o644)
    assert scribble(project, path).returncode == 0
    if seen_by == "doit fsck":
        said = project.doit("fsck", fails=True).stdout
        assert f"{name} " in said
        assert "its bytes are not those of its name" in said
        assert "the store has lost the right bytes too" in said
    told = project.doit("outdated").stdout
    assert "was changed on disk" in told
    made = project.made(*(["--verify"] if seen_by == "doit --verify" else []))
    assert ("candidate:pop" if name.endswith(".pkl") else "onnx:pop") in made
    assert project.files().keys() == whole.keys()
    assert [one for one in whole if project.files()[one] != whole[one] and one.startswith(DELIVERED)] == []
    assert path.stat().st_mode & 0o222 == 0
    assert "every byte is as recorded" in project.doit("fsck").stdout


@pytest.fixture
def shares(tmp_path: Path) -> Iterator[Path]:
    """A mounted disk whose files can share bytes: xfs, else btrfs."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    for maker in ("mkfs.xfs", "mkfs.btrfs"):
        with image.open("wb") as file:
            file.truncate(512 << 20)
        program = shutil.which(maker, path=f"{PATH}:/usr/sbin:/sbin")
        commands = [[program, "-q", image], [needs("mount"), "-o", "loop", image, folder]]
        if program and not any(
            subprocess.run(one, capture_output=True, check=False).returncode for one in commands
        ):
            break
    else:
        pytest.skip("this machine makes and mounts no xfs or btrfs (that needs root and mkfs.xfs)")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_where_files_share_bytes_a_write_harms_one_and_it_is_restored(shares: Path) -> None:
    project = Project(shares / "project", CATALOG + MLP)
    project.doit()
    taken = shutil.disk_usage(shares).used
    assert all(path.stat().st_nlink == 1 and not path.stat().st_mode & 0o222 for path in delivered(project))
    whole = {path: path.read_bytes() for path in delivered(project)}
    for path in whole:
        path.chmod(0o644)
        assert scribble(project, path).returncode == 0
    project.doit()
    assert {path: path.read_bytes() for path in delivered(project)} == whole
    made = {one.name: project.record(one.stem)["made"] for one in project.path("results").glob("*.json")}
    assert made["pop_artifact.json"] == made["mlp_artifact.json"] == "built"  # as before: never touched
    assert made["pop_validation.json"] == "restored"
    assert made["pop_source.json"] == made["v22_release.json"] == "built"  # as fast as to check it
    assert shutil.disk_usage(shares).used - taken < 4 << 20
