"""The engine on steps made up for the test: no model, no compiler, real files."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rules.build import build
from rules.decide import Judge, State
from rules.errors import SourceError, WorkspaceError, YardError
from rules.keeping.digests import GRANULARITY_NS
from rules.keys import Content
from rules.step import Made, Step
from rules.workspace import Workspace


@dataclass
class Chain:
    """source file → copy:a → twice:a → folder:all, in one workspace; what is run is written down."""

    folder: Path
    settings: Content = field(default_factory=lambda: {"flag": "1"})
    ran: list[str] = field(default_factory=list)
    during: Callable[[str], None] = lambda task: None
    names: Mapping[str, str] = field(default_factory=lambda: {"a.txt": "twice"})

    def __post_init__(self) -> None:
        self.source.parent.mkdir(parents=True, exist_ok=True)
        self.source.write_text("one")
        self.workspace = Workspace(self.folder / "artifacts")

    @property
    def source(self) -> Path:
        return self.folder / "source.txt"

    def _made(self, task: str, scratch: Path, contents: Mapping[str, bytes]) -> Made:
        self.ran.append(task)
        paths = {name: scratch / name for name in contents}
        for name, content in contents.items():
            paths[name].write_bytes(content)
        self.during(task)
        return Made(dict(paths), {"task": task})

    def steps(self) -> list[Step]:
        """Fresh steps, as a new process would make them."""
        copy = Step(
            task="copy:a",
            record="a_copy",
            doc="",
            files=lambda: {"source.txt": self.source},
            settings=dict,
            make=lambda scratch, _: self._made("copy:a", scratch, {"copy": self.source.read_bytes()}),
            place=lambda name: f"copies/{name}",
            model="a",
        )
        twice = Step(
            task="twice:a",
            record="a_twice",
            doc="",
            settings=lambda: dict(self.settings),
            make=lambda scratch, _: self._made(
                "twice:a", scratch, {"twice": self.read("copies/copy").upper() * 2}
            ),
            place=lambda name: f"twice/{name}",
            after=(copy,),
            model="a",
        )
        folder = Step(
            task="folder:all",
            record="all_folder",
            doc="",
            settings=lambda: {"names": dict(self.names)},
            make=lambda scratch, _: self._made(
                "folder:all", scratch, dict.fromkeys(self.names, self.read("twice/twice"))
            ),
            place=lambda name: f"ready/{name}",
            after=(twice,),
            owns="ready",
        )
        return [copy, twice, folder]

    def read(self, path: str) -> bytes:
        return self.workspace.path(path).read_bytes()

    def run(self, *, force: bool = False, verify: bool = False) -> list[str]:
        """Build what is stale, as a new process would; returns what was really made."""
        self.workspace = Workspace(self.workspace.root)
        judge = Judge(self.workspace, verify=verify)
        self.ran.clear()
        for step in self.steps():
            if force or not judge.decide(step).fresh:
                build(step, judge, self.workspace, force=force)
        self.workspace.digests.flush(wait=True)
        return list(self.ran)

    def listing(self) -> list[str]:
        return sorted(path.name for path in self.workspace.path("ready").iterdir())

    def states(self) -> list[State]:
        judge = Judge(Workspace(self.workspace.root))
        return [judge.decide(step).state for step in self.steps()]

    def reasons(self, index: int) -> list[str]:
        judge = Judge(Workspace(self.workspace.root))
        return [str(reason) for reason in judge.decide(self.steps()[index]).reasons]

    def everything(self) -> dict[str, bytes]:
        top = self.workspace.root
        paths = (path for path in sorted(top.rglob("*")) if path.is_file() and ".store" not in path.parts)
        return {path.relative_to(top).as_posix(): path.read_bytes() for path in paths}


ALL = ["copy:a", "twice:a", "folder:all"]
FRESH = [State.FRESH] * 3


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    made = Chain(tmp_path)
    assert made.run() == ALL
    assert made.read("ready/a.txt") == b"ONEONE"
    return made


def overwrite(path: Path, content: bytes) -> None:
    """Change a file in place, links or not, and set its mtime back."""
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_nothing_is_done_twice_and_nothing_is_written(chain: Chain) -> None:
    before = {path: path.stat().st_mtime_ns for path in chain.workspace.root.rglob("*") if path.is_file()}
    assert chain.states() == FRESH
    assert chain.run() == []
    assert {p: p.stat().st_mtime_ns for p in chain.workspace.root.rglob("*") if p.is_file()} == before


def test_a_changed_source_is_told_and_all_that_follows_is_not_known_yet(chain: Chain) -> None:
    chain.source.write_text("two")
    assert chain.states() == [State.STALE, State.UNKNOWN, State.UNKNOWN]
    assert [reason.split()[0] for reason in chain.reasons(0)] == ["files.source.txt.sha256"]
    assert chain.reasons(1) == ["follows copy:a"]
    assert chain.run() == ALL
    assert chain.read("ready/a.txt") == b"TWOTWO"


def test_equal_bytes_stop_the_wave(chain: Chain) -> None:
    chain.source.write_text("ONE")  # another source, another copy, but twice the same
    assert chain.run() == ["copy:a", "twice:a"]
    assert chain.states() == FRESH


def test_a_setting_told_old_and_new_and_back_again_restores(chain: Chain) -> None:
    first = chain.everything()["results/a_twice.json"]
    chain.settings["flag"] = "2"
    assert chain.reasons(1) == ["settings.flag 1 → 2"]
    assert chain.run() == ["twice:a"]
    chain.settings["flag"] = "1"
    assert chain.run() == []
    assert chain.states() == FRESH
    assert b'"made": "restored"' in chain.everything()["results/a_twice.json"]
    assert b'"made": "built"' in first


def test_force_makes_everything_anew(chain: Chain) -> None:
    assert chain.run(force=True) == ALL


@pytest.mark.parametrize("target", ["copies/copy", "twice/twice", "ready/a.txt"])
@pytest.mark.parametrize("damage", ["deleted", "truncated", "flipped", "swapped"])
def test_damage_is_found_named_and_mended(chain: Chain, target: str, damage: str) -> None:
    path = chain.workspace.path(target)
    whole = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    elif damage == "truncated":
        overwrite(path, whole[:-1])
    elif damage == "flipped":
        overwrite(path, bytes([whole[0] ^ 1]) + whole[1:])
    else:
        before, other = path.stat(), path.with_name("other")
        other.write_bytes(whole.swapcase())
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(path)
    # Where targets share an inode, damage done in place shows upstream first.
    links = ["copies/copy", "twice/twice", "ready/a.txt"]
    told = [reason for index in range(3) for reason in chain.reasons(index)]
    assert any(name in reason for reason in told for name in links[: links.index(target) + 1])
    assert damage in ("truncated", "flipped") or any(target in reason for reason in told)
    chain.run()
    assert path.read_bytes() == whole
    assert chain.states() == FRESH
    assert chain.read("ready/a.txt") == b"ONEONE"


def test_a_flipped_byte_in_a_shared_inode_never_comes_back_from_the_store(chain: Chain) -> None:
    overwrite(chain.workspace.path("ready/a.txt"), b"ONEONF")
    chain.run()
    chain.workspace.path("ready/a.txt").unlink()
    chain.run()
    assert chain.read("ready/a.txt") == b"ONEONE"


def test_verify_reads_what_the_file_system_says_is_unchanged(chain: Chain) -> None:
    log = chain.workspace.hidden / "digests.log"
    path = chain.workspace.path("copies/copy")
    overwrite(path, b"onf")
    # Forge the remembered stamp, as bit rot leaves it: nothing but the bytes differs.
    stat = path.stat()
    digest = Workspace(chain.workspace.root).records.read("a_copy")
    assert digest is not None
    stamp = [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, digest.outputs[0].sha256]
    with log.open("a") as file:
        file.write(json.dumps(stamp) + "\n")
    assert chain.states()[0] is State.FRESH
    chain.run(verify=True)
    assert path.read_bytes() == b"one"


@pytest.mark.parametrize("record", ["a_copy", "a_twice", "all_folder"])
@pytest.mark.parametrize("text", [None, "", "{", "null", "[]"])
def test_a_lost_record_costs_no_work(chain: Chain, record: str, text: str | None) -> None:
    path = chain.workspace.records.path_of(record)
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    assert chain.states() != FRESH
    assert chain.run() == []  # everything is in the store
    assert chain.states() == FRESH


def test_an_edited_record_is_no_truth(chain: Chain) -> None:
    path = chain.workspace.records.path_of("a_twice")
    path.write_text(path.read_text().replace('"flag": "1"', '"flag": "9"'))
    chain.settings["flag"] = "9"
    assert chain.states()[1] is State.STALE
    assert chain.run() == ["twice:a"]


def test_a_source_edited_while_it_is_read_is_refused(chain: Chain) -> None:
    chain.source.write_text("two")
    chain.during = lambda task: chain.source.write_text("three") if task == "copy:a" else None  # type: ignore
    with pytest.raises(SourceError, match=r"source\.txt.* changed while it was being built"):
        chain.run()
    chain.during = lambda task: None
    assert chain.run() == ALL
    assert chain.read("ready/a.txt") == b"THREETHREE"


def test_a_setting_changed_while_it_is_used_is_refused(chain: Chain) -> None:
    chain.settings["flag"] = "2"

    def edit(task: str) -> None:
        chain.settings["flag"] = "3"

    chain.during = edit
    with pytest.raises(SourceError, match=r"settings\.flag"):
        chain.run()


def test_an_upstream_target_edited_before_it_is_read_is_no_input(chain: Chain) -> None:
    """What a step reads is what its key says it read, although a file was fresh when the run began."""
    chain.settings["flag"] = "2"
    workspace = Workspace(chain.workspace.root)
    judge = Judge(workspace)
    copy, twice, _ = chain.steps()
    assert judge.decide(copy).fresh
    assert not judge.decide(twice).fresh
    overwrite(workspace.path("copies/copy"), b"bad")
    chain.workspace = workspace
    try:
        build(twice, judge, workspace)
    except YardError:
        pass
    else:
        assert chain.read("twice/twice") == b"ONEONE"
    chain.run()
    assert chain.read("twice/twice") == b"ONEONE"
    assert chain.read("ready/a.txt") == b"ONEONE"


def test_a_failed_step_leaves_the_last_good_targets_and_a_record(chain: Chain) -> None:
    def fail(task: str) -> None:
        raise YardError("a: it broke", fix="mend it")

    before = {n: c for n, c in chain.everything().items() if not n.startswith("results/")}
    log = chain.workspace.log("a")
    log.parent.mkdir()
    log.write_text("\n".join(f"line {n}" for n in range(100)) + "\n")
    chain.settings["flag"] = "2"
    chain.during = fail
    with pytest.raises(YardError, match="it broke"):
        chain.run()
    after = chain.everything()
    failure = after.pop("results/a_failure.json").decode()
    assert {n: c for n, c in after.items() if not n.startswith(("results/", "logs/"))} == before
    for told in ('"step": "twice:a"', "a: it broke", "line 99", '"next": "doit twice:a"'):
        assert told in failure
    assert "line 1\\n" not in failure
    assert not list(chain.workspace.hidden.glob("tmp/*"))
    chain.during = lambda task: None
    chain.run()
    assert "results/a_failure.json" not in chain.everything()


@pytest.mark.parametrize("fault", [ValueError("odd"), KeyError("x"), OSError(28, "No space left on device")])
def test_any_fault_is_a_sentence_and_a_record(chain: Chain, fault: Exception) -> None:
    def fail(task: str) -> None:
        raise fault

    chain.settings["flag"] = "2"
    chain.during = fail
    with pytest.raises(YardError, match="twice:a"):
        chain.run()
    assert "results/a_failure.json" in chain.everything()
    chain.during = lambda task: None
    assert chain.run() == ["twice:a"]


def test_what_left_a_folder_of_ours_is_removed(chain: Chain) -> None:
    chain.names = {"b.txt": "twice"}
    chain.run()
    assert chain.listing() == ["b.txt"]


def test_our_own_litter_is_swept_from_a_folder(chain: Chain) -> None:
    ready = chain.workspace.path("ready")
    for name in (".DS_Store", "._a.txt", ".tmp-1-00000000-a.txt"):
        (ready / name).write_text("x")
    (ready / "copy.txt").write_bytes(b"ONEONE")  # what the store holds comes back at any time
    assert chain.states() != FRESH
    chain.run()
    assert chain.listing() == ["a.txt"]
    assert chain.states() == FRESH


def test_a_strangers_file_is_refused_and_nothing_is_lost(chain: Chain) -> None:
    ready = chain.workspace.path("ready")
    (ready / "letter.txt").write_text("mine")
    assert any("letter.txt" in reason for reason in chain.reasons(2))
    chain.source.write_text("two")
    with pytest.raises(WorkspaceError, match=r"letter\.txt"):
        chain.run()
    assert (ready / "letter.txt").read_text() == "mine"
    assert (ready / "a.txt").read_bytes() == b"ONEONE"
    (ready / "letter.txt").unlink()
    chain.run()
    assert (ready / "a.txt").read_bytes() == b"TWOTWO"


def test_a_step_is_not_built_on_what_is_stale(chain: Chain) -> None:
    chain.source.write_text("two")
    workspace = Workspace(chain.workspace.root)
    with pytest.raises(YardError, match="copy:a is not built"):
        build(chain.steps()[1], Judge(workspace), workspace)


def test_a_key_holds_no_place_and_no_time(tmp_path: Path) -> None:
    keys = []
    for name in ("a", "a much longer place, ä"):
        chain = Chain(tmp_path / name)
        os.utime(chain.source, (1, 1))
        chain.run()
        keys.append([chain.workspace.records.read(one).key for one in ("a_copy", "a_twice", "all_folder")])  # type: ignore
    assert keys[0] == keys[1]


def test_a_source_touched_without_change_is_fresh(chain: Chain) -> None:
    os.utime(chain.source)
    time.sleep(2 * GRANULARITY_NS / 1e9)
    assert chain.states() == FRESH


def test_a_missing_source_is_a_reason_and_a_sentence(chain: Chain) -> None:
    chain.source.unlink()
    assert chain.states()[0] is State.STALE
    with pytest.raises(YardError, match="copy:a"):
        chain.run()
    assert chain.read("ready/a.txt") == b"ONEONE"
