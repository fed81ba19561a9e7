"""A workspace on a real exFAT drive: no links, no modes, times in whole seconds, a ctime that can be set."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import needs
from contract import Project, generated, model

NAME = "Läufwerk T5 📡 模型"
CATALOG = (
    model("mlp", generated("generic-mlp"), 'type = "generic"')
    + model("pop", generated("vision-conv+attention"), 'since = "v22"')
    + '[release.v22]\ncontract = "warp"\n'
)
DELIVERED = ("onnx/", "compiled/", "manifests/", "ready-for-resources/")


@dataclass
class Drive:
    """A disk image with exFAT on it that can be plugged in and out."""

    image: Path
    folder: Path
    loop: str = ""

    def plug_in(self) -> None:
        """Skips the test where this machine mounts no such drive."""
        for words in (["losetup", "--show", "-f", self.image], ["mount.exfat-fuse", None, self.folder]):
            program = needs(str(words[0]))
            rest = [self.loop if word is None else word for word in words[1:]]
            done = subprocess.run([program, *rest], capture_output=True, text=True, check=False)
            if done.returncode:
                self.unplug()
                pytest.skip(f"this machine mounts no exFAT image: {done.stderr.strip()[-200:]}")
            self.loop = self.loop or done.stdout.strip()

    def unplug(self) -> None:
        subprocess.run(["umount", self.folder], capture_output=True, check=False)
        if self.loop:
            subprocess.run(["losetup", "-d", self.loop], check=True)
        self.loop = ""


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    top = tmp_path_factory.mktemp("exfat")
    maker, _, _ = map(needs, ("mkfs.exfat", "losetup", "umount"))
    drive = Drive(top / "image", top / "drive")
    drive.folder.mkdir()
    with drive.image.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run([maker, drive.image], check=True, capture_output=True)
    drive.plug_in()
    yield drive
    drive.unplug()


@pytest.fixture(scope="module")
def project(drive: Drive, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose whole workspace was built on the drive."""
    project = Project(tmp_path_factory.mktemp("project"), CATALOG, drive.folder / NAME)
    done = project.doit()
    assert "9 made, 0 up to date" in done.stdout
    return project


def delivered(project: Project) -> dict[str, bytes]:
    return {name: content for name, content in project.files().items() if name.startswith(DELIVERED)}


def test_what_is_built_there_is_what_is_built_elsewhere(project: Project, tmp_path: Path) -> None:
    elsewhere = Project(tmp_path, CATALOG)
    elsewhere.doit()
    assert delivered(project) == delivered(elsewhere)
    names = sorted(project.files("ready-for-resources/v22"))
    assert names == ["Versions/model_names_v22.json", "multipart.json", "pop_driving_tinygrad.pkl"]


def test_nothing_is_done_twice_and_every_byte_is_right(project: Project) -> None:
    assert project.made() == []
    assert json.loads(project.doit("outdated", "--json").stdout)["outdated"] == []
    assert "every byte is as recorded" in project.doit("fsck").stdout


def test_a_drive_that_was_plugged_in_again_is_known(project: Project, drive: Drive) -> None:
    drive.unplug()
    drive.plug_in()
    assert project.made() == []
    project.path(".store/seal.json").unlink()  # decide by records and digests, too
    assert project.made() == []


def test_what_was_removed_comes_back_from_the_store(project: Project) -> None:
    before = delivered(project)
    shutil.rmtree(project.path("ready-for-resources"))
    project.path("compiled/mlp_tinygrad.pkl").unlink()
    assert project.made() == ["pkl:mlp", "release:v22"]
    assert project.record("mlp_validation")["made"] == "restored"
    assert delivered(project) == before


def test_a_changed_setting_is_built_and_goes_back_without_a_compile(project: Project) -> None:
    project.edit('"generic-mlp", seed = 1', '"generic-mlp", seed = 2')
    assert project.made() == ["candidate:mlp", "onnx:mlp", "pkl:mlp"]
    project.edit("seed = 2", "seed = 1")
    project.doit()
    assert project.record("mlp_source")["made"] == "built"  # generated as fast as looked for
    assert {project.record(f"mlp_{one}")["made"] for one in ("artifact", "validation")} == {"restored"}


def test_a_change_behind_its_times_is_found_by_reading(project: Project) -> None:
    """Here a ctime is set with the mtime, so that no stat tells: that is what --verify is for."""
    artifact, before = project.path("compiled/pop_driving_tinygrad.pkl"), delivered(project)
    times, content = artifact.stat(), bytearray(artifact.read_bytes())
    content[1000] ^= 1
    with artifact.open("r+b") as file:
        file.write(content)
    os.utime(artifact, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = project.doit("--verify")
    assert "damaged: compiled/pop_driving_tinygrad.pkl (pkl:pop): byte 1000 differs" in done.stdout
    assert delivered(project) == before
    assert project.record("pop_validation")["made"] == "restored"


def test_one_run_at_a_time(project: Project) -> None:
    project.path(".store/lock").unlink()
    with project.standing_still("candidate:mlp", "-a", "candidate:mlp"):
        project.path(".store/lock").unlink()
        refused = project.doit(fails=True)
        assert refused.returncode == 4
        assert "holds this workspace" in refused.stderr
    project.doit()
    assert "every byte is as recorded" in project.doit("fsck").stdout
