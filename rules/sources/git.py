"""Sources in git: a model's ONNX files at one commit, streamed to disk, Git LFS pointers resolved.

A repository on this machine is only read, as an alternate of a bare one of ours. Whatever it lacks (it may be
shallow or partial) is fetched into ours.
"""

import contextlib
import fnmatch
import hashlib
import os
import re
import subprocess
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from rules.counting import counted
from rules.errors import SourceError
from rules.keeping import files as keeping_files
from rules.keeping.digests import CHUNK
from rules.keeping.files import make_folder, remove, replacing
from rules.keys import Content
from rules.sources import lfs, ssh
from rules.steps.preflight import MONITORING, OFF_POLICY, ON_POLICY, POLICY, SUPERCOMBO, VISION

PREFIXES = (
    "openpilot/selfdrive/modeld/models",
    "selfdrive/modeld/models",
    "frogpilot/tinygrad_modeld/models",
)
# One of each group must be there; every file of the set that is there belongs to the model.
GROUPS: Mapping[object, Sequence[Sequence[str]]] = {
    "split": ((VISION,), (POLICY, ON_POLICY)),
    "supercombo": ((SUPERCOMBO,),),
    "dmonitoring": ((MONITORING,),),
}
OPTIONAL: Mapping[object, Sequence[str]] = {"split": (OFF_POLICY,)}
# What git says of a server that gives no commit by its name: all others would only repeat that they lack it.
BY_BRANCH_ONLY = ("unadvertised object", "dumb http transport")
LFS_CONFIG = ".lfsconfig"
FILE, LINK = ("100644", "100755"), "120000"
# `git rev-parse --local-env-vars`: what a hook that runs us would say about its own repository.
LOCAL_VARIABLES = (
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_INDEX_FILE",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
)


class Entry(NamedTuple):
    """A file in a commit's tree: git's mode and object name."""

    mode: str
    oid: str


# ---- what every kind of source offers


def files(options: Mapping[str, object], base: Path) -> Mapping[str, Path]:
    """No local file: the commit says it all."""
    return {}


def identity(options: Mapping[str, object]) -> Content:
    """The commit, and which of its files are taken; not the repository: a commit is the same anywhere."""
    named = {"paths": dict(sorted(_paths(options).items()))} if "paths" in options else {}
    return {"ref": options["ref"], "format": options["format"], "big": bool(options.get("big")), **named}


def fetch(options: Mapping[str, object], base: Path, scratch: Path, *, cache: Path) -> dict[str, Path]:
    """The model's ONNX files by role, in `scratch`; what has to be fetched is kept in `cache`.

    Options: `ref` (a full commit), `format`, `repository` (URL or folder, relative to `base`), `big` (take
    the `big_` files), `paths` (role → path in the commit, instead of the usual names), `lfs` (servers or
    folders that are asked for Git LFS objects before the repository's own).

    Logins come from git alone: its credential helpers and its environment (GIT_ASKPASS, GIT_CONFIG_*).
    Raises SourceError.
    """
    repository = Repository.of(options.get("repository"), base, cache / "git")
    commit = _commit(options)
    tree = repository.tree(commit, [*(f"{prefix}/" for prefix in PREFIXES), *_paths(options).values()])
    try:
        chosen = _chosen(tree, options)
    except SourceError as error:
        raise SourceError(f"{repository.shown} at {commit[:12]}: {error.what}", fix=error.fix) from None
    repository.need(commit, [tree[path].oid for path in chosen.values()])
    fetched = {}
    for role, path in chosen.items():
        fetched[role] = scratch / f"{role}.onnx"
        try:
            pointer = repository.stream(tree[path].oid, fetched[role])
            if pointer:
                _resolve(repository, commit, pointer, fetched[role], _mirrors(options, base))
        except SourceError as error:
            where = f"{repository.shown} at {commit[:12]}: {path}"
            raise SourceError(f"{where}: {error.what}", fix=error.fix) from error
    return fetched


def _commit(options: Mapping[str, object]) -> str:
    commit = str(options["ref"])
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise SourceError(
            f"git source: expected a full commit of 40 hexadecimal digits, got {commit!r}",
            fix="write the output of `git rev-parse REF` as its ref: a branch or tag can move",
        )
    return commit


def _paths(options: Mapping[str, object]) -> dict[str, str]:
    paths = options.get("paths")
    return {str(role): str(path) for role, path in paths.items()} if isinstance(paths, Mapping) else {}


def _mirrors(options: Mapping[str, object], base: Path) -> list[str]:
    named = options.get("lfs")
    mirrors = map(str, named) if isinstance(named, Sequence) else ()
    return [mirror if _is_url(mirror) else str(base / mirror) for mirror in mirrors]


def _resolve(
    repository: "Repository", commit: str, pointer: lfs.Pointer, final: Path, mirrors: Sequence[str]
) -> None:
    # Most objects lie in the clone; only for others is it worth finding out who serves them.
    if not lfs.copied(pointer, repository.lfs_folders(), final):
        lfs.bring(pointer, final, repository.places(commit, mirrors))


# ---- which files of a commit make the model


def _chosen(tree: Mapping[str, Entry], options: Mapping[str, object]) -> dict[str, str]:
    """Paths by role: those the source names, else the first folder that holds a complete set."""
    form, paths = options["format"], _paths(options)
    if not paths and form not in GROUPS:
        raise SourceError(
            f"a source of format {form!r} does not say which file it is",
            fix='write its path in the commit: paths = { model = "FOLDER/FILE.onnx" }',
        )
    chosen = _named(tree, paths) if paths else _first_set(tree, form, "big_" if options.get("big") else "")
    for path in chosen.values():
        if tree[path].mode not in FILE:
            raise SourceError(
                f"{path}: expected a file, got {_kind(tree[path].mode)}",
                fix="name the file it stands for in the source: paths = { ROLE = PATH }",
            )
    return chosen


def _named(tree: Mapping[str, Entry], paths: dict[str, str]) -> dict[str, str]:
    missing = [path for path in paths.values() if path not in tree]
    if missing:
        raise SourceError(
            f"looked for {', '.join(missing)}: not in this commit; {_onnx_in(tree)}",
            fix="correct the source's ref or paths in models.toml",
        )
    return paths


def _first_set(tree: Mapping[str, Entry], form: object, big: str) -> dict[str, str]:
    names = [name for group in GROUPS[form] for name in group] + list(OPTIONAL.get(form, ()))
    for prefix in PREFIXES:
        there = {name: f"{prefix}/{big}{name}.onnx" for name in names if f"{prefix}/{big}{name}.onnx" in tree}
        if all(any(name in there for name in group) for group in GROUPS[form]):
            return there
    wanted = " and ".join(" or ".join(f"{big}{name}.onnx" for name in group) for group in GROUPS[form])
    raise SourceError(
        f"no complete {form} set: looked for {wanted} in {', '.join(PREFIXES)}; {_onnx_in(tree)}",
        fix="correct the source's ref, format or big in models.toml, or write paths = { ROLE = PATH } there",
    )


def _onnx_in(tree: Mapping[str, Entry]) -> str:
    found = [path for path in sorted(tree) if fnmatch.fnmatch(path.rpartition("/")[2], "[!.]*.onnx")]
    return f"found {', '.join(found)}" if found else "found no ONNX file"


def _kind(mode: str) -> str:
    return {LINK: "a symbolic link", "040000": "a folder", "160000": "a submodule"}.get(mode, f"mode {mode}")


# ---- git


def _environment(config: Mapping[str, str] | None = None, **more: str) -> dict[str, str]:
    """Our own environment less what names another repository; `config` never shows in a list of processes."""
    env = {name: value for name, value in os.environ.items() if name not in LOCAL_VARIABLES}
    env |= {
        "LC_ALL": "C",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_LITERAL_PATHSPECS": "1",
    }
    given = env.get("GIT_CONFIG_COUNT", "")
    count = int(given) if given.isdecimal() else 0
    for index, (key, value) in enumerate((config or {}).items(), count):
        env |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
    return env | {"GIT_CONFIG_COUNT": str(count + len(config or {}))} | more


def _start(arguments: Sequence[str], env: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    # A session of its own has no terminal that ssh could ask a question on.
    try:
        return subprocess.Popen(
            ["git", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise SourceError("git is not on this machine", fix="install git, then try again") from None


def _run(
    arguments: Sequence[str], env: Mapping[str, str] | None = None, given: str = ""
) -> "subprocess.CompletedProcess[bytes]":
    with _start(arguments, _environment() if env is None else env) as process:
        try:
            out, err = process.communicate(given.encode())
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def _lines(arguments: Sequence[str], env: Mapping[str, str] | None = None) -> list[str]:
    """What a git command printed, by line; nothing when it failed."""
    ran = _run(arguments, env)
    return os.fsdecode(ran.stdout).splitlines() if ran.returncode == 0 else []


def _cause(stderr: bytes) -> str:
    return ssh.cause(stderr, "git failed without a word")


# ---- repositories


def _is_url(text: str) -> bool:
    """A URL, or the `host:path` of ssh, which has no slash before its colon."""
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]*://|[^/:]+:", text))


def _folder(text: str) -> Path | None:
    """The folder that a path or a file:// URL names; None for what is on another machine."""
    if text.startswith("file://"):
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(text).path))
    return None if _is_url(text) else Path(text)


def _common(folder: Path) -> Path | None:
    """The git directory that all worktrees of the repository at `folder` share, or None for no repository."""
    # The repository around a folder is another one than the user named.
    env = _environment(GIT_CEILING_DIRECTORIES=str(folder.resolve().parent))
    ran = _run(["-C", str(folder), "rev-parse", "--git-common-dir"], env)
    if ran.returncode == 0:
        return (folder / os.fsdecode(ran.stdout).removesuffix("\n")).resolve()
    if b"not a git repository" in ran.stderr or not folder.is_dir():
        return None
    raise SourceError(f"{folder}: {_cause(ran.stderr)}", fix="let git read that repository, then try again")


def _object_folders(common: Path) -> list[Path]:
    """A repository's objects and those of all its alternates (gitrepository-layout(5))."""
    found, waiting = [], [common / "objects"]
    while waiting:
        objects = waiting.pop(0)
        found.append(objects)
        with contextlib.suppress(OSError):
            listed = os.fsdecode(keeping_files.read(objects / "info" / "alternates")).splitlines()
            named = [(objects / line).resolve() for line in listed if line and not line.startswith("#")]
            waiting += [one for one in named if one not in found]
    return found


def _lfs_folders(folder: Path) -> list[Path]:
    """Where the repository at `folder`, or a folder of LFS objects that stands alone, keeps LFS objects."""
    common = _common(folder)
    if common is None:
        return [folder / "objects", folder]
    storage = _lines(["--git-dir", str(common), "config", "--type=path", "--get", "lfs.storage"])
    own = [common / storage[-1] / "objects"] if storage else []
    return own + [objects.parent / "lfs" / "objects" for objects in _object_folders(common)]


def _remotes(common: Path) -> list[str]:
    """URLs of a clone's remotes, origin first, with the user's insteadOf applied."""
    git = ["--git-dir", str(common)]
    names = sorted(_lines([*git, "remote"]), key=lambda name: (name != "origin", name))
    urls = [url for name in names for url in _lines([*git, "ls-remote", "--get-url", name])[:1]]
    root = common.parent if common.name == ".git" else common
    return [url if _is_url(url) else str(root / url) for url in urls]


@dataclass(frozen=True)
class Repository:
    """Where a commit is read from: the user's own repository, if on this machine, and ours at `cache`.

    `remotes` are asked, in order, for what both lack.
    """

    shown: str
    cache: Path
    local: Path | None
    remotes: tuple[str, ...]

    @classmethod
    def of(cls, named: object, base: Path, folder: Path) -> "Repository":
        """The repository a source names; ours is a folder in `folder`. Raises SourceError."""
        if named is None:
            raise SourceError(
                "git source: names no repository",
                fix='write repository = "URL or FOLDER" under [defaults] in models.toml, or in the source',
            )
        text = str(named)
        if text.startswith("file://") or not _is_url(text):
            return cls._here(base / (_folder(text) or text), folder)
        if (lfs.without_login(text)[1] or lfs.Login("", "")).password:
            raise SourceError(
                f"{lfs.shown(text)}: its URL in models.toml holds a password",
                fix="take it out and give it to git instead (git help credentials)",
            )
        return cls(text, _ours(folder, text), None, (text,))

    @classmethod
    def _here(cls, path: Path, folder: Path) -> "Repository":
        common = _common(path)
        if common is None:
            found = "an ordinary folder" if path.is_dir() else "no folder"
            raise SourceError(
                f"{path}: expected a git repository, found {found}",
                fix="correct the source's repository in models.toml",
            )
        return cls(str(path), _ours(folder, str(common)), common, tuple(_remotes(common)))

    # ---- reading

    def tree(self, commit: str, paths: Sequence[str]) -> dict[str, Entry]:
        """What the commit has at `paths` (of one that ends in /, all that is in it); fetched if need be."""
        listing = self._listing(commit, paths)
        if listing is None:
            self._fetch_commit(commit)
            listing = self._listing(commit, paths)
        if listing is None:
            raise SourceError(
                f"{self.shown}: expected commit {commit}, got another kind of object",
                fix="correct the source's ref in models.toml",
            )
        return listing

    def _listing(self, commit: str, paths: Sequence[str]) -> dict[str, Entry] | None:
        ran = self._read(["ls-tree", "-z", "--full-tree", commit, "--", *paths])
        if ran.returncode:
            return None
        listing = {}
        for row in os.fsdecode(ran.stdout).split("\0")[:-1]:
            about, _, path = row.partition("\t")
            mode, _, oid = about.split(" ")
            listing[path] = Entry(mode, oid)
        return listing

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
        ran = self._read(["cat-file", "--batch-check"], "".join(f"{oid}\n" for oid in blobs))
        return sorted(
            {line.split(" ")[0] for line in ran.stdout.decode().splitlines() if line.endswith(" missing")}
        )

    def stream(self, oid: str, final: Path) -> lfs.Pointer | None:
        """Write a blob to `final`, checked against its name; for a pointer return that, and write nothing."""
        with self._reading(oid) as (size, blob):
            if size < lfs.LONGEST_POINTER:
                content = blob.read(size)
                if pointer := lfs.parse(content):
                    return pointer
                _write(oid, size, iter([content]), final)
            else:
                _write(oid, size, _chunks(blob, size), final)
        return None

    @contextlib.contextmanager
    def _reading(self, oid: str) -> Iterator[tuple[int, IO[bytes]]]:
        """A blob's size and a stream that starts at its first byte."""
        arguments = ["-c", "core.bigFileThreshold=1m", "--git-dir", str(self.cache), "cat-file", "--batch"]
        with _start(arguments, self._reads()) as process:
            assert process.stdin and process.stdout and process.stderr
            try:
                process.stdin.write(f"{oid}\n".encode())
                process.stdin.close()
                header = process.stdout.readline().split()
                if header[1:2] != [b"blob"]:
                    raise SourceError(
                        f"git could not read blob {oid}: {_cause(process.stderr.read())}",
                        fix="git fsck in that repository",
                    )
                yield int(header[2]), process.stdout
            finally:
                process.kill()

    def _reads(self) -> dict[str, str]:
        # Given here and not in our repository's own config: a fetch must not take for ours what a partial
        # clone has but in part.
        if not self.local:
            return _environment()
        quoted = str(self.local / "objects").replace("\\", "\\\\").replace('"', '\\"')
        return _environment(GIT_ALTERNATE_OBJECT_DIRECTORIES=f'"{quoted}"')

    def _read(self, arguments: Sequence[str], given: str = "") -> "subprocess.CompletedProcess[bytes]":
        self._prepare()
        return _run(["--git-dir", str(self.cache), *arguments], self._reads(), given)

    def _prepare(self) -> None:
        if (self.cache / "HEAD").exists():
            return
        make_folder(self.cache.parent)
        with self._held():
            ran = _run(["init", "--quiet", "--bare", "--template=", str(self.cache)])
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
            if self._read(["cat-file", "-e", f"{commit}^{{tree}}"]).returncode:
                raise

    def _ask(self, commit: str, options: Sequence[str], wanted: Sequence[str]) -> None:
        answers = []
        for remote in self.remotes:
            ran = self._fetch(remote, options, wanted)
            if ran.returncode == 0:
                return
            answers.append(f"{lfs.shown(remote)}: {_cause(ran.stderr)}")
        raise SourceError(
            f"{self.shown}: commit {commit} is not complete here and could not be fetched: "
            f"{'; '.join(answers) or 'the repository has no remote'}",
            fix="check the ref, or name a repository that has it (and that git may read) in the source",
        )

    def _fetch(
        self, remote: str, options: Sequence[str], wanted: Sequence[str]
    ) -> "subprocess.CompletedProcess[bytes]":
        config = {
            "remote.source.url": remote,
            "remote.source.promisor": "true",
            "remote.source.partialCloneFilter": "blob:none",
            "fetch.negotiationAlgorithm": "noop",
            "fetch.recurseSubmodules": "false",
            "gc.auto": "0",
            "maintenance.auto": "false",
        }
        if command := self._ssh_command():  # the user's clone may have one of its own
            config["core.sshCommand"] = command
        quiet = ["--quiet", "--no-tags", "--no-write-fetch-head"]
        with self._held():
            self._clear()
            words = ["--git-dir", str(self.cache), "fetch", *quiet, *options, "source", *wanted]
            return _run(words, _environment(config))

    def _clear(self) -> None:
        """Remove the locks of a git that was killed: ours is held, so none is in use."""
        for stale in sorted((*self.cache.glob("*.lock"), *(self.cache / "refs").rglob("*.lock"))):
            remove(stale)

    # ---- LFS

    def lfs_folders(self) -> list[Path]:
        """Folders of LFS objects on this machine that belong to the repository."""
        return _lfs_folders(self.local) if self.local else []

    def places(self, commit: str, mirrors: Sequence[str]) -> lfs.Places:
        """Every place that may hold the commit's LFS objects: folders, then servers, mirrors first."""
        folders, urls = self.lfs_folders(), []
        usual = [one for remote in self.remotes for one in _endpoints(remote)]
        for url in dict.fromkeys([*mirrors, *self._configured(commit), *usual]):
            folder = _folder(url)
            if folder is None:
                urls.append(url)
            elif folder.is_dir():
                folders += _lfs_folders(folder)
        incoming = self.cache.parent / "incoming"
        return lfs.Places(list(dict.fromkeys(folders)), urls, incoming, self._login, self._ssh_command)

    def _configured(self, commit: str) -> list[str]:
        """LFS URLs of .lfsconfig at the commit, then of the user's git config (git-lfs-config(5))."""
        found = []
        config = self.tree(commit, [LFS_CONFIG]).get(LFS_CONFIG)
        if config and config.mode in FILE:
            with contextlib.suppress(SourceError):
                self.need(commit, [config.oid])
            found += self._lfs_urls(["--blob", config.oid], self._reads())
        git = self.local or self.cache
        return found + self._lfs_urls([], _environment(), git)

    def _lfs_urls(self, where: Sequence[str], env: Mapping[str, str], git: Path | None = None) -> list[str]:
        pattern = r"^(lfs\.url|remote\..*\.lfsurl)$"
        rows = _lines(["--git-dir", str(git or self.cache), "config", *where, "--get-regexp", pattern], env)
        pairs = sorted((key != "lfs.url", key, url) for key, _, url in (row.partition(" ") for row in rows))
        return [url for _, _, url in pairs]

    def _ssh_command(self) -> str:
        git = self.local or self.cache
        return "".join(_lines(["--git-dir", str(git), "config", "--get", "core.sshCommand"])[:1])

    def _login(self, url: str) -> lfs.Login | None:
        """What git's credential helpers know about a URL (git-credential(1))."""
        git = self.local or self.cache
        ran = _run(["--git-dir", str(git), "credential", "fill"], given=f"url={url}\n\n")
        pairs = dict(line.split("=", 1) for line in os.fsdecode(ran.stdout).splitlines() if "=" in line)
        if ran.returncode or "password" not in pairs:
            return None
        return lfs.Login(pairs.get("username", ""), pairs["password"])


def _ours(folder: Path, name: str) -> Path:
    return folder / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}.git"


def _endpoints(remote: str) -> list[str]:
    """Where to ask for the LFS objects of a remote that names no LFS URL: over ssh, then over https."""
    if _folder(remote) is not None:
        return [remote]
    if place := ssh.address(remote):
        return [remote, ssh.endpoint(place)]
    return [ssh.lfs_url(f"https{remote.removeprefix('git')}" if remote.startswith("git://") else remote)]


# ---- blobs


def _chunks(blob: IO[bytes], size: int) -> Iterator[bytes]:
    while size and (chunk := blob.read(min(size, CHUNK))):
        size -= len(chunk)
        yield chunk


def _write(oid: str, size: int, chunks: Iterator[bytes], final: Path) -> None:
    """Write a blob that hashes to its name (git's object format: header, NUL, content)."""
    total = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with replacing(final) as file:
        for chunk in chunks:
            total.update(chunk)
            file.write(chunk)
        if total.hexdigest() != oid:
            raise SourceError(
                f"expected blob {oid} ({counted(size, 'byte')}), "
                f"got {total.hexdigest()} ({counted(file.tell(), 'byte')})",
                fix="git fsck in that repository, or fetch from another one",
            )
