"""A workspace that lies elsewhere: by option or variable, on a drive without links, with macOS's litter."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import needs
from contract import DODO, FILTERED, PATH, ROOT, Project, copied_rules, generated, model

from rules.keeping.digests import Digests, Stamp
from rules.releasing import parts
from rules.sources.generated import generate

NAME = "Läufwerk T5 📡 模型"
MLP = model("mlp", generated("generic-mlp"), 'type = "generic"')
CHAIN = ["candidate:mlp", "onnx:mlp", "pkl:mlp"]
# What FAT and exFAT lack: the system refuses links of both kinds, and shared extents, as Linux does there.
# seccomp(2); the numbers are those of x86-64.
WITHOUT_LINKS = (
    """
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
EPERM, ENOTTY, IOCTL, FICLONE = 1, 25, 16, 0x40049409
rules = [(LOAD, 0, 0, 0)]
for number in (86, 88, 265, 266):  # link, symlink, linkat, symlinkat
    rules += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | EPERM)]
rules += [(EQUAL, 0, 3, IOCTL), (LOAD, 0, 0, 24), (EQUAL, 0, 1, FICLONE), (RETURN, 0, 0, REFUSE | ENOTTY)]
rules += [(RETURN, 0, 0, ALLOW)]
"""
    + FILTERED
)


def without_links(project: Project, *words: str, package: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """doit where no file can have a second name; skips the test where the system cannot be told so."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the filter of system calls is written for x86-64 Linux")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LINKS, "-m", "doit", *words],
        cwd=project.folder,
        env={"PATH": PATH, "HOME": str(project.folder), "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("this machine lets no process filter its system calls")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def made(done: subprocess.CompletedProcess[str]) -> list[str]:
    return sorted(line.split()[1] for line in done.stdout.splitlines() if line.startswith("✓"))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One small model, built in the usual place."""
    project = Project(tmp_path_factory.mktemp("template") / "project", MLP)
    assert project.made() == CHAIN
    return project.folder


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Project:
    """A copy of it, whose workspace was moved to `drive`."""
    shutil.copytree(template, tmp_path / "project")
    (tmp_path / "project/artifacts").rename(tmp_path / "drive")
    return Project(tmp_path / "project")


# ---- which workspace


def test_the_option_names_the_workspace(project: Project) -> None:
    assert project.made("--workspace", "../drive") == []
    assert not project.workspace.exists()
    assert project.made("run", "mlp*", f"--workspace={project.folder.parent / 'drive'}", "-n", "2") == []
    assert project.made() == CHAIN  # without it, there is nothing yet


def test_the_variable_names_it_too_and_the_option_wins(project: Project) -> None:
    drive, other = str(project.folder.parent / "drive"), str(project.folder.parent / "other")
    assert project.made(env={"MODELS_WORKSPACE": drive}) == []
    assert project.made("--workspace", drive, env={"MODELS_WORKSPACE": other}) == []
    assert not Path(other).exists()


def test_the_option_wins_over_a_dodo_that_names_one(project: Project) -> None:
    dodo = project.folder / "dodo.py"
    dodo.write_text(DODO.replace('Yard("models.toml")', 'Yard("models.toml", "elsewhere")'))
    assert project.made("--workspace", "../drive") == []
    assert not (project.folder / "elsewhere").exists()


def test_a_relative_one_starts_where_it_was_typed(project: Project) -> None:
    away = project.folder.parent
    done = subprocess.run(
        [sys.executable, "-m", "doit", "-f", "project/dodo.py", "--workspace", "drive"],
        cwd=away,
        env={"PATH": PATH, "HOME": str(away), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "0 made, 3 up to date" in done.stdout
    assert not (project.folder / "drive").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("outdated",), "nothing is outdated: 3 steps"),
        (("why", "pkl:mlp"), "up to date"),
        (("list", "--all", "--status"), "U pkl:mlp"),
        (("info", "pkl:mlp"), "drive/compiled/mlp_tinygrad.pkl"),
        (("fsck",), "every byte is as recorded"),
        (("gc", "--dry-run"), "would free"),
        (("clean", "--dry-run", "pkl:mlp"), "drive/compiled/mlp_tinygrad.pkl"),
        (("reproduce", "mlp"), "same: artifact"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_every_command_takes_it_anywhere(project: Project, words: tuple[str, ...], said: str) -> None:
    command, *rest = words
    for line in ([command, "--workspace", "../drive", *rest], [command, *rest, "--workspace=../drive"]):
        done = project.doit(*line)
        assert said in done.stdout + done.stderr
        assert not project.workspace.exists()


def test_forget_forgets_there(project: Project) -> None:
    project.doit("forget", "--workspace", "../drive", "pkl:mlp")
    assert project.made("--workspace", "../drive") == ["pkl:mlp"]


def test_a_program_that_asks_twice_gets_two_answers(project: Project) -> None:
    """The option holds for one command, not for the process."""
    script = (
        "import sys\n"
        "from doit.doit_cmd import DoitMain\n"
        "first = DoitMain().run(['--workspace', '../drive'])\n"
        "del sys.modules['dodo']\n"
        "print([first, DoitMain().run(['outdated', '--exit-code'])])\n"
    )
    env = {"PATH": PATH, "HOME": str(project.folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=project.folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[0, 1]", done.stdout + done.stderr


def test_an_empty_name_is_refused(project: Project) -> None:
    assert "expected a folder, got nothing" in project.doit("--workspace=", fails=True).stderr


def test_a_file_in_its_place_is_told_in_a_sentence(project: Project) -> None:
    (project.folder / "file").write_text("x")
    assert "file" in project.doit("--workspace", "file", fails=True).stderr


# ---- an external drive


def test_spaces_and_letters_of_all_kinds(tmp_path: Path) -> None:
    project = Project(tmp_path / f"{NAME} yard", MLP)
    drive = tmp_path / NAME
    assert project.made("--workspace", str(drive)) == CHAIN
    assert (drive / "compiled/mlp_tinygrad.pkl").is_file()
    assert project.made("--workspace", str(drive)) == []
    project.doit("clean", "-a", "--workspace", str(drive))
    assert project.made("--workspace", str(drive)) == CHAIN


def test_a_drive_without_links(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", MLP)
    drive = tmp_path / NAME
    assert made(without_links(project, "--workspace", str(drive))) == CHAIN
    artifact = drive / "compiled/mlp_tinygrad.pkl"
    assert artifact.stat().st_nlink == 1
    assert made(without_links(project, "--workspace", str(drive))) == []
    artifact.unlink()
    assert made(without_links(project, "--workspace", str(drive))) == ["pkl:mlp"]
    assert "every byte is as recorded" in without_links(project, "fsck", "--workspace", str(drive)).stdout


def test_parts_on_a_drive_without_links(tmp_path: Path) -> None:
    """With the limit of a repository lowered, so that a small artifact is over it."""
    copied_rules(tmp_path / "copy")
    module = tmp_path / "copy/rules/releasing/parts.py"
    text = re.sub(r"^LIMIT = \S+", "LIMIT = 500_000", module.read_text(), flags=re.M)
    module.write_text(re.sub(r"^PART_SIZE = [^#\n]+", "PART_SIZE = 400_000  ", text, flags=re.M))
    project = Project(tmp_path / "project", model("elm", generated("vision-mixer+gru")))
    without_links(project, "parts:elm", "--workspace", "../drive", package=tmp_path / "copy")
    whole = tmp_path / "drive/compiled/elm_driving_tinygrad.pkl"
    pieces = sorted(whole.parent.glob("*.p[0-9][0-9]"))
    assert len(pieces) == -(-whole.stat().st_size // 400_000)
    assert parts.digest(pieces) == parts.digest([whole])
    assert parts.read_checksum(whole.with_name(f"{whole.name}.sha256"))[1] == whole.name


def test_a_drive_that_was_plugged_in_again(project: Project) -> None:
    """Other inode numbers, and times of whole 2 s."""
    drive, copy = project.folder.parent / "drive", project.folder.parent / "copy"
    shutil.copytree(drive, copy)
    for path in sorted(copy.rglob("*")):
        os.utime(path, (0, int(path.stat().st_mtime) // 2 * 2))
    assert project.made("--workspace", str(copy)) == []
    (copy / "compiled/mlp_tinygrad.pkl").chmod(0o644)
    damaged = bytearray((copy / "compiled/mlp_tinygrad.pkl").read_bytes())
    damaged[50] ^= 1
    times = (copy / "compiled/mlp_tinygrad.pkl").stat()
    (copy / "compiled/mlp_tinygrad.pkl").write_bytes(damaged)
    os.utime(copy / "compiled/mlp_tinygrad.pkl", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert project.made("--workspace", str(copy)) == ["pkl:mlp"]


@pytest.fixture
def coarse(tmp_path: Path) -> Iterator[Path]:
    """A mounted disk whose times are whole seconds: ext2 with small inodes (mke2fs(8), -I)."""
    image, folder = tmp_path / "image", tmp_path / NAME
    image.write_bytes(b"")
    os.truncate(image, 64 << 20)
    folder.mkdir()
    commands = [
        [needs("mkfs.ext2"), "-q", "-I", "128", image],
        [needs("mount"), "-o", "loop", image, folder],
    ]
    if any(subprocess.run(one, capture_output=True, check=False).returncode for one in commands):
        pytest.skip("this machine mounts no disk image (that needs root)")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("wait", [False, True], ids=["at once", "when the file has aged"])
def test_bytes_changed_within_a_step_of_the_clock_are_seen(coarse: Path, wait: bool) -> None:
    """Hashed, then written again with the same size: no stat tells, so the digest must not be kept."""
    path, log = coarse / "file", coarse / "digests.log"
    for _ in range(20):
        log.unlink(missing_ok=True)
        path.write_bytes(b"one")
        time.sleep(0.1)
        hashed = Digests(log)
        before = hashed.of(path)
        hashed.flush()
        stamp = Stamp.of(path)
        path.write_bytes(b"two")
        if Stamp.of(path) == stamp:
            hashed.flush(wait=wait)
            assert Digests(log).of(path) != before
            assert not wait or hashed.of(path) != before
            return
    pytest.skip("no two writes fell into one second")


def test_a_file_with_the_number_and_times_of_another_is_read(coarse: Path) -> None:
    """As after a FAT drive was plugged in again, which numbers its files in the order of their use."""
    one, other, log = coarse / "one", coarse / "other", coarse / "digests.log"
    for _ in range(20):
        for path in (one, other, log):
            path.unlink(missing_ok=True)
        one.write_bytes(b"one")
        hashed = Digests(log)
        before = hashed.of(one)
        hashed.remember(one, before.sha256)
        stamp = Stamp.of(one)
        one.unlink()
        other.write_bytes(b"two")
        if Stamp.of(other) == stamp:
            assert hashed.of(other) != before
            return
    pytest.skip("no second file got the number of the first")


def test_a_whole_build_on_coarse_times(project: Project, coarse: Path) -> None:
    assert project.made("--workspace", str(coarse)) == CHAIN
    assert project.made("--workspace", str(coarse)) == []
    assert (coarse / ".store/seal.json").is_file()


def test_another_file_system(project: Project) -> None:
    """Sources on one, the workspace on the other: nothing is linked or renamed across."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == project.folder.stat().st_dev:
        pytest.skip("this machine has no second file system at hand")
    drive = shared / f"modelyard-{os.getpid()} {NAME}"
    source = project.folder / "sources/mlp_model.onnx"
    source.parent.mkdir()
    source.write_bytes(generate("generic-mlp", seed=1, width=4)["model"])
    project.catalog = model(
        "mlp", 'source = { kind = "file", path = "sources", format = "generic" }\n', 'type = "generic"'
    )
    try:
        assert project.made("--workspace", str(drive)) == CHAIN
        assert project.made("--workspace", str(drive)) == []
    finally:
        shutil.rmtree(drive, ignore_errors=True)


# ---- what macOS leaves


def sprinkle(top: Path) -> int:
    """`._*` beside every file and .DS_Store in every folder; how many."""
    count = 0
    for where, folders, names in os.walk(top):
        folders[:] = sorted(folders)
        for name in [*(f"._{name}" for name in names), ".DS_Store"]:
            (Path(where) / name).write_bytes(b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X")
            count += 1
    return count


def test_litter_enters_no_listing_and_no_key(project: Project) -> None:
    drive = project.folder.parent / "drive"
    source = project.folder / "sources/mlp_model.onnx"
    source.parent.mkdir()
    source.write_bytes(generate("generic-mlp", seed=1, width=4)["model"])
    project.catalog = model(
        "mlp", 'source = { kind = "file", path = "sources", format = "generic" }\n', 'type = "generic"'
    )
    project.made("--workspace", str(drive))
    assert sprinkle(drive) + sprinkle(project.folder) > 20
    assert project.made("--workspace", str(drive)) == []
    assert json.loads(project.doit("outdated", "--json", "--workspace", str(drive)).stdout)["outdated"] == []
    assert "every byte is as recorded" in project.doit("fsck", "--workspace", str(drive)).stdout
    project.doit("gc", "--keep", "0m", "--workspace", str(drive))
    assert project.made("--workspace", str(drive)) == []


def test_litter_never_stays_in_a_release(yard: Project) -> None:
    release = yard.path("ready-for-resources/v23")
    before = sorted(path.name for path in release.iterdir())
    assert sprinkle(release) > 4
    told = json.loads(yard.doit("outdated", "--json").stdout)["outdated"]
    assert [row["task"] for row in told] == ["release:v23"]
    assert any(".DS_Store does not belong there" in reason["what"] for reason in told[0]["reasons"])
    assert yard.made() == ["release:v23"]
    assert sorted(path.name for path in release.iterdir()) == before
    assert yard.made() == []
