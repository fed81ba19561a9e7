"""Digests, store, records, lock and files: what must hold whatever is built on them."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.errors import WorkspaceError
from rules.keeping.digests import GRANULARITY_NS, Digests
from rules.keeping.files import replacing, write_bytes
from rules.keeping.lock import Held, holding
from rules.keeping.records import Output, Record, Records
from rules.keeping.store import Store
from rules.keys import key_of

CONTENT = b"one content\n"
OTHER = b"another one\n"
SHA = hashlib.sha256(CONTENT).hexdigest()


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def aged(path: Path) -> None:
    """Wait until a change of `path` is old enough for its digest to be kept."""
    while time.time_ns() - path.stat().st_ctime_ns <= GRANULARITY_NS:
        time.sleep(0.002)


@pytest.fixture
def digests(tmp_path: Path) -> Digests:
    return Digests(tmp_path / "keep" / "digests.log")


@pytest.fixture
def store(tmp_path: Path, digests: Digests) -> Store:
    return Store(tmp_path / "keep", digests)


def put(store: Store, content: bytes) -> str:
    made = store.scratch() / "made"
    made.write_bytes(content)
    return store.put(made)


# ---- files


def test_a_file_appears_whole(tmp_path: Path) -> None:
    final = tmp_path / "new" / "folder" / "file"
    with replacing(final) as file:
        file.write(CONTENT)
        file.flush()
        assert not final.exists()
    assert final.read_bytes() == CONTENT
    assert listing(final.parent) == ["file"]


def test_a_failed_block_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    final = tmp_path / "file"
    write_bytes(final, CONTENT)
    with pytest.raises(KeyboardInterrupt), replacing(final) as file:
        file.write(OTHER)
        raise KeyboardInterrupt
    assert final.read_bytes() == CONTENT
    assert listing(tmp_path) == ["file"]


# ---- digests


def write_in_place(path: Path) -> None:
    path.write_bytes(OTHER)


def write_and_set_the_time_back(path: Path) -> None:
    before = path.stat()
    path.write_bytes(OTHER)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap_as_cp_p_does(path: Path) -> None:
    before, other = path.stat(), path.with_name("other")
    other.write_bytes(OTHER)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [write_in_place, write_and_set_the_time_back, swap_as_cp_p_does])
@pytest.mark.parametrize("again", [False, True], ids=["same process", "next process"])
def test_changed_bytes_of_one_size_are_seen(
    tmp_path: Path, change: Callable[[Path], None], again: bool
) -> None:
    assert len(CONTENT) == len(OTHER)
    log, path = tmp_path / "digests.log", tmp_path / "file"
    path.write_bytes(CONTENT)
    aged(path)
    keeper = Digests(log)
    assert keeper.of(path) == (SHA, len(CONTENT))
    keeper.flush(wait=True)
    change(path)
    assert (Digests(log) if again else keeper).of(path).sha256 == sha(OTHER)


def test_digests_outlive_the_process_and_are_not_computed_twice(tmp_path: Path) -> None:
    log, path = tmp_path / "digests.log", tmp_path / "file"
    path.write_bytes(CONTENT)
    keeper = Digests(log)
    keeper.of(path)
    keeper.flush(wait=True)
    # Put another digest under the file's stamp: only one that was remembered can come back.
    log.write_text(log.read_text().replace(SHA, "0" * 64))
    assert Digests(log).of(path).sha256 == "0" * 64
    doubting = Digests(log)
    doubting.doubt()
    assert doubting.of(path) == doubting.of(path) == (SHA, len(CONTENT))
    assert doubting.reads == 1
    assert doubting.contradicted == {str(path): ("0" * 64, SHA)}


def test_a_file_touched_without_change_is_read_once_more_and_not_again(tmp_path: Path) -> None:
    log, path = tmp_path / "digests.log", tmp_path / "file"
    path.write_bytes(CONTENT)
    keeper = Digests(log)
    keeper.of(path)
    os.utime(path)
    assert keeper.of(path).sha256 == SHA
    keeper.flush(wait=True)
    log.write_text(log.read_text().replace(SHA, "0" * 64))
    assert Digests(log).of(path).sha256 == "0" * 64


def test_a_young_file_is_not_trusted_by_the_next_process(tmp_path: Path) -> None:
    log, path = tmp_path / "digests.log", tmp_path / "file"
    path.write_bytes(CONTENT)
    Digests(log).of(path)  # no time to age, as in a process that is killed right here
    if time.time_ns() - path.stat().st_ctime_ns >= GRANULARITY_NS:
        pytest.skip("the machine was too slow to hash a young file")
    assert not log.exists() or str(path.stat().st_ino) not in log.read_text()


@pytest.mark.parametrize(
    "damage", ["[1, 2, 3", "null", '{"a": 1}', "[]", '"text"', "\x00\x00", "[1, 2, 3, 4]"]
)
def test_a_damaged_log_costs_only_the_time_to_hash(tmp_path: Path, damage: str) -> None:
    log, path = tmp_path / "digests.log", tmp_path / "file"
    path.write_bytes(CONTENT)
    keeper = Digests(log)
    keeper.of(path)
    keeper.flush(wait=True)
    with log.open("a") as file:
        file.write(damage)
    assert Digests(log).of(path).sha256 == SHA


def test_a_long_log_is_compacted_and_keeps_what_it_knows(tmp_path: Path) -> None:
    log, path = tmp_path / "digests.log", tmp_path / "file"
    path.write_bytes(CONTENT)
    keeper = Digests(log)
    keeper.of(path)
    keeper.flush(wait=True)
    log.write_text(log.read_text().replace(SHA, "0" * 64) * 1500)
    assert Digests(log).of(path).sha256 == "0" * 64
    assert len(log.read_text().splitlines()) < 10


def test_missing_files_and_folders_are_told_apart(tmp_path: Path, digests: Digests) -> None:
    with pytest.raises(FileNotFoundError):
        digests.of(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        digests.of(tmp_path)


def test_many_threads_agree(tmp_path: Path, digests: Digests) -> None:
    paths = [tmp_path / f"file{index}" for index in range(40)]
    for index, path in enumerate(paths):
        path.write_bytes(str(index).encode())
    wrong: list[Path] = []

    def hash_all() -> None:
        wrong.extend(p for i, p in enumerate(paths) if digests.of(p).sha256 != sha(str(i).encode()))

    threads = [threading.Thread(target=hash_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- store


@given(st.binary(max_size=100))
def test_bytes_come_back_under_their_digest(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = Store(folder / "keep", Digests(folder / "digests.log"))
    digest = put(store, content)
    assert digest == sha(content)
    assert put(store, content) == digest
    store.place(digest, folder / "deep" / "final")
    assert (folder / "deep" / "final").read_bytes() == content


def test_a_placed_file_shares_its_blocks(tmp_path: Path, store: Store) -> None:
    content = os.urandom(8 << 20)
    digest = put(store, content)
    finals = [tmp_path / f"final{index}" for index in range(8)]
    before = shutil.disk_usage(tmp_path).free
    for final in finals:
        store.place(digest, final)
    inodes = {final.stat().st_ino for final in finals} | {store.path_of(digest).stat().st_ino}
    assert len(inodes) == 1 or before - shutil.disk_usage(tmp_path).free < len(content)


def test_a_copy_is_made_where_no_link_can_be(tmp_path: Path, store: Store) -> None:
    other_disk = Path("/dev/shm")
    if not other_disk.is_dir() or other_disk.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system here")
    digest = put(store, CONTENT)
    final = other_disk / f"{os.getpid()}-{tmp_path.name}" / "final"
    try:
        store.place(digest, final)
        assert final.read_bytes() == CONTENT
        assert listing(final.parent) == ["final"]
        final.chmod(0o644)
        final.write_bytes(OTHER)
        assert store.path_of(digest).read_bytes() == CONTENT
    finally:
        shutil.rmtree(final.parent, ignore_errors=True)


@pytest.mark.parametrize("damage", [b"", CONTENT[:-1], OTHER])
def test_a_damaged_blob_is_refused_and_removed(tmp_path: Path, store: Store, damage: bytes) -> None:
    digest = put(store, CONTENT)
    store.note_result("key", {"outputs": [{"name": "a", "sha256": digest}], "facts": {}, "step": "pkl:m"})
    assert store.result("key") is not None
    store.path_of(digest).chmod(0o644)
    store.path_of(digest).write_bytes(damage)
    assert not store.holds(digest)
    assert store.result("key") is None
    final = tmp_path / "final"
    with pytest.raises(WorkspaceError, match="final"):
        store.place(digest, final)
    assert not final.exists()
    assert put(store, CONTENT) == digest
    assert store.holds(digest)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"outputs": 1}', '{"outputs": [{}]}', "{}"])
def test_a_result_that_cannot_be_read_is_none(store: Store, text: str) -> None:
    result = {"outputs": [], "facts": {}, "step": "pkl:m"}
    store.note_result("key", result)
    assert store.result("key") == {**result, "key": "key"}
    (path,) = (store.root / "ac").iterdir()
    path.write_text(text)
    assert store.result("key") is None


def test_a_forgotten_result_is_gone(store: Store) -> None:
    store.note_result("key", {"outputs": []})
    store.forget_result("key")
    store.forget_result("key")
    assert store.result("key") is None


def test_sweeping_leaves_what_is_finished(store: Store) -> None:
    digest = put(store, CONTENT)
    (store.scratch() / "half").write_bytes(b"ha")
    store.sweep()
    assert store.holds(digest)
    assert not list(store.root.glob("tmp/*"))


# ---- records

CONTENT_OF_KEY = {"settings": {"flags": {"DEV": "CPU"}}, "inputs": {"onnx": {"ä": "1"}}}
RECORD = Record(
    step="pkl:a",
    key=key_of(CONTENT_OF_KEY),
    content=CONTENT_OF_KEY,
    outputs=(Output("artifact", "compiled/a.pkl", 3, "f" * 64),),
    made="built",
    built_at="2026-01-01T00:00:00+00:00",
    seconds=1.5,
    facts={"notes": ["x"]},
)


def test_a_record_comes_back_as_it_was(tmp_path: Path, digests: Digests) -> None:
    records = Records(tmp_path / "results", digests)
    assert records.read("a") is None
    records.write("a", RECORD)
    assert records.read("a") == RECORD
    records.remove("a")
    records.remove("a")
    assert records.read("a") is None


def test_a_record_that_is_replaced_is_read_anew(tmp_path: Path, digests: Digests) -> None:
    records = Records(tmp_path, digests)
    for step in ("x", "y", "z"):  # of one size, one right after the other
        records.write("a", replace(RECORD, step=step))
        assert records.read("a") == replace(RECORD, step=step)
    aged(records.path_of("a"))
    assert records.read("a") is records.read("a")
    swap_as_cp_p_does(records.path_of("a"))
    assert records.read("a") is None


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_cut_record_is_none(tmp_path: Path, digests: Digests, keep: float) -> None:
    records = Records(tmp_path, digests)
    records.write("a", RECORD)
    whole = records.path_of("a").read_bytes()
    records.path_of("a").write_bytes(whole[: int(len(whole) * keep)])
    assert records.read("a") is None


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"outputs": None}, {"outputs": [{"name": "a"}]}, {"extra": 1}, {"outputs": [3]}]
)
def test_a_record_of_another_form_is_none(
    tmp_path: Path, digests: Digests, change: dict[str, object]
) -> None:
    records = Records(tmp_path, digests)
    records.write("a", RECORD)
    raw = json.loads(records.path_of("a").read_bytes())
    records.path_of("a").write_text(json.dumps({**raw, **change}))
    assert records.read("a") is None


@pytest.mark.parametrize("text", ["[]", "null", "3", '"text"', "\ufeff{}"])
def test_a_record_that_is_no_object_is_none(tmp_path: Path, digests: Digests, text: str) -> None:
    records = Records(tmp_path, digests)
    records.path_of("a").write_text(text)
    assert records.read("a") is None


# ---- lock

HOLDER = """
import sys, pathlib
from rules.keeping.lock import holding
with holding(pathlib.Path(sys.argv[1]), "doit pkl:pop"):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(path: Path) -> "subprocess.Popen[str]":
    """A process that holds the lock until its standard input closes."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_second_run_is_told_who_holds_the_workspace(tmp_path: Path) -> None:
    lock = tmp_path / "artifacts" / ".store" / "lock"
    with holder(lock) as child:
        with pytest.raises(Held) as refused, holding(lock, "doit", wait=False):
            pass
        with pytest.raises(Held) as unable, holding(lock, "doit fsck"):
            pass
        child.communicate()
    for one, advice in ((refused, "or add --wait"), (unable, "then doit fsck")):
        assert f"process {child.pid}" in str(one.value)
        assert "doit pkl:pop" in str(one.value)
        assert f"wait for it, {advice}" in str(one.value)
    with holding(lock, "doit"):
        pass


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    lock = tmp_path / "artifacts" / ".store" / "lock"
    with holder(lock) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
        with holding(lock, "doit"):
            pass


def test_waiting_ends_when_the_holder_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "artifacts" / ".store" / "lock"
    with holder(lock) as child:
        threading.Timer(0.2, child.kill).start()
        with holding(lock, "doit", wait=True):
            assert child.wait() != 0
    assert f"process {child.pid}" in capsys.readouterr().out
