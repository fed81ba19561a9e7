"""What the content store may let go: results that are neither recorded, nor young, nor among a step's newest.

References are read generously: every sha256 that stands anywhere in a record, or in a text of a release,
protects the blob and the result of that name. Temporary files go when the process that made them is gone.
"""

import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rules.errors import YardError
from rules.keeping.digests import Digests
from rules.keeping.files import LARGEST, TEMPORARY_PREFIX, is_folder, read, remove_tree
from rules.workspace import Workspace

SHA256 = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
TEXTS = (".json", ".sha256")  # manifests, lists of parts, checksums
UNITS = {"m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
MAKER = re.compile(rf"(?:{re.escape(TEMPORARY_PREFIX)})?(\d+)-")


@dataclass(frozen=True)
class Keep:
    """What stays although nothing refers to it: younger than `age` seconds, or of a step's newest so many."""

    age: float
    generations: int


def seconds(text: str) -> float:
    """An age such as `30d`, `12h`, `90m` or `2w`, in seconds. Raises YardError."""
    found = re.fullmatch(r"([0-9]{1,9})([mhdw])", text)
    if found is None:
        raise YardError(
            f"--keep: expected an age such as 30d, 12h, 90m or 2w, got {text!r}", fix="--keep 30d"
        )
    return float(int(found[1]) * UNITS[found[2]])


@dataclass(frozen=True)
class Result:
    """A stored result: its key, the step that made it, when it was last used (s since 1970), its blobs."""

    key: str
    path: Path
    step: str
    used: float
    blobs: frozenset[str]


@dataclass(frozen=True)
class Garbage:
    """What may go; `freed` is in bytes, where a file that has another name left counts for none."""

    results: tuple[Path, ...]
    temporaries: tuple[Path, ...]
    blobs: tuple[Path, ...]
    freed: int
    kept: int  # blobs that stay

    def remove(self) -> None:
        """Remove it. Killed half way it leaves blobs without a result, never a result without its blobs."""
        for path in (*self.results, *self.temporaries, *self.blobs):
            remove_tree(path)


def garbage(workspace: Workspace, releases: Path, keep: Keep, going: Collection[Path] = ()) -> Garbage:
    """What the store of a workspace can do without; only for the holder of its lock.

    `releases` is the folder that holds a folder for each release. Files that are `going` refer to nothing.
    Raises OSError when anything that could refer to a blob cannot be read: then nothing may go.
    """
    store = workspace.store.root
    referring = [path for top in (workspace.records.folder, releases) for path in _files(top)]
    referring = [path for path in referring if path not in going]
    referred = _named_in(referring) | _held(referring, releases, workspace.digests)
    every = [_result(path) for path in _files(store / "ac") if _is_sha256(path.stem)]
    kept = {one.key for one in every if one.key in referred} | _recent(every, keep)
    referred = referred.union(*(one.blobs for one in every if one.key in kept))
    results = tuple(one.path for one in every if one.key not in kept)
    known = [path for path in _files(store / "cas") if _is_sha256(path.name)]
    blobs = tuple(path for path in known if path.name not in referred)
    temporaries = tuple(_left_behind(workspace.root, store / "tmp"))
    gone = {*results, *blobs, *going, *(file for one in temporaries for file in _files(one))}
    return Garbage(results, temporaries, blobs, _size(gone), len(known) - len(blobs))


def _recent(results: Collection[Result], keep: Keep) -> set[str]:
    now = time.time()
    young = {one.key for one in results if now - one.used < keep.age}
    by_step: dict[str, list[Result]] = defaultdict(list)
    for one in sorted(results, key=lambda one: (-one.used, one.key)):
        by_step[one.step].append(one)
    return young | {one.key for row in by_step.values() for one in row[: keep.generations]}


def _result(path: Path) -> Result:
    """A result whose file is damaged restores nothing, so it holds no blobs."""
    used = path.stat().st_mtime
    try:
        raw = json.loads(read(path))
        blobs = frozenset(str(output["sha256"]) for output in raw["outputs"])
        return Result(path.stem, path, str(raw.get("step", "")), used, blobs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Result(path.stem, path, "", 0.0, frozenset())


# ---- references


def _named_in(files: Iterable[Path]) -> set[str]:
    found: set[str] = set()
    for path in files:
        if path.suffix in TEXTS:
            found.update(one.decode() for one in SHA256.findall(read(path, LARGEST)))
    return found


def _held(files: Iterable[Path], folder: Path, digests: Digests) -> set[str]:
    return {digests.of(path).sha256 for path in files if folder in path.parents}


def _is_sha256(name: str) -> bool:
    return SHA256.fullmatch(name.encode()) is not None


# ---- what killed runs left


def _left_behind(root: Path, scratch: Path) -> Iterator[Path]:
    """Scratch folders, and temporary files beside final names, of processes that are gone."""
    inside = sorted(scratch.iterdir()) if is_folder(scratch) else []
    yield from (path for path in inside if not _lives(path))
    for path in _files(root):
        if path.name.startswith(TEMPORARY_PREFIX) and scratch not in path.parents and not _lives(path):
            yield path


def _lives(path: Path) -> bool:
    """Whether the process that made a temporary file may still be at work; it put its number in the name."""
    maker = MAKER.match(path.name)
    if maker is None:
        return True
    try:
        os.kill(int(maker[1]), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


# ---- files


def _files(top: Path) -> Iterator[Path]:
    """The file itself, or every file under a folder, sorted. Raises OSError for a folder that is shut.

    What lies behind a link is not ours: a link is a file here.
    """
    if not is_folder(top):
        yield from [top] if os.path.lexists(top) else []
        return
    for where, folders, names in os.walk(top, onerror=_refuse):
        folders.sort()
        yield from (Path(where, name) for name in sorted(names))


def _refuse(error: OSError) -> None:
    raise error


def _size(paths: Iterable[Path]) -> int:
    """Bytes that come free when all these names go."""
    stats = [path.lstat() for path in paths]
    names = Counter((one.st_dev, one.st_ino) for one in stats)
    files = {(one.st_dev, one.st_ino): one for one in stats}
    return sum(one.st_size for inode, one in files.items() if one.st_nlink <= names[inode])
