"""A git repository in a folder, perhaps a stranger's: objects and URLs are read, nothing is obeyed."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from rules.errors import SourceError
from rules.sources import gitcommand

LONGEST = 1 << 20  # bytes of a configuration, or of a file that names a folder
FAN_OUT = tuple(f"{number:02x}" for number in range(256))
# Of a repository of ours whose objects are another's: whatever it has may be fetched from it.
CONFIG = b"[core]\n\tbare = true\n[uploadpack]\n\tallowAnySHA1InWant = true\n\tallowFilter = true\n"


@dataclass(frozen=True)
class Folder:
    """A repository at `path`; `common` is the git directory that all its worktrees share."""

    path: Path
    common: Path

    @classmethod
    def at(cls, path: Path) -> "Folder | None":
        """The repository whose root is `path`, never one around it; None when there is none.

        Raises SourceError for a folder whose `.git` names a repository that does not name it back: nobody but
        its owner lends it.
        """
        named = path / ".git"
        for place in (named, path):
            if _is_git_directory(place):
                return cls(path, place.resolve())
        if not named.is_file():
            return None
        first = _text(named).partition("\n")[0]
        target = (path / first.removeprefix("gitdir:").strip()).resolve()
        if not first.startswith("gitdir:"):
            return None
        if common := _worktree(named, target) or _submodule(path, target):
            return cls(path, common)
        raise SourceError(
            f"{path}: its .git names {target}, which does not name it back",
            fix=f'if that repository is meant, write repository = "{target}" in models.toml',
        )

    # ---- what it says, which others may have written

    def settings(self, pattern: str) -> list[tuple[str, str]]:
        """Keys and values of its configuration, to be read and not to be obeyed."""
        return gitcommand.settings(os.fsencode(_text(self.common / "config")), pattern)

    def remotes(self) -> list[str]:
        """URLs of its remotes, origin first; those on this machine as absolute paths."""
        first: dict[str, str] = {}
        for key, url in self.settings(r"^remote\..*\.url$"):
            first.setdefault(key.removeprefix("remote.").removesuffix(".url"), url)
        return [first[name] for name in sorted(first, key=lambda name: (name != "origin", name))]

    @property
    def root(self) -> Path:
        """What relative paths of its remotes start from."""
        return self.common.parent if self.common.name == ".git" else self.common

    def lender(self) -> str:
        """Where it says that more of its objects are (objects/info/alternates); nothing for most."""
        named = _text(self.common / "objects" / "info" / "alternates").partition("\n")[0]
        return str((self.common / "objects" / named).resolve().parent) if named else ""

    def lfs_folders(self) -> list[Path]:
        """Where it keeps Git LFS objects, which are known by their digests."""
        stored = [self.common / Path(value).expanduser() for _, value in self.settings(r"^lfs\.storage$")]
        return [folder / "objects" for folder in [*stored[-1:], self.common / "lfs"]]

    # ---- its objects

    def view(self, place: Path) -> Path:
        """A bare repository of ours, made at `place`, that has its objects and nothing else of it."""
        objects = place / "objects"
        (objects / "info").mkdir(parents=True)
        (place / "refs").mkdir()
        (place / "config").write_bytes(CONFIG)
        (place / "HEAD").write_bytes(b"ref: refs/heads/none\n")
        for name in (*FAN_OUT, "pack"):
            theirs = self.common / "objects" / name
            if theirs.is_dir():
                (objects / name).symlink_to(theirs)
        return place


def _is_git_directory(path: Path) -> bool:
    """As git tells one (gitrepository-layout(5))."""
    return (path / "objects").is_dir() and (path / "refs").is_dir() and os.path.lexists(path / "HEAD")


def _worktree(named: Path, target: Path) -> Path | None:
    """The git directory that has this worktree among its own."""
    common = target.parent.parent
    back = _text(target / "gitdir").removesuffix("\n")
    if target.parent.name != "worktrees" or not back or not _is_git_directory(common):
        return None
    return common if (target / back).resolve() == named.resolve() else None


def _submodule(path: Path, target: Path) -> Path | None:
    """The git directory that says it is this folder's."""
    if not _is_git_directory(target):
        return None
    back = [value for _, value in Folder(path, target).settings(r"^core\.worktree$")]
    return target if back and (target / back[-1]).resolve() == path.resolve() else None


def _text(path: Path) -> str:
    """A small regular file; nothing for any other."""
    try:
        if not path.is_file():
            return ""
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(LONGEST + 1)
    except OSError:
        return ""
    return os.fsdecode(content) if len(content) <= LONGEST else ""


def is_url(text: str) -> bool:
    """A URL, or the `host:path` of ssh, which has no slash before its colon."""
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|[^/:]+:", text))
