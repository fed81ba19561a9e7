"""Sources in git: a model's ONNX files at one commit, streamed to disk, Git LFS pointers resolved.

A repository on this machine is only read: its objects, each checked against its name, and its URLs. Whatever
it lacks (it may be shallow or partial) is fetched into one of ours. Its own configuration is never obeyed.
"""

import fnmatch
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from rules.errors import SourceError
from rules.keeping.files import replacing
from rules.keys import Content
from rules.sources import chunks, gitcommand, lfs
from rules.sources.beside import Beside, missing
from rules.sources.gitfolder import Folder, is_url
from rules.sources.gitobjects import (
    FILE,
    Absent,
    Entry,
    Listing,
    Objects,
    checked,
    kind_of,
    write,
)
from rules.sources.repository import Repository
from rules.steps.preflight import MONITORING, OFF_POLICY, ON_POLICY, POLICY, SUPERCOMBO, VISION
from rules.url import Url

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
    commit, mirrors = _commit(options), _mirrors(options, base)
    with Repository.opened(options.get("repository"), base, cache / "git", mirrors) as repository:
        return _fetched(repository, commit, options, scratch, mirrors)


def _fetched(
    repository: Repository,
    commit: str,
    options: Mapping[str, object],
    scratch: Path,
    mirrors: Sequence[Url],
) -> dict[str, Path]:
    asked = [*(f"{prefix}/" for prefix in PREFIXES), *_paths(options).values()]
    listing = repository.listing(commit, asked)
    beside = {
        f"{path.rpartition('/')[0]}/" for path in _paths(options).values() if path not in listing.entries
    }
    if beside := beside - {"/"}:  # what was named may lie there in chunks
        near = repository.listing(commit, sorted(beside)).entries
        pieces = {path: entry for path, entry in near.items() if chunks.whole_of(path) in asked}
        listing = Listing({**listing.entries, **pieces}, listing.gaps)
    try:
        chosen = _chosen(listing, options)
        entries = {path: chunks.chunked(path, listing.entries) for path in chosen.values()}
    except SourceError as error:
        raise SourceError(f"{repository.shown} at {commit[:12]}: {error.what}", fix=error.fix) from None
    needed = [name for path, one in entries.items() for name in (one.files if one else (path,))]
    repository.need(commit, [listing.entries[name].oid for name in needed])
    fetched, around = {}, Beside(scratch)

    def bring(name: str, final: Path) -> None:
        _take(repository, commit, listing.entries[name].oid, name, final, mirrors)

    for role, path in chosen.items():
        fetched[role] = scratch / f"{role}.onnx"
        if one := entries[path]:
            chunks.join(one, bring, fetched[role])
        else:
            bring(path, fetched[role])
        folder = PurePosixPath(path).parent

        def take(location: str, final: Path, folder: PurePosixPath = folder) -> None:
            path = str(folder / location)
            _take(repository, commit, _beside(repository, commit, path), path, final, mirrors)

        around.bring(fetched[role], str(folder), take)
    return fetched | around.files


def _beside(repository: Repository, commit: str, path: str) -> str:
    """The blob at a path that an ONNX file names. Raises SourceError."""
    entry = repository.listing(commit, [path]).entries.get(path)
    where = f"{repository.shown} at {commit[:12]}"
    if entry is None:
        raise missing(path, where)
    if entry.mode not in FILE:
        raise SourceError(
            f"{where}: {path}: expected the weights of a model, got {kind_of(entry.mode)}",
            fix="name a commit that has the file itself there",
        )
    repository.need(commit, [entry.oid])
    return entry.oid


def _take(
    repository: Repository, commit: str, oid: str, path: str, final: Path, mirrors: Sequence[Url]
) -> None:
    try:
        _bring(repository, commit, oid, final, mirrors)
    except SourceError as error:
        where = f"{repository.shown} at {commit[:12]}: {path}"
        raise SourceError(f"{where}: {error.what}", fix=error.fix) from error


def _bring(repository: Repository, commit: str, oid: str, final: Path, mirrors: Sequence[Url]) -> None:
    """Write a blob to `final`, or the object that it stands for."""
    with repository.blob(oid) as (size, stream):
        if size >= lfs.LONGEST_POINTER:
            write(oid, size, stream, final)
            return
        content = checked(oid, stream.read(size))
    pointer = lfs.parse(content)
    if pointer is None:
        with replacing(final) as file:
            file.write(content)
    # Most objects lie in the clone; only for others is it worth finding out who serves them.
    elif not lfs.copied(pointer, repository.lfs_folders(), final):
        lfs.bring(pointer, final, repository.places(commit, mirrors))


def names_at(repository: Path, ref: str) -> set[str]:
    """Names of the files in the usual folders of a commit, where a repository on this machine has it."""
    folder = Folder.at(repository)
    if folder is None:
        return set()
    with tempfile.TemporaryDirectory(prefix="modelyard-git-") as place:
        view = folder.view(Path(place) / "local")
        try:
            listing = Objects(view, gitcommand.environment).listing(ref, [f"{one}/" for one in PREFIXES])
        except Absent:
            return set()
    return {path.rpartition("/")[2] for path in listing.entries}


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


def _mirrors(options: Mapping[str, object], base: Path) -> list[Url]:
    named = options.get("lfs")
    mirrors = map(str, named) if isinstance(named, Sequence) else ()
    return [Url.of(mirror if is_url(mirror) else str(base / mirror)) for mirror in mirrors]


# ---- which files of a commit make the model


def _chosen(listing: Listing, options: Mapping[str, object]) -> dict[str, str]:
    """Paths by role: those the source names, else the first folder that holds a complete set."""
    form, paths = options["format"], _paths(options)
    if not paths and form not in GROUPS:
        raise SourceError(
            f"a source of format {form!r} does not say which file it is",
            fix='write its path in the commit: paths = { model = "FOLDER/FILE.onnx" }',
        )
    big = "big_" if options.get("big") else ""
    chosen = _named(listing, paths) if paths else _first_set(listing.entries, form, big)
    pieces = [name for name in listing.entries if chunks.whole_of(name) in chosen.values()]
    for path in pieces:
        if listing.entries[path].mode not in FILE:
            raise SourceError(
                f"{path}: expected a file, got {kind_of(listing.entries[path].mode)}",
                fix="name the file it stands for in the source: paths = { ROLE = PATH }",
            )
    return chosen


def _named(listing: Listing, paths: dict[str, str]) -> dict[str, str]:
    there = {*chunks.wholes(listing.entries)}
    missing = [path for path in paths.values() if path not in there]
    if missing:
        near = "; ".join(dict.fromkeys(gap for path in missing if (gap := listing.gaps.get(path))))
        raise SourceError(
            f"looked for {', '.join(missing)}: not in this commit; {near or _onnx_in(listing.entries)}",
            fix="correct the source's ref or paths in models.toml",
        )
    return paths


def _first_set(tree: Mapping[str, Entry], form: object, big: str) -> dict[str, str]:
    names = [name for group in GROUPS[form] for name in group] + list(OPTIONAL.get(form, ()))
    wholes = {*chunks.wholes(tree)}
    for prefix in PREFIXES:
        paths = {name: f"{prefix}/{big}{name}.onnx" for name in names}
        there = {name: path for name, path in paths.items() if path in wholes}
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
