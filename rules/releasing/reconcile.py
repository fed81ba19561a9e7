"""An existing flat release folder brought under its release's names, as the recovered sources need it.

Everything is planned on a snapshot of the names, so that no mapping cascades, and refused as a whole before
anything moves. The plan is kept in the workspace while it is carried out, so that a killed run is finished by
the next; so is what was placed, since `deeprl33` is a source's name and, of other bytes, a release's. Nothing
that was handed over is a plan, and no name in it, or in ours, is more than that of a file in the folder.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rules.clients import starpilot
from rules.errors import ArtifactError, printable
from rules.keeping import files
from rules.keeping.digests import sha256_of
from rules.keeping.files import TEMPORARY_PREFIX, is_plain
from rules.releasing import namespace, parts

ARTIFACT = "_driving_tinygrad.pkl"
CHECKSUM = ".sha256"
MULTIPART = "multipart.json"
LARGEST_LIST = 1 << 24  # bytes; the largest published one has a thousandth of that
FORMAT = 2

Entry = dict[str, Any]


@dataclass(frozen=True)
class Naming:
    """What a release calls its models: published ID by source ID, and where some stand in its manifest.

    `after` is the release's (published ID → the one it stands after); `entries` are manifest entries of the
    IDs in it, for a folder that holds such an artifact and a manifest that lacks it.
    """

    release: str
    names: Mapping[str, str]
    after: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def before(self) -> dict[str, str]:
        """Source ID by published ID, of those that differ."""
        return {new: old for old, new in self.names.items() if new != old}


@dataclass(frozen=True)
class Known:
    """What the user knows of IDs that are a source's and, in the release, another model's."""

    sources: Collection[str] = ()
    published: Collection[str] = ()


@dataclass(frozen=True)
class Plan:
    """What will be done, in this order; digests tell a step that is still to do from one that is done.

    `seen` are the digests, as it was planned, of all files that it changes.
    """

    ids: dict[str, str] = field(default_factory=dict)  # old → new, of what moves
    equal: dict[str, str] = field(default_factory=dict)  # old → new, of duplicates that are dropped
    moves: list[tuple[str, str, str]] = field(default_factory=list)  # old, new, sha256
    writes: dict[str, str] = field(default_factory=dict)  # name → text
    inserted: list[str] = field(default_factory=list)  # IDs that the manifest gains
    drops: list[tuple[str, str]] = field(default_factory=list)  # name, sha256
    junk: list[str] = field(default_factory=list)
    stands: dict[str, str] = field(default_factory=dict)  # name → sha256, of what has its release's name
    seen: dict[str, str] = field(default_factory=dict)  # name → sha256

    @property
    def going(self) -> set[str]:
        """Names that something else has, or nothing, once this is done."""
        return {*(old for old, _, _ in self.moves), *(name for name, _ in self.drops), *self.junk}

    @property
    def moved(self) -> dict[str, str]:
        """New ID by old one, also of duplicates."""
        return self.ids | self.equal

    def placed(self) -> dict[str, str]:
        """Digests of the files that have a release's name once this is done."""
        written = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.writes.items()}
        return {**self.stands, **{new: sha256 for _, new, sha256 in self.moves}, **written}

    def new_name(self, name: str) -> str:
        """What the file `name` of an ID that moves or is dropped is called from then on."""
        old = name.partition(ARTIFACT)[0]
        return self.moved[old] + name.removeprefix(old)

    def lines(self) -> list[str]:
        """What happens, a line for each ID or file."""
        return [
            *(f"{old} → {self.ids[old]}" for old in sorted(self.ids)),
            *(f"{old}: dropped, {self.equal[old]} is the same" for old in sorted(self.equal)),
            *(f"{name}: removed" for name in self.junk),
            *(f"{name}: written" for name in self.writes if not name.endswith(CHECKSUM)),
            *(f"{one}: gets an entry in the manifest" for one in self.inserted),
        ]


def reconcile(
    folder: Path,
    naming: Naming,
    known: Known | None = None,
    *,
    kept: Path,
    dry: bool = False,
    lists: Sequence[Path] = (),
) -> list[str]:
    """Bring `folder` under the names of `naming` and return what was done; `dry` changes nothing.

    `lists` are other folders, whose manifest of the release follows the artifacts of this one. `kept` is a
    folder of ours for what is being done and was done. macOS's `._*` files go, an equal duplicate is dropped.
    Raises ArtifactError when a name is taken by other bytes, when an ID may be either a source's or the
    release's, for lists that are damaged, links, names that are none everywhere, and for files that changed
    after a run that was killed; then nothing was changed.
    """
    folder = folder.resolve()
    memory = _Memory(kept, folder)
    finished = memory.lines()
    for where, plan in memory.plans.items():
        _check_unchanged(Path(where), plan, memory)
    if memory.plans and dry:
        return finished  # what else there is to do shows once this is done
    _carry_out(memory)
    plan = planned(folder, naming, known or Known(), memory.placed)
    followers = {str(one): _planned_list(one, folder, naming, plan) for one in map(Path.resolve, lists)}
    plans = {str(folder): plan, **followers}
    memory.plans = {where: one for where, one in plans.items() if one != Plan()}
    done = memory.lines()
    if not dry and memory.plans:
        memory.placed |= plan.placed()
        memory.keep()
        _carry_out(memory)
    return [*finished, *done]


def missing(
    folder: Path,
    naming: Naming,
    known: Known | None = None,
    *,
    kept: Path,
    dry: bool = False,
    lists: Sequence[Path] = (),
) -> list[str]:
    """IDs in the release's manifests that have no artifact in `folder`, neither whole nor in parts; sorted.

    `dry` is to say what will be so once `reconcile` was called with the same.
    """
    folder = folder.resolve()
    moved: Mapping[str, str] = {}
    if dry:
        memory = _Memory(kept, folder)
        plan = memory.plans.get(str(folder)) or planned(folder, naming, known or Known(), memory.placed)
        moved = plan.moved
    whole = {moved.get(one, one) for one, names in _by_id(_listing(folder)).items() if _is_whole(one, names)}
    paths = [one / starpilot.manifest_name(naming.release) for one in (folder, *lists)]
    listed = [_manifest_of(path) for path in paths if files.is_file(path)]
    ids = {str(entry.get("id")) for entries in listed for entry in entries}
    return sorted({moved.get(one, one) for one in ids} - whole)


def is_release(folder: Path, naming: Naming) -> bool:
    """Whether anything of a release lies in `folder`: an artifact, or its manifest."""
    names = _listing(folder)
    return bool(_by_id(names)) or starpilot.manifest_name(naming.release) in names


def _is_whole(model_id: str, names: Collection[str]) -> bool:
    whole = starpilot.artifact_name(model_id) if not namespace.id_flaw(model_id) else ""
    return whole in names or {parts.part_name(whole, 0), f"{whole}{CHECKSUM}"} <= {*names}


def strangers(folder: Path, naming: Naming) -> list[str]:
    """IDs of artifacts in `folder` that no model of the release goes by, sorted."""
    ours = {*naming.names, *naming.names.values()}
    return sorted(one for one in _by_id(_listing(folder)) if one not in ours)


def planned(folder: Path, naming: Naming, known: Known, placed: Mapping[str, str]) -> Plan:
    """What `reconcile` would do; `placed` are digests by name of what it did before. Raises ArtifactError."""
    everything = _everything(folder)
    listing = [name for name in everything if not _is_junk(name)]
    by_id = _by_id(listing)
    plan = Plan(junk=[name for name in everything if _is_junk(name)])
    movers = _Movers(folder, naming, known, by_id, placed).found()
    for old, equal in reversed(list(movers.items())):  # the end of a chain goes first
        (plan.equal if equal else plan.ids)[old] = naming.names[old]
        for name in by_id[old]:
            _plan_file(plan, folder, name, plan.new_name(name), equal)
    kept = {*plan.writes, *(new for _, new, _ in plan.moves)}
    plan.drops[:] = [drop for drop in plan.drops if drop[0] not in kept]
    for one in known.published:
        plan.stands.update({name: sha256_of(folder / name) for name in by_id.get(one, [])})
    _plan_multipart(plan, folder)
    _plan_manifest(plan, folder, naming, plan.moved, by_id)
    _check_names(folder, [*everything, *plan.placed()])
    known_digests = {old: sha256 for old, _, sha256 in plan.moves} | dict(plan.drops)
    for name in {*plan.going, *plan.writes} & {*everything}:
        plan.seen[name] = known_digests.get(name) or sha256_of(folder / name)
    return plan


def _planned_list(where: Path, folder: Path, naming: Naming, artifacts: Plan) -> Plan:
    """What becomes of the manifest in `where`, once the plan for `folder` is carried out."""
    plan = Plan()
    _plan_manifest(plan, where, naming, artifacts.moved, _by_id(_listing(folder)))
    plan.seen.update({name: sha256_of(where / name) for name in plan.writes})
    return plan


def _everything(folder: Path) -> list[str]:
    """Names of all files, sorted; folders do not count. Raises ArtifactError for links, pipes and devices."""
    entries = sorted(folder.iterdir())
    for path in entries:
        if not (files.is_file(path) or files.is_folder(path)):
            found = "a link" if path.is_symlink() else "no plain file"
            raise ArtifactError(f"{printable(path)}: expected a file, got {found}", fix="move it away")
    names = [path.name for path in entries if files.is_file(path)]
    _check_names(folder, names)
    return names


def _check_names(folder: Path, names: Iterable[str]) -> None:
    """Raise ArtifactError for names that are no plain ones, or one name on some file systems."""
    names = list(dict.fromkeys(names))
    if odd := [name for name in names if not is_plain(name, files.LONGEST)]:
        raise ArtifactError(
            f"{printable(folder / odd[0])}: expected a name that every system gives a file, got {odd[0]!a}",
            fix="rename it, or move it away",
        )
    if pair := files.alike(names):
        raise ArtifactError(
            f"{printable(folder)}: {pair[0]!a} and {pair[1]!a} are one name where case or accents' forms do "
            "not count",
            fix="move one of them away",
        )


def _is_junk(name: str) -> bool:
    return name.startswith(("._", TEMPORARY_PREFIX)) or name == ".DS_Store"


def _listing(folder: Path) -> list[str]:
    """Names of the files that count, sorted."""
    return [name for name in _everything(folder) if not _is_junk(name)]


def _by_id(listing: Iterable[str]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for name in listing:
        model_id, mark, _ = name.partition(ARTIFACT)
        if mark:
            files.setdefault(model_id, []).append(name)
    return files


# ---- which IDs move


@dataclass(frozen=True)
class _Movers:
    folder: Path
    naming: Naming
    known: Known
    files: Mapping[str, list[str]]
    placed: Mapping[str, str]

    def found(self) -> dict[str, bool]:
        """The IDs that get a new name, heads of chains first; True where that has the same bytes."""
        names, movers = self.naming.names, dict[str, bool]()
        settled = {one for one in self.files if one in self.known.published or self._was_placed(one)}
        for old in self._heads_first():
            if old in self.files and names[old] != old and old not in settled:
                equal = self._equal(old, names[old])
                if not equal and self._is_published(old):
                    continue
                movers[old] = equal
                settled |= {names[old]} if equal else set()
        for old in (one for one, equal in movers.items() if not equal and names[one] in self.files):
            if names[old] not in movers:
                raise _conflict(self.folder, names[old])
        return movers

    def _was_placed(self, one: str) -> bool:
        return all(_digest(self.folder / name) == self.placed.get(name, "") for name in self.files[one])

    def _heads_first(self) -> list[str]:
        names, before, order = self.naming.names, self.naming.before, list[str]()
        for head in (old for old in names if old not in before):
            one: str | None = head
            while one is not None and one in names and one not in order:
                order.append(one)
                one = names[one]
        return order

    def _is_published(self, old: str) -> bool:
        """Whether an ID that is a source's is the release's name of another model here; that was no mover.

        Beside its own published name it is: another tool did this chain before. Alone it may be either.
        """
        head, new = self.naming.before.get(old), self.naming.names[old]
        if head is None or head in self.files or old in self.known.sources:
            return False
        if new not in self.files:
            raise _unclear(self.folder, old, head, new)
        return True

    def _equal(self, old: str, new: str) -> bool:
        of_new = self.files.get(new, [])
        return [new + name.removeprefix(old) for name in self.files[old]] == of_new and all(
            _bytes_of(self.folder / one) == _bytes_of(self.folder / other)
            for one, other in zip(self.files[old], of_new, strict=True)
        )


def _bytes_of(path: Path) -> str:
    """The digest of a file, or the one that a checksum file holds: that names its file besides."""
    return parts.read_checksum(path)[0] if path.name.endswith(CHECKSUM) else sha256_of(path)


def _conflict(folder: Path, new: str) -> ArtifactError:
    return ArtifactError(
        f"{folder / (new + ARTIFACT)}: expected nothing or the same bytes under this name, got others",
        fix=f"find out which one is {new}, and move the other away",
    )


def _unclear(folder: Path, old: str, head: str, new: str) -> ArtifactError:
    return ArtifactError(
        f"{folder / (old + ARTIFACT)}: {old} is a source, to be {new}, and the release's name of {head}; "
        f"expected {head} or {new} beside it to tell which, got neither",
        fix=f"add --source {old} if {new} is to be made of it, --published {old} if it was made of {head}",
    )


# ---- what becomes of files


def _plan_file(plan: Plan, folder: Path, name: str, new: str, equal: bool) -> None:
    sha256 = sha256_of(folder / name)
    if equal:
        plan.drops.append((name, sha256))
        plan.stands[new] = sha256_of(folder / new)
    elif name.endswith(CHECKSUM):
        plan.writes[new] = f"{_bytes_of(folder / name)}  {new.removesuffix(CHECKSUM)}\n"
        plan.drops.append((name, sha256))
    else:
        plan.moves.append((name, new, sha256))


def _plan_multipart(plan: Plan, folder: Path) -> None:
    path = folder / MULTIPART
    if not path.exists():
        return
    with _naming(path):
        listed = _entries_of(path)
        starpilot.multipart(_once(listed))  # only what has the form can be renamed
        content = starpilot.multipart(_once([_renamed(entry, plan.moved) for entry in listed]))
    _plan_text(plan, path, content)


def _content_of(path: Path) -> bytes:
    if (size := path.stat().st_size) > LARGEST_LIST:
        raise ArtifactError(f"expected a list of at most {LARGEST_LIST:,} bytes, got {size:,}")
    return path.read_bytes()


def _entries_of(path: Path) -> list[Entry]:
    try:
        listed = json.loads(files.read(path, LARGEST_LIST))
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"expected JSON: {error}") from None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ArtifactError(f"expected a list of artifacts, got {str(listed)[:60]}")
    return listed


def _manifest_of(path: Path) -> list[Entry]:
    with _naming(path):
        return starpilot.read_manifest(files.read(path, LARGEST_LIST))


def _plan_manifest(
    plan: Plan, folder: Path, naming: Naming, moved: Mapping[str, str], ids: Collection[str]
) -> None:
    """Planned last, as an entry follows its files; it gains what has a place in it and an artifact.

    `ids` are those of the artifacts as they are named now.
    """
    path = folder / starpilot.manifest_name(naming.release)
    if not path.exists():
        return
    present = {moved.get(one, one) for one in ids}
    with _naming(path):
        entries_now = starpilot.read_manifest(files.read(path, LARGEST_LIST))
        listed = _once([_renamed(entry, moved) for entry in entries_now])
        starpilot.manifest(listed)  # only what has the form has an order
        entries = {entry["id"]: entry for entry in listed}
        missing = {
            one: naming.after[one]
            for one in naming.names.values()
            if one in naming.after and one in present and one not in entries
        }
        plan.inserted.extend(missing)
        order = namespace.placed([*entries, *missing], missing)
        content = starpilot.manifest({**naming.entries, **entries}[one] for one in order)
    _plan_text(plan, path, content)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors in a list tell which file that is."""
    try:
        yield
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error.what}", fix=f"mend {path.name}, or move it away") from None


def _plan_text(plan: Plan, path: Path, content: bytes) -> None:
    if content != files.read(path):
        plan.writes[path.name] = content.decode()


def _renamed(entry: Entry, ids: Mapping[str, str]) -> Entry:
    old = entry.get("id")
    if not isinstance(old, str) or old not in ids:
        return entry
    new = {**entry, "id": ids[old]}
    if "filename" in entry:
        new["filename"] = ids[old] + str(entry["filename"]).removeprefix(old)
        new["parts"] = [ids[old] + str(part).removeprefix(old) for part in entry.get("parts", [])]
    return new


def _once(entries: Sequence[Entry]) -> list[Entry]:
    """Without equal duplicates; two different ones of an ID are refused by whoever writes them."""
    return [entry for index, entry in enumerate(entries) if entry not in entries[:index]]


# ---- doing it


class _Memory:
    """What is being done and what was done in one folder, kept in a folder of ours by that one's path."""

    def __init__(self, kept: Path, folder: Path) -> None:
        self.folder = str(folder)
        self.path = kept / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()}.json"
        self.plans: dict[str, Plan] = {}  # by folder: the one with the artifacts, then those with a list
        self.placed: dict[str, str] = {}
        try:
            with files.reading(self.path) as file:
                self.plans, self.placed = _remembered(json.loads(file.read()), self.folder)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(
                f"{self.path}: not what reconciling {printable(folder)} writes:"
                f" {type(error).__name__}: {error}",
                fix="remove it, and compare the folder by hand",
            ) from None

    def keep(self) -> None:
        """Write it down."""
        plans = {where: asdict(plan) for where, plan in self.plans.items()}
        raw = {"format": FORMAT, "folder": self.folder, "plans": plans, "placed": self.placed}
        files.write_bytes(self.path, json.dumps(raw, indent=1).encode())

    def lines(self) -> list[str]:
        """What is being done, a line for each ID or file."""
        told = []
        for where, plan in self.plans.items():
            inside = "" if where == self.folder else f"{Path(where).name}/"
            told += [inside + line if line.endswith(": written") else line for line in plan.lines()]
        return list(dict.fromkeys(told))


def _remembered(raw: Mapping[str, Any], folder: str) -> tuple[dict[str, Plan], dict[str, str]]:
    """The plans and what was placed; raises ValueError for what we would not have written of this folder."""
    if (raw["format"], raw["folder"]) != (FORMAT, folder):
        raise ValueError("of another folder")
    plans, placed = {str(one): _read_plan(plan) for one, plan in raw["plans"].items()}, dict(raw["placed"])
    names = {*placed}.union(*(one.going | one.placed().keys() | one.seen.keys() for one in plans.values()))
    if odd := sorted(name for name in names if not is_plain(name, files.LONGEST)):
        raise ValueError(f"expected names of files in it, got {odd[0]!a}")
    return plans, placed


def _read_plan(raw: Mapping[str, Any]) -> Plan:
    pairs = {
        "moves": [(old, new, sha256) for old, new, sha256 in raw["moves"]],
        "drops": [(name, sha256) for name, sha256 in raw["drops"]],
    }
    plan = Plan(**{**raw, **pairs})
    if not all(map(_is_junk, plan.junk)):
        raise ValueError("expected what macOS or a killed run left, got another name")
    for name in (*(old for old, _, _ in plan.moves), *(name for name, _ in plan.drops)):
        plan.new_name(name)  # of an ID that is in the plan
    return plan


def _check_unchanged(folder: Path, plan: Plan, memory: _Memory) -> None:
    """Before a plan of a killed run goes on: each file is as it was planned on, or as the plan makes it."""
    becomes = plan.placed()
    targets = {new for _, new, _ in plan.moves}
    present = {name: _digest(folder / name) for name in {*plan.seen, *becomes}}
    for name, got in sorted(present.items()):
        right = {one[name] for one in (plan.seen, becomes) if name in one}
        if got in right or (got is None and (name in plan.going or name not in plan.seen)):
            continue
        if name in targets and name not in plan.seen:
            raise _conflict(folder, name.partition(ARTIFACT)[0])
        raise _changed(folder / name, right, got, memory)
    for old, new, sha256 in plan.moves:
        if sha256 not in (present[old], present[new]):
            raise ArtifactError(
                f"{folder / old}: gone since a run that was killed, and not under its new name {new} either",
                fix=f"put it back, or remove {memory.path} to have the folder looked at anew",
            )


def _changed(path: Path, right: set[str], got: str | None, memory: _Memory) -> ArtifactError:
    expected = " or ".join(f"{one[:12]}…" for one in sorted(right))
    found = f"{got[:12]}…" if got else "nothing"
    return ArtifactError(
        f"{path}: changed since a run that was killed: expected sha256 {expected}, got {found}",
        fix=f"put it back as it was, or remove {memory.path} to have the folder looked at anew",
    )


def _carry_out(memory: _Memory) -> None:
    for where, plan in memory.plans.items():
        _carry_out_in(Path(where), plan, memory)
    if memory.plans:
        memory.plans = {}
        memory.keep()


def _carry_out_in(folder: Path, plan: Plan, memory: _Memory) -> None:
    becomes = plan.placed()
    for old, new, sha256 in plan.moves:
        if _digest(folder / old) == sha256:
            _move(folder, old, new, sha256)
    for name, text in plan.writes.items():
        if _digest(folder / name) not in (plan.seen.get(name), becomes[name]):
            raise _changed(folder / name, {becomes[name]}, _digest(folder / name), memory)
        files.write_bytes(folder / name, text.encode())
    for name, sha256 in plan.drops:
        new = plan.new_name(name)
        if _digest(folder / new) == becomes[new] and _digest(folder / name) == sha256:
            files.remove(folder / name)
    for name in plan.junk:
        files.remove(folder / name)
    files.sync_directory(folder)


def _move(folder: Path, old: str, new: str, sha256: str) -> None:
    try:
        files.move(folder / old, folder / new)
    except FileExistsError:
        if _digest(folder / new) != sha256:  # it came after this was planned
            raise _conflict(folder, new.partition(ARTIFACT)[0]) from None
        files.remove(folder / old)  # a run was killed between giving the new name and taking the old one


def _digest(path: Path) -> str | None:
    """The sha256 of a file; None when there is none, or no plain one."""
    return sha256_of(path) if files.is_file(path) else None
