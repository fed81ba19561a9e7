"""An existing flat release folder brought under its release's names, as the recovered sources need it.

Everything is planned on a snapshot of the names, so that no mapping cascades, and refused as a whole before
anything moves. The plan stands beside the folder while it is carried out, so that a killed run is finished by
the next; so does what was placed, since `deeprl33` is a source's name and, of other bytes, a release's.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rules.clients import starpilot
from rules.errors import ArtifactError
from rules.keeping.digests import sha256_of
from rules.keeping.files import TEMPORARY_PREFIX, sync_directory, write_bytes

RDF23: Mapping[str, Any] = {
    "id": "rdf23",
    "name": "Regret Driven Framework V2 👀📡",
    "version": "v15",
    "series": "OP Series",
    "released": "2026-08-10",
    "community_favorite": False,
}
RDF23_FOLLOWS = "rdfv23"
ARTIFACT = "_driving_tinygrad.pkl"
CHECKSUM = ".sha256"
MULTIPART = "multipart.json"

Entry = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What will be done, in this order; digests tell a step that is still to do from one that is done."""

    ids: dict[str, str] = field(default_factory=dict)  # old → new, of what moves or is dropped
    moves: list[tuple[str, str, str]] = field(default_factory=list)  # old, new, sha256
    writes: dict[str, str] = field(default_factory=dict)  # name → text
    drops: list[tuple[str, str]] = field(default_factory=list)  # name, sha256
    junk: list[str] = field(default_factory=list)
    stands: dict[str, str] = field(default_factory=dict)  # name → sha256, of what duplicates were dropped for

    def placed(self) -> dict[str, str]:
        """Digests of the files that have a release's name once this is done."""
        written = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.writes.items()}
        return {**self.stands, **{new: sha256 for _, new, sha256 in self.moves}, **written}

    def lines(self) -> list[str]:
        """What happens, a line each."""
        moves = [f"{old} → {new}" for old, new, _ in self.moves]
        writes = [f"{name}: rewritten" for name in self.writes]
        drops = [f"{name}: dropped, its bytes stand under the new name" for name, _ in self.drops]
        return [*moves, *writes, *drops, *(f"{name}: removed" for name in self.junk)]


def with_rdf23(entries: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """A v23 manifest's entries with rdf23 among them: after rdfv23 when it was absent, else at the end.

    Raises ArtifactError when an ID stands twice.
    """
    listed = [dict(entry) for entry in entries]
    ids = [entry.get("id") for entry in listed]
    for one in ids:
        if ids.count(one) > 1:
            raise ArtifactError(f"manifest: {one!r} stands {ids.count(one)} times: expected each ID once")
    if RDF23["id"] in ids:
        return listed
    at = ids.index(RDF23_FOLLOWS) + 1 if RDF23_FOLLOWS in ids else len(listed)
    return [*listed[:at], dict(RDF23), *listed[at:]]


def reconcile(folder: Path, names: Mapping[str, str], *, release: str = "v23", dry: bool = False) -> Plan:
    """Bring `folder` under `names` (source ID → release ID) and return what was done; `dry` changes nothing.

    macOS's `._*` files go, an equal duplicate is dropped. Raises ArtifactError when a name is taken by other
    bytes; then nothing was changed.
    """
    memory = _Memory(folder.with_name(f".{folder.name}.reconciled.json"))
    if memory.plan and not dry:
        _carry_out(folder, memory)
    plan = planned(folder, names, release, memory.placed)
    if not dry and plan != Plan():
        memory.plan = plan
        memory.placed |= plan.placed()
        memory.keep()
        _carry_out(folder, memory)
    return plan


def planned(folder: Path, names: Mapping[str, str], release: str, placed: Mapping[str, str]) -> Plan:
    """What `reconcile` would do; `placed` are digests by name of what it did before. Raises ArtifactError."""
    listing = sorted(path.name for path in folder.iterdir() if path.is_file())
    junk = [name for name in listing if name.startswith(("._", TEMPORARY_PREFIX)) or name == ".DS_Store"]
    files = _by_id(name for name in listing if name not in junk)
    plan = Plan(junk=junk)
    for old, equal in reversed(
        list(_movers(folder, names, files, placed).items())
    ):  # the end of a chain goes first
        plan.ids[old] = names[old]
        for name in files[old]:
            _plan_file(plan, folder, name, names[old] + name.removeprefix(old), equal)
    kept = {*plan.writes, *(new for _, new, _ in plan.moves)}
    plan.drops[:] = [drop for drop in plan.drops if drop[0] not in kept]
    _plan_lists(plan, folder, release)
    return plan


def _by_id(listing: Any) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for name in listing:
        model_id, mark, _ = name.partition(ARTIFACT)
        if mark:
            files.setdefault(model_id, []).append(name)
    return files


def _movers(
    folder: Path, names: Mapping[str, str], files: Mapping[str, list[str]], placed: Mapping[str, str]
) -> dict[str, bool]:
    """The IDs that get a new name, heads of chains first; True where the new name holds the same bytes."""
    before = {new: old for old, new in names.items() if new != old}
    movers: dict[str, bool] = {}
    settled = {one for one, own in files.items() if all(_is(folder / f, placed.get(f, "")) for f in own)}
    for old in _heads_first(names, before):
        new = names[old]
        if old not in files or old == new or old in settled:
            continue
        if old in before and before[old] not in files and new in files:
            continue  # another tool did this chain before: what is here is already the release's
        if new in files and _equal(folder, old, files[old], new, files[new]):
            movers[old] = True
            settled.add(new)
        else:
            movers[old] = False
    for old in (one for one, equal in movers.items() if not equal and names[one] in files):
        if names[old] not in movers:
            raise _conflict(folder, names[old])
    return movers


def _heads_first(names: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    order: list[str] = []
    for head in (old for old in names if old not in before):
        one: str | None = head
        while one is not None and one in names and one not in order:
            order.append(one)
            one = names[one]
    return order


def _equal(folder: Path, old: str, of_old: Sequence[str], new: str, of_new: Sequence[str]) -> bool:
    renamed = [new + name.removeprefix(old) for name in of_old]
    return renamed == list(of_new) and all(
        _bytes_of(folder / one) == _bytes_of(folder / other)
        for one, other in zip(of_old, of_new, strict=True)
    )


def _bytes_of(path: Path) -> str:
    """The digest of a file, or the one that a checksum file holds: that names its file besides."""
    return path.read_text().split()[0] if path.name.endswith(CHECKSUM) else sha256_of(path)


def _conflict(folder: Path, new: str) -> ArtifactError:
    return ArtifactError(
        f"{folder / (new + ARTIFACT)}: expected nothing or the same bytes under this name, got others",
        fix=f"find out which one is {new}, and move the other away",
    )


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


def _plan_lists(plan: Plan, folder: Path, release: str) -> None:
    """`multipart.json`, and the manifest last: an entry follows its files."""
    multipart, manifest = folder / MULTIPART, folder / starpilot.manifest_name(release)
    if multipart.exists():
        listed = [_renamed(entry, plan.ids) for entry in json.loads(multipart.read_bytes())]
        _plan_text(plan, multipart, starpilot.multipart(_once(listed)))
    if manifest.exists():
        entries = [_renamed(entry, plan.ids) for entry in starpilot.read_manifest(manifest.read_bytes())]
        _plan_text(plan, manifest, starpilot.manifest(with_rdf23(_once(entries))))


def _plan_text(plan: Plan, path: Path, content: bytes) -> None:
    if content != path.read_bytes():
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


class _Memory:
    """What is being done and what was done, in one file beside the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan: Plan | None = None
        self.placed: dict[str, str] = {}
        try:
            raw = json.loads(path.read_bytes())
            self.plan = _read_plan(raw["plan"]) if raw["plan"] else None
            self.placed = dict(raw["placed"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArtifactError(
                f"{path}: not what reconciling writes: {error}",
                fix="remove it, and compare the folder by hand",
            ) from None

    def keep(self) -> None:
        """Write it down."""
        raw = {"plan": asdict(self.plan) if self.plan else None, "placed": self.placed}
        write_bytes(self.path, json.dumps(raw, ensure_ascii=False, indent=1, sort_keys=True).encode())


def _read_plan(raw: Mapping[str, Any]) -> Plan:
    return Plan(
        ids=raw["ids"],
        moves=[(old, new, sha256) for old, new, sha256 in raw["moves"]],
        writes=raw["writes"],
        drops=[(name, sha256) for name, sha256 in raw["drops"]],
        junk=raw["junk"],
        stands=raw["stands"],
    )


def _carry_out(folder: Path, memory: _Memory) -> None:
    plan = memory.plan or Plan()
    for old, new, sha256 in plan.moves:
        if _is(folder / old, sha256):
            (folder / old).rename(folder / new)
    for name, text in plan.writes.items():
        write_bytes(folder / name, text.encode())
    for name, sha256 in plan.drops:
        if _is(folder / name, sha256):
            (folder / name).unlink()
    for name in plan.junk:
        (folder / name).unlink(missing_ok=True)
    sync_directory(folder)
    memory.plan = None
    memory.keep()


def _is(path: Path, sha256: str) -> bool:
    return path.exists() and sha256_of(path) == sha256
