"""Parts of large files: right or absent, through real files and killed processes."""

import hashlib
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.clients.starpilot import download
from rules.errors import ArtifactError, WorkspaceError, YardError
from rules.releasing import parts

NAME = "m_driving_tinygrad.pkl"


def made(folder: Path, content: bytes, name: str = NAME) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_bytes(content)
    return file


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())} if folder.exists() else {}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def split(tmp_path):
    file, out = made(tmp_path / "in", b"0123456789"), tmp_path / "out"
    return parts.split(file, out, part_size=4, force=True)


def test_split_writes_parts_and_a_sha256sum_line(split, tmp_path):
    out = tmp_path / "out"
    line = f"{sha256(b'0123456789')}  {NAME}\n".encode()
    assert listing(out) == {
        f"{NAME}.p00": b"0123",
        f"{NAME}.p01": b"4567",
        f"{NAME}.p02": b"89",
        f"{NAME}.sha256": line,
    }
    assert split == parts.Parts(
        NAME,
        10,
        sha256(b"0123456789"),
        tuple(out / f"{NAME}.p0{i}" for i in range(3)),
        out / f"{NAME}.sha256",
    )
    assert (tmp_path / "in" / NAME).read_bytes() == b"0123456789"


def test_sha256sum_agrees(split, tmp_path):
    joined = parts.join(split.checksum)
    assert joined == tmp_path / "out" / NAME
    run = subprocess.run(
        ["sha256sum", "--strict", "-c", split.checksum.name], cwd=tmp_path / "out", capture_output=True
    )
    assert run.returncode == 0, run.stderr


@settings(max_examples=40, deadline=None)
@given(
    content=st.binary(min_size=1, max_size=300),
    part_size=st.integers(3, 400),
    earlier=st.binary(min_size=1, max_size=300),
)
def test_round_trip_after_any_earlier_split(content, part_size, earlier, tmp_path_factory):
    folder = tmp_path_factory.mktemp("round")
    parts.split(made(folder / "in", earlier), folder / "out", part_size=3, force=True)
    result = parts.split(made(folder / "in", content), folder / "out", part_size=part_size, force=True)
    assert parts.join(result.checksum, folder / "whole").read_bytes() == content
    names = parts.part_names(NAME, len(content), part_size)
    assert sorted(listing(folder / "out")) == [*names, f"{NAME}.sha256"]
    sizes = [path.stat().st_size for path in result.parts]
    assert sizes[:-1] == [part_size] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= part_size


def test_a_file_over_the_limit_in_real_part_sizes(tmp_path):
    file = tmp_path / NAME
    size = 205_000_000
    with file.open("wb") as sparse:
        sparse.write(b"head")
        sparse.truncate(size)
    result = parts.split(file, tmp_path / "out")
    assert [path.stat().st_size for path in result.parts] == [99_614_720, 99_614_720, size - 2 * 99_614_720]
    assert max(path.stat().st_size for path in result.parts) <= parts.LIMIT
    assert parts.join(result.checksum, tmp_path / "back").stat().st_size == size
    assert parts.digest([tmp_path / "back"]) == parts.digest([file]) == (result.sha256, size)


def test_limits():
    assert not parts.needs_parts(100_000_000)
    assert parts.needs_parts(100_000_001)
    assert parts.part_names("a", 99_614_720) == ["a.p00"]
    assert parts.part_names("a", 99_614_721) == ["a.p00", "a.p01"]
    assert parts.part_names("a", 100, 1)[-1] == "a.p99"
    for size, part_size in [(101, 1), (0, 1), (1, 0), (1, parts.LIMIT + 1)]:
        with pytest.raises(ArtifactError):
            parts.part_names("a", size, part_size)


def refused(tmp_path, message, file, out, **options):
    before = listing(tmp_path / "out") if (tmp_path / "out").is_dir() else None
    with pytest.raises(YardError) as caught:
        parts.split(file, out, **{"part_size": 4, "force": True} | options)
    assert message in str(caught.value)
    if before is not None:
        assert listing(tmp_path / "out") == before


def test_refusals_leave_an_earlier_split_alone(split, tmp_path):
    file, out = tmp_path / "in" / NAME, tmp_path / "out"
    refused(tmp_path, "needs no parts: expected more than 100,000,000 bytes, got 10", file, out, force=False)
    refused(tmp_path, "expected at most 100, got 101", made(tmp_path / "in", bytes(101)), out, part_size=1)
    refused(tmp_path, "an empty file has no parts", made(tmp_path / "in", b""), out)
    refused(tmp_path, "expected a file to split, got nothing", tmp_path / "gone" / NAME, out)
    refused(tmp_path, "expected a file to split, got something else", tmp_path / "in", out)
    refused(tmp_path, "a checksum file cannot hold this name", made(tmp_path, b"123", "a\nb"), out)
    made(tmp_path / "in", b"0123456789")
    refused(tmp_path, "expected a directory for the parts", file, made(tmp_path, b"1", "plain"))
    refused(tmp_path, "cannot be split into", file, tmp_path / "plain" / "below")
    assert (tmp_path / "plain").read_bytes() == b"1"


def test_a_chunk_marker_is_refused_because_it_shadows_the_file(split, tmp_path):
    file, out = tmp_path / "in" / NAME, tmp_path / "out"
    (out / f"{NAME}.chunkmanifest").write_text("2")
    refused(tmp_path, "a chunk marker shadows", file, out)
    with pytest.raises(ArtifactError, match="a chunk marker shadows"):
        parts.join(split.checksum)


def test_a_directory_in_the_way_of_a_stale_part_is_refused_before_writing(split, tmp_path):
    (tmp_path / "out" / f"{NAME}.p07").mkdir()
    with pytest.raises(WorkspaceError, match="expected a file or nothing, got a directory"):
        parts.split(tmp_path / "in" / NAME, tmp_path / "out", part_size=1, force=True)
    assert split.parts[0].read_bytes() == b"0123"


def test_an_input_that_changes_meanwhile_is_refused(split, tmp_path):
    out = tmp_path / "out"
    file = made(tmp_path / "in", bytes(40_000_000))
    before, done = listing(out), threading.Event()

    def write():
        with file.open("r+b") as busy:
            for count in range(10**9):
                busy.seek(count * 999_983 % 40_000_000)
                busy.write(count.to_bytes(8, "big"))
                busy.flush()
                if done.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with pytest.raises(ArtifactError, match="changed while it was split"):
            parts.split(file, out, part_size=1_000_000, force=True)
    finally:
        done.set()
        writer.join()
    assert listing(out) == before


def test_a_full_disk_leaves_the_earlier_split(split, tmp_path):
    code = (
        "import resource, signal, sys; from pathlib import Path; from rules.releasing.parts import split\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try: split(Path(sys.argv[1]), Path(sys.argv[2]), part_size=200, force=True)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    before = listing(tmp_path / "out")
    file = made(tmp_path / "in", bytes(1000))
    run = subprocess.run(
        [sys.executable, "-c", code, str(file), str(tmp_path / "out")], capture_output=True, text=True
    )
    assert run.stdout.startswith("WorkspaceError"), run.stdout + run.stderr
    assert listing(tmp_path / "out") == before


def test_an_earlier_split_goes_whole_and_nothing_else(split, tmp_path):
    out = tmp_path / "out"
    made(out, b"x", f"other{NAME}.p00")
    new = parts.split(made(tmp_path / "in", b"01"), out, part_size=4, force=True)
    assert sorted(listing(out)) == [f"{NAME}.p00", f"{NAME}.sha256", f"other{NAME}.p00"]
    assert parts.join(new.checksum, tmp_path / "whole").read_bytes() == b"01"


def wrong(tmp_path, checksum, message, output=None):
    before = listing(tmp_path / "out")
    with pytest.raises(YardError) as caught:
        parts.join(checksum, output)
    assert message in str(caught.value)
    assert listing(tmp_path / "out") == before


def test_join_tells_both_hashes_and_the_parts(split, tmp_path):
    split.parts[1].write_bytes(b"45x7")
    made(tmp_path / "out", b"kept")
    message = (
        f"wrong sha256 over {NAME}.p00 4 B, {NAME}.p01 4 B, {NAME}.p02 2 B: expected {split.sha256}, got "
    )
    wrong(tmp_path, split.checksum, message + sha256(b"012345x789"))
    wrong(tmp_path, split.checksum, message, tmp_path / "else")
    assert not (tmp_path / "else").exists()


def test_join_sees_gaps_and_empty_parts(split, tmp_path):
    split.parts[1].write_bytes(b"")
    wrong(tmp_path, split.checksum, f"{NAME}.p01: expected a part of 1 byte or more")
    split.parts[1].unlink()
    wrong(tmp_path, split.checksum, f"{NAME}.p01: this part is missing: expected it before {NAME}.p02")
    split.parts[0].unlink()
    wrong(tmp_path, split.checksum, f"{NAME}.p00: this part is missing")


def test_join_without_the_last_part_is_a_wrong_hash(split, tmp_path):
    split.parts[2].unlink()
    wrong(tmp_path, split.checksum, "got " + sha256(b"01234567"))


def test_join_checks_a_whole_file_when_there_are_no_parts(split, tmp_path):
    for path in split.parts:
        path.unlink()
    wrong(tmp_path, split.checksum, "got neither")
    whole = made(tmp_path / "out", b"0123456789")
    assert parts.join(split.checksum) == whole
    assert parts.join(split.checksum, tmp_path / "copy").read_bytes() == b"0123456789"
    whole.write_bytes(b"012345678X")
    wrong(tmp_path, split.checksum, f"wrong sha256 over {NAME} 10 B")


def test_join_never_replaces_its_own_inputs(split, tmp_path):
    wrong(tmp_path, split.checksum, "would replace what it is made of", split.parts[0])
    wrong(tmp_path, split.checksum, "would replace what it is made of", split.checksum)
    wrong(tmp_path, split.checksum, "got a directory", tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        "",
        f"{'0' * 63}  a",
        f"{'0' * 64} a",
        f"{'A' * 64}  a",
        f"{'0' * 64}  ../a",
        f"{'0' * 64}  /etc/a",
        f"{'0' * 64}  a\\b",
        f"{'0' * 64}  ..",
        f"{'0' * 64}  a\n{'0' * 64}  b\n",
        f"{'0' * 64}  a\r\n",
        f"{'0' * 64}  {'a' * 2000}",
        f"{'0' * 64}  {'a' * 256}",
    ],
)
def test_a_malformed_checksum_is_refused(line, tmp_path):
    file = tmp_path / "a.sha256"
    file.write_bytes(line.encode())
    with pytest.raises(ArtifactError, match="not a checksum file"):
        parts.join(file)


def test_a_checksum_of_another_file_is_refused(split, tmp_path):
    wrong(
        tmp_path,
        split.checksum.rename(tmp_path / "out" / "other.sha256"),
        "is of another file: expected 'other'",
    )
    with pytest.raises(WorkspaceError, match="cannot be read"):
        parts.join(tmp_path / "gone.sha256")


@given(content=st.binary(max_size=120))
def test_any_bytes_are_a_checksum_or_an_error(content, tmp_path_factory):
    file = tmp_path_factory.getbasetemp() / "any.sha256"
    file.write_bytes(content)
    try:
        digest, name = parts.read_checksum(file)
    except ArtifactError:
        return
    assert content.rstrip(b"\n").endswith(name.encode())
    assert content.startswith(digest.encode())


CHILD = """
import signal, sys
from pathlib import Path
from rules.releasing.parts import split
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
print("ready", flush=True)
split(Path(sys.argv[1]), Path(sys.argv[2]), part_size=int(sys.argv[3]), force=True)
print("done", flush=True)
"""


def child(file: Path, out: Path, part_size: int) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD, str(file), str(out), str(part_size)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert started.stdout.readline() == b"ready\n"
    return started


def obtained(out: Path) -> str:
    """What a client gets from `out` at this moment: a hash, or nothing."""
    try:
        return download(out, "m")
    except ArtifactError:
        return ""


def test_a_killed_split_never_leaves_a_mix_and_the_next_one_is_right(tmp_path):
    out = tmp_path / "out"
    old = made(tmp_path / "old", random.Random(1).randbytes(600_000))
    new = made(tmp_path / "new", random.Random(2).randbytes(400_000))
    hashes = {sha256(old.read_bytes()), sha256(new.read_bytes())}
    began = time.perf_counter()
    parts.split(old, out, part_size=10_000, force=True)
    usual = time.perf_counter() - began
    chance, landed = random.Random(3), 0
    for index in range(10):
        file = (new, old)[index % 2]
        with child(file, out, 10_000) as running:
            time.sleep(chance.random() * usual)
            running.send_signal(signal.SIGKILL)
        landed += running.returncode == -signal.SIGKILL
        assert obtained(out) in {*hashes, ""}
        if (out / f"{NAME}.sha256").exists():
            joined = parts.join(out / f"{NAME}.sha256", tmp_path / f"joined{index}")
            assert sha256(joined.read_bytes()) in hashes
        result = parts.split(file, out, part_size=10_000, force=True)
        assert sorted(listing(out)) == [*(path.name for path in result.parts), f"{NAME}.sha256"]
        assert obtained(out) == sha256(file.read_bytes())
    assert landed


def copying(out: Path) -> bool:
    return any(path.name.startswith(".tmp-") for path in out.iterdir())


def committing(out: Path) -> bool:
    return not (out / f"{NAME}.sha256").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("moment", "allowed"), [(copying, 2), (committing, 1)])
def test_a_signal_leaves_the_old_split_or_none(number, moment, allowed, split, tmp_path):
    out = tmp_path / "out"
    before = listing(out)
    file = made(tmp_path / "in", random.Random(4).randbytes(64_000_000))
    with child(file, out, 640_000) as running:
        while running.poll() is None and not moment(out):
            pass
        running.send_signal(number)
    assert running.returncode != 0
    after = listing(out)
    assert after in ({}, before)[:allowed], sorted(after)
