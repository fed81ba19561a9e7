"""A repository that a source names: its objects are read where they lie, others fetched into one of ours."""

import contextlib
import hashlib
import os
import re
import tempfile
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from rules.errors import SourceError
from rules.sources import gitcommand, lfs, ssh
from rules.sources.fetching import WITHIN_S, Watch
from rules.sources.gitfolder import Folder, is_url
from rules.sources.gitobjects import FILE, Absent, Listing, Objects
from rules.url import Login, Url

# What git says of a server that gives no commit by its name: all others would only repeat that they lack it.
BY_BRANCH_ONLY = ("unadvertised object", "dumb http transport")
LFS_CONFIG = ".lfsconfig"
LFS_URLS = r"^(lfs\.url|remote\..*\.lfsurl)$"
LONGEST_CONFIG = 1 << 20


@dataclass(frozen=True)
class Repository:
    """Where a commit is read from: the folder that the source names, if on this machine, and ours at `cache`.

    `remotes` are asked, in order, for what both lack. `named` are the places that models.toml names: only
    there goes a login that is bound to no host. `views` holds what is made of folders for the while.
    """

    shown: str
    cache: Path
    local: Folder | None
    remotes: tuple[Url, ...]
    named: tuple[Url, ...]
    views: Path

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls, named: object, base: Path, folder: Path, mirrors: Sequence[Url]
    ) -> "Iterator[Repository]":
        """The repository a source names; ours is a folder in `folder`. Raises SourceError."""
        if named is None:
            raise SourceError(
                "git source: names no repository",
                fix='write repository = "URL or FOLDER" under [defaults] in models.toml, or in the source',
            )
        text = str(named)
        with tempfile.TemporaryDirectory(prefix="modelyard-git-") as views:
            if text.startswith("file://") or not is_url(text):
                yield cls._here(base / (folder_of(text) or text), folder, mirrors, Path(views))
            else:
                url = _permitted(Url.of(text))
                yield cls(str(url), _ours(folder, text), None, (url,), (url, *mirrors), Path(views))

    @classmethod
    def _here(cls, path: Path, folder: Path, mirrors: Sequence[Url], views: Path) -> "Repository":
        local = Folder.at(path)
        if local is None:
            found = "an ordinary folder" if path.is_dir() else "no folder"
            raise SourceError(
                f"{path}: expected a git repository, found {found}",
                fix="correct the source's repository in models.toml",
            )
        # A user's insteadOf holds for the URLs of a clone, too.
        remotes = tuple(_rewritten(url, local.root) for url in local.remotes())
        return cls(str(path), _ours(folder, str(local.common)), local, remotes, tuple(mirrors), views)

    # ---- reading

    @cached_property
    def objects(self) -> Objects:
        """What is here, in the folder that the source names or in ours."""
        self._prepare()
        return Objects(self.cache, self._reads)

    @cached_property
    def _local_view(self) -> Path | None:
        return self.local.view(self.views / "local") if self.local else None

    def _reads(self) -> dict[str, str]:
        # Given here and not in our repository's own config: a fetch must not take for ours what a partial
        # clone has but in part.
        if not self._local_view:
            return gitcommand.environment()
        quoted = str(self._local_view / "objects").replace("\\", "\\\\").replace('"', '\\"')
        return gitcommand.environment(GIT_ALTERNATE_OBJECT_DIRECTORIES=f'"{quoted}"')

    def listing(self, commit: str, paths: Sequence[str]) -> Listing:
        """What the commit has at `paths` (of one that ends in /, all that is in it); fetched if need be."""
        try:
            return self.objects.listing(commit, paths)
        except Absent:
            self._fetch_commit(commit)
        try:
            return self.objects.listing(commit, paths)
        except Absent:
            raise SourceError(
                f"{self.shown}: expected commit {commit}, got another kind of object",
                fix="correct the source's ref in models.toml",
            ) from None

    def need(self, commit: str, blobs: Sequence[str]) -> None:
        """Fetch those of the blobs that are not here. Raises SourceError."""
        if self._missing(blobs):
            self._ask(commit, ["--filter=blob:none"], self._missing(blobs))
        if missing := self._missing(blobs):
            raise SourceError(
                f"{self.shown} at {commit[:12]}: blobs {', '.join(missing)} did not come",
                fix="try another repository that has this commit",
            )

    def _missing(self, blobs: Sequence[str]) -> list[str]:
        return sorted(set(blobs) - set(self.objects.kinds(blobs)))

    def blob(self, oid: str) -> "contextlib.AbstractContextManager[tuple[int, BinaryIO]]":
        """A blob's size in bytes and a stream of it."""
        return self.objects.blob(oid)

    def _prepare(self) -> None:
        if (self.cache / "HEAD").exists():
            return
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        with self._held():
            ran = gitcommand.run(["--git-dir", str(self.cache), "init", "--quiet", "--bare", "--template="])
            if ran.returncode:
                raise SourceError(
                    f"{self.cache}: {_cause(ran.stderr)}", fix="make room for it, then try again"
                )

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        with lfs.locked(self.cache.with_suffix(".lock")):
            yield

    # ---- fetching

    def _fetch_commit(self, commit: str) -> None:
        """Get the commit with its trees alone; where a server gives no commit by name, all its branches."""
        try:
            self._ask(commit, ["--depth=1", "--filter=blob:none"], [f"+{commit}:refs/kept/{commit}"])
        except SourceError as error:
            if not any(refusal in error.what for refusal in BY_BRANCH_ONLY):
                raise
            everything = ["+refs/heads/*:refs/kept/heads/*", "+refs/tags/*:refs/kept/tags/*"]
            self._ask(commit, ["--filter=blob:none"], everything)
            if not self.objects.kinds([commit]):
                raise

    def _ask(self, commit: str, options: Sequence[str], wanted: Sequence[str]) -> None:
        answers = []
        for number, remote in enumerate(self.remotes):
            if not (refusal := self._fetch(remote, self.views / str(number), options, wanted)):
                return
            answers.append(f"{remote}: {refusal}")
        raise SourceError(
            f"{self.shown}: commit {commit} is not complete here and could not be fetched: "
            f"{'; '.join(answers) or 'the repository has no remote'}{self._lent()}",
            fix="check the ref, or name a repository that has it (and that git may read) in the source",
        )

    def _lent(self) -> str:
        lender = self.local.lender() if self.local else ""
        return f"; it shares objects with {lender}, which is read only when the source names it" * bool(
            lender
        )

    def _fetch(self, remote: Url, view: Path, options: Sequence[str], wanted: Sequence[str]) -> str:
        """Fetch from one remote; why it did not come, or nothing."""
        folder = folder_of(remote.reveal())
        if folder is None:
            if refusal := _impermissible(remote):
                return refusal
            return self._fetched(remote, remote.reveal(), gitcommand.NETWORK, options, wanted)
        lender = Folder.at(folder)
        if lender is None:
            return "fatal: no repository is there"
        if not view.exists():
            lender.view(view)
        return self._fetched(remote, str(view), ("file",), options, wanted)

    def _fetched(
        self, remote: Url, place: str, protocols: Sequence[str], options: Sequence[str], wanted: Sequence[str]
    ) -> str:
        config = {
            "remote.source.url": place,
            "remote.source.promisor": "true",
            "remote.source.partialCloneFilter": "blob:none",
            "fetch.negotiationAlgorithm": "noop",
            "fetch.unpackLimit": "1",  # as a pack whose growth shows that something comes
        }
        strangers, hushed = ([], {}) if self._trusts(remote) else gitcommand.for_strangers()
        env = gitcommand.environment([*config.items(), *strangers], protocols, **hushed)
        quiet = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules"]
        words = ["--git-dir", str(self.cache), "fetch", *quiet, *options, "source", *wanted]
        self._prepare()
        with self._held():
            self._clear()
            try:
                ran = gitcommand.run(words, env, within_s=WITHIN_S, watch=Watch(self.cache))
            except SourceError as error:
                self._clear()
                return error.what
        return remote.scrub(_cause(ran.stderr)) if ran.returncode else ""

    def _trusts(self, url: Url) -> bool:
        """Whether models.toml names this place, or the user's own configuration names it for LFS."""
        named = [*self.named, *(Url.of(value) for _, value in gitcommand.users(LFS_URLS))]
        return _home(url) in map(_home, named)

    def _clear(self) -> None:
        """Remove the locks of a git that was killed: ours is held, so none is in use."""
        packs = (self.cache / "objects" / "pack").glob("tmp_*")
        for stale in sorted((*self.cache.glob("*.lock"), *(self.cache / "refs").rglob("*.lock"), *packs)):
            stale.unlink(missing_ok=True)

    # ---- LFS

    def lfs_folders(self) -> list[Path]:
        """Folders of LFS objects on this machine that belong to the repository."""
        return self.local.lfs_folders() if self.local else []

    def places(self, commit: str, mirrors: Sequence[Url]) -> lfs.Places:
        """Every place that may hold the commit's LFS objects: folders, then servers, mirrors first."""
        folders, urls = self.lfs_folders(), []
        usual = [one for remote in self.remotes for one in _endpoints(remote)]
        for url in dict.fromkeys([*mirrors, *self._configured(commit), *usual]):
            folder = folder_of(url.reveal())
            if folder is None:
                urls.append(url)
            elif folder.is_dir():
                folders += _lfs_folders(folder)
        incoming = self.cache.parent / "incoming"
        return lfs.Places(list(dict.fromkeys(folders)), urls, incoming, self._login, _ssh_command)

    def _configured(self, commit: str) -> list[Url]:
        """LFS URLs of .lfsconfig at the commit, of the repository, of the user's git (git-lfs-config(5))."""
        rows = []
        config = self.listing(commit, [LFS_CONFIG]).entries.get(LFS_CONFIG)
        if config and config.mode in FILE:
            with contextlib.suppress(SourceError, Absent):
                self.need(commit, [config.oid])
                rows += _sorted(gitcommand.settings(self.objects.small(config.oid, LONGEST_CONFIG), LFS_URLS))
        rows += _sorted(self.local.settings(LFS_URLS)) if self.local else []
        rows += _sorted(gitcommand.users(LFS_URLS))
        return [Url.of(url) for _, url in rows if url.isprintable()]

    def _login(self, url: Url) -> Login | None:
        """What git's credential helpers know about a URL (git-credential(1)).

        A place that only a commit, a repository or another server names gets none that is not for its host.
        """
        if not url.reveal().isprintable():
            return None
        strangers, hushed = ([], {}) if self._trusts(url) else gitcommand.for_strangers()
        env = gitcommand.environment(strangers, **hushed)
        ran = gitcommand.run(["credential", "fill"], env, f"url={url.reveal()}\n\n".encode())
        pairs = dict(line.split("=", 1) for line in os.fsdecode(ran.stdout).splitlines() if "=" in line)
        if ran.returncode or "password" not in pairs:
            return None
        return Login(pairs.get("username", ""), pairs["password"])


# ---- URLs


def folder_of(text: str) -> Path | None:
    """The folder that a path or a file:// URL names; None for what is on another machine."""
    if text.startswith("file://"):
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(text).path))
    return None if is_url(text) else Path(text)


def _permitted(url: Url) -> Url:
    """A URL of models.toml. Raises SourceError for one that git may not be given."""
    if refusal := _impermissible(url):
        raise SourceError(f"{url}: {refusal}", fix="correct the source's repository in models.toml")
    if (url.login or Login("", "")).password:
        raise SourceError(
            f"{url}: its URL in models.toml holds a password",
            fix="take it out and give it to git instead (git help credentials)",
        )
    return url


def _impermissible(url: Url) -> str:
    """Why git may not be given this URL; nothing when it may."""
    text = url.reveal()
    scheme = text.partition("://")[0].lower() if "://" in text else "ssh"
    if not text.isprintable() or text.startswith("-") or re.match(r"\w+::", text):
        scheme = ""
    if scheme in (*gitcommand.NETWORK, *ssh.SCHEMES):
        return ""
    return f"git may not be given it: expected {', '.join(gitcommand.NETWORK)}, or a folder"


def _home(url: Url) -> tuple[str, str]:
    """What a login belongs to; a server that is reached by ssh is asked for LFS objects over https."""
    if place := ssh.address(url.reveal()):
        return "https", place.host.rpartition("@")[2].lower()
    scheme, host = url.origin
    return ("https", host) if scheme == "git" else (scheme, host)


def _rewritten(url: str, root: Path) -> Url:
    if url.startswith("-") or not url.isprintable():
        return Url.of(url)
    words = ["ls-remote", "--get-url", url]
    ran = gitcommand.run(words)
    url = os.fsdecode(ran.stdout).removesuffix("\n") if ran.returncode == 0 else url
    return Url.of(url if is_url(url) else str(root / url))


def _endpoints(remote: Url) -> list[Url]:
    """Where to ask for the LFS objects of a remote that names no LFS URL: over ssh, then over https."""
    text = remote.reveal()
    if folder_of(text) is not None:
        return [remote]
    if place := ssh.address(text):
        return [remote, Url.of(ssh.endpoint(place))]
    return [Url.of(ssh.lfs_url(f"https{text.removeprefix('git')}" if text.startswith("git://") else text))]


def _sorted(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(rows, key=lambda row: (row[0] != "lfs.url", *row))


def _lfs_folders(folder: Path) -> list[Path]:
    """Where the repository at `folder`, or a folder of LFS objects that stands alone, keeps LFS objects."""
    repository = Folder.at(folder)
    return repository.lfs_folders() if repository else [folder / "objects", folder]


def _ssh_command() -> str:
    rows = gitcommand.users(r"^core\.sshcommand$")
    return rows[-1][1] if rows else ""


def _ours(folder: Path, name: str) -> Path:
    return folder / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}.git"


def _cause(stderr: bytes) -> str:
    return ssh.cause(stderr, "git failed without a word")
