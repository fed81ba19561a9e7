"""Commits, trees and blobs, each checked against its name: the name of a commit is then what pins a file."""

import contextlib
import difflib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rules.counting import counted
from rules.errors import SourceError
from rules.keeping.digests import CHUNK
from rules.keeping.files import replacing
from rules.sources import child, gitcommand, space

FILE, LINK, FOLDER, SUBMODULE = ("100644", "100755"), "120000", "040000", "160000"
LARGEST_TREE = 16 << 20  # bytes of a commit or of one folder's listing
TAGS = 5  # a tag may name a tag
NEAR = 5
KINDS = {LINK: "a symbolic link", FOLDER: "a folder", SUBMODULE: "a submodule"}


class Entry(NamedTuple):
    """A file in a commit's tree: git's mode and object name."""

    mode: str
    oid: str


class Absent(Exception):
    """An object is not here, or is of another kind."""


@dataclass(frozen=True)
class Listing:
    """What a commit has of the paths that were asked for, and why it has not the others."""

    entries: Mapping[str, Entry]
    gaps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Objects:
    """Objects of the bare repository `folder`, under the environment that `env` gives."""

    folder: Path
    env: Callable[[], dict[str, str]]
    _trees: dict[str, dict[str, Entry]] = field(default_factory=dict)

    # ---- paths of a commit

    def listing(self, commit: str, paths: Sequence[str]) -> Listing:
        """What the commit has at `paths`; of one that ends in /, all that is in it. Raises Absent."""
        root = self._root(commit)
        entries: dict[str, Entry] = {}
        gaps: dict[str, str] = {}
        for path in paths:
            named, gap = self._find(root, path.rstrip("/"))
            if gap:
                gaps[path] = gap
            elif named and path.endswith("/"):
                inside = self._tree(named.oid) if named.mode == FOLDER else {}
                entries |= {f"{path}{name}": entry for name, entry in inside.items()}
            elif named:
                entries[path] = named
        return Listing(entries, gaps)

    def _find(self, root: str, path: str) -> tuple[Entry | None, str]:
        """The entry at a path, or what stands in its way."""
        at, entry = "", Entry(FOLDER, root)
        for name in path.split("/"):
            if entry.mode != FOLDER:
                return None, _in_the_way(path, at, entry)
            inside = self._tree(entry.oid)
            if name not in inside:
                return None, _nearest(name, at, inside)
            at, entry = f"{at}/{name}" if at else name, inside[name]
        return entry, ""

    def _root(self, commit: str) -> str:
        """The tree of a commit, or of the commit that a tag names. Raises Absent."""
        name = commit
        for _ in range(TAGS):
            kind = self.kinds([name]).get(name, ("", 0))[0]
            content = self._content(name, kind if kind in ("commit", "tag") else "commit")
            found = re.match(rb"(tree|object) ([0-9a-f]{40})\n", content)
            if found is None:
                raise Absent(name)
            name = found[2].decode()
            if kind == "commit":
                return name
        raise Absent(name)

    def _tree(self, oid: str) -> dict[str, Entry]:
        if oid not in self._trees:
            self._trees[oid] = _entries(oid, self._content(oid, "tree"))
        return self._trees[oid]

    # ---- objects by name

    def kinds(self, oids: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Kind and size in bytes of those of the objects that are here."""
        asked = "".join(f"{oid}\n" for oid in oids).encode()
        ran = self._run(["cat-file", "--batch-check"], asked)
        rows = [line.split(" ") for line in os.fsdecode(ran).splitlines()]
        return {row[0]: (row[1], int(row[2])) for row in rows if len(row) == 3 and row[2].isdecimal()}

    def small(self, oid: str, most: int) -> bytes:
        """A blob of at most so many bytes. Raises Absent for any other."""
        kind, size = self.kinds([oid]).get(oid, ("", 0))
        if kind != "blob" or size > most:
            raise Absent(oid)
        return self._content(oid, "blob")

    def _content(self, oid: str, kind: str) -> bytes:
        found, size = self.kinds([oid]).get(oid, ("", 0))
        if found != kind:
            raise Absent(oid)
        if size > LARGEST_TREE:
            raise SourceError(
                f"{kind} {oid} has {counted(size, 'byte')}, expected at most {LARGEST_TREE:,}",
                fix="name another repository that has this commit",
            )
        content = self._run(["cat-file", kind, oid])
        check(oid, kind, len(content), _sha1(kind, len(content), content))
        return content

    def _run(self, arguments: Sequence[str], given: bytes = b"") -> bytes:
        ran = gitcommand.run(["--git-dir", str(self.folder), *arguments], self.env(), given)
        return ran.stdout if ran.returncode == 0 else b""

    @contextlib.contextmanager
    def blob(self, oid: str) -> Iterator[tuple[int, BinaryIO]]:
        """A blob's size in bytes and a stream that starts at its first byte. Raises SourceError."""
        arguments = ["--git-dir", str(self.folder), "cat-file", "--batch"]
        with gitcommand.started(arguments, self.env()) as process:
            assert process.stdin and process.stdout
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(f"{oid}\n".encode())
                process.stdin.close()
            content = child.patient(process.stdout)
            header = content.readline().split()
            if header[1:2] != [b"blob"]:
                raise SourceError(f"git could not read blob {oid}", fix="git fsck in that repository")
            yield int(header[2]), content


def write(oid: str, size: int, stream: BinaryIO, final: Path) -> None:
    """Write a blob of `size` bytes that hashes to its name. Raises SourceError, and writes nothing then."""
    if lacking := space.lacking(final.parent, size):
        raise SourceError(f"blob {oid}: {lacking}", fix="free some space there, or correct the source's ref")
    total = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    left = size
    with replacing(final) as file:
        while left and (chunk := stream.read(min(left, CHUNK))):
            left -= len(chunk)
            total.update(chunk)
            file.write(chunk)
        check(oid, "blob", size - left, total.hexdigest())


def check(oid: str, kind: str, size: int, found: str) -> None:
    """Compare an object's name with what its content hashes to. Raises SourceError."""
    if found != oid:
        raise SourceError(
            f"expected {kind} {oid}, got {found} ({counted(size, 'byte')})",
            fix="git fsck in that repository, or fetch from another one",
        )


def checked(oid: str, content: bytes) -> bytes:
    """A blob that is held in memory, compared with its name. Raises SourceError."""
    check(oid, "blob", len(content), _sha1("blob", len(content), content))
    return content


def _sha1(kind: str, size: int, content: bytes) -> str:
    # git's object format: header, NUL, content
    return hashlib.sha1(f"{kind} {size}\0".encode() + content, usedforsecurity=False).hexdigest()


def _entries(oid: str, content: bytes) -> dict[str, Entry]:
    """The entries of a tree: mode, space, name, NUL and 20 bytes each."""
    entries, at = {}, 0
    while at < len(content):
        end = content.find(b"\0", at)
        mode, _, name = content[at:end].partition(b" ")
        if end < 0 or len(content) < end + 21 or not name:
            raise SourceError(f"tree {oid} is damaged", fix="git fsck in that repository")
        entries[os.fsdecode(name)] = Entry(mode.decode().zfill(6), content[end + 1 : end + 21].hex())
        at = end + 21
    return entries


# ---- what is told of a path that is not there


def kind_of(mode: str) -> str:
    """What an entry of this mode is, in words."""
    return KINDS.get(mode, "a file" if mode in FILE else f"mode {mode}")


def _in_the_way(path: str, at: str, entry: Entry) -> str:
    if entry.mode == SUBMODULE:
        return f"{at} is a submodule, at commit {entry.oid}: its own repository has {path[len(at) + 1 :]}"
    return f"{at} is {kind_of(entry.mode)}"


def _nearest(name: str, at: str, inside: Mapping[str, Entry]) -> str:
    where = f"{at} has" if at else "the commit has"
    near = difflib.get_close_matches(name, inside, NEAR, 0.5)
    beside = sorted(one for one in inside if one not in near and one.endswith(".onnx") and one[0] != ".")
    named = [*near, *beside] or sorted(inside)
    more = f" and {len(named) - NEAR} more" if len(named) > NEAR else ""
    return f"{where} {', '.join(named[:NEAR]) + more if named else 'nothing'}"
