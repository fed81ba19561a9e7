"""Sources on a Hugging Face hub: files of a repository at a commit, or of a bucket, pinned by sha256."""

import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote

from rules.errors import SourceError, fills
from rules.imports import alone
from rules.keeping.digests import sha256_of
from rules.keys import Content
from rules.networks.outside import ROLE
from rules.sources import chunks, space
from rules.sources.beside import Beside
from rules.sources.body import unlogged
from rules.url import scrubbed

NO_HEAD = (405, 501)
KINDS = {"datasets": "dataset", "spaces": "space"}  # as in hf:// addresses; without one, a model


def files(options: Mapping[str, object], base: Path) -> Mapping[str, Path]:
    """No local file: the pins say it all."""
    return {}


def identity(options: Mapping[str, Any]) -> Content:
    """The commit and the paths in a repository; in a bucket, which has no versions, the digests alone."""
    digests = dict(sorted(options.get("sha256", {}).items()))
    if "bucket" in options:
        return {"sha256": digests}
    named = {"repo": options["repo"], "revision": options["revision"]}
    return {**named, "files": dict(sorted(options["files"].items())), "sha256": digests}


def fetch(options: Mapping[str, Any], base: Path, scratch: Path, *, cache: Path) -> dict[str, Path]:
    """Download `files` (role → path on the hub) into `scratch` and check them against `sha256`.

    The hub is `endpoint`, else the one that HF_ENDPOINT names, else the public one; a login comes from
    HF_TOKEN or from what `hf auth login` keeps. Raises SourceError.
    """
    fetched, around = {}, Beside(scratch)
    for role, path in sorted(options["files"].items()):
        fetched[role] = scratch / f"{role}.onnx"
        _fetch_any(options, path, fetched[role])
        _check(options, role, path, fetched[role])
        folder = PurePosixPath(path).parent

        def take(location: str, final: Path, folder: PurePosixPath = folder) -> None:
            _bring(options, str(folder / location), final)
            _check(options, location, str(folder / location), final)

        around.bring(fetched[role], str(folder), take)
    return fetched | around.files


class _Missing(SourceError):
    """The hub has no such file."""


def _fetch_any(options: Mapping[str, Any], path: str, final: Path) -> None:
    """Fetch a file, or its chunks where their marker is what the hub has."""
    try:
        _bring(options, path, final)
    except _Missing as missing:
        final.unlink(missing_ok=True)
        marker = final.with_name(f"{final.name}.marker")
        try:
            _bring(options, path + chunks.MARKER, marker)
        except SourceError:
            raise missing from None
        one = chunks.numbered(path, chunks.count_in(marker, f"{_place(options)}/{path}{chunks.MARKER}"))
        marker.unlink()
        chunks.join(one, partial(_bring, options), final)


def _bring(options: Mapping[str, Any], path: str, final: Path) -> None:
    with _in_words(f"{_place(options)}/{path}"):
        announced = _fetch_one(options, path, final)
    _check_announced(options, f"{_place(options)}/{path}", final, announced)


def _place(options: Mapping[str, Any]) -> str:
    return (
        f"{options.get('bucket') or options['repo']}{'@' + options['revision'] if 'repo' in options else ''}"
    )


def _endpoint(options: Mapping[str, Any]) -> str | None:
    return options.get("endpoint") or os.environ.get("HF_ENDPOINT")


def _fetch_one(options: Mapping[str, Any], path: str, final: Path) -> "Announced":
    """Download one file; what the hub says that it is."""
    with alone:
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils._headers import build_hf_headers
        from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # ours is the only live line
    unlogged()
    url = _address(options, path)
    announced = _announced(options, url)
    if lacking := space.lacking(final.parent, announced.size or 0):
        raise SourceError(f"{_place(options)}/{path}: {lacking}", fix="free some space there, then try again")
    most = announced.size if announced.size is not None else space.free(final.parent)
    # By a plain GET, which every mirror answers: the hub's own protocols work with none. Not into the user's
    # cache: a file damaged there would come back for ever.
    with _Bounded(final, most) as file:
        http_get(url, file, headers=build_hf_headers(), expected_size=announced.size)
    return announced


class _Bounded(io.FileIO):
    """A new file of at most so many bytes."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(path, "xb")
        self._most = most

    def write(self, content: Any) -> int:
        if self.tell() + len(content) > self._most:
            raise ValueError(f"expected {self._most:,} bytes, got more")
        return super().write(content)


class Announced(NamedTuple):
    """What a hub says of a file before it sends it; None for what it does not say."""

    sha256: str | None
    size: int | None
    commit: str | None


def _announced(options: Mapping[str, Any], url: str) -> Announced:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import get_hf_file_metadata

    if "bucket" in options:  # of whose files models.toml has to say the digest
        return Announced(None, None, None)
    try:
        found = get_hf_file_metadata(url, endpoint=_endpoint(options))
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code in NO_HEAD:
            return Announced(None, None, None)
        raise
    # X-Linked-ETag, or ETag, is the sha256 of a file that the hub keeps in LFS, and X-Linked-Size its size.
    digest = found.etag if found.etag and re.fullmatch("[0-9a-f]{64}", found.etag) else None
    return Announced(digest, found.size, found.commit_hash)


def _address(options: Mapping[str, Any], path: str) -> str:
    from huggingface_hub import constants, hf_hub_url

    endpoint = _endpoint(options)
    if "bucket" in options:
        return f"{endpoint or constants.ENDPOINT}/buckets/{options['bucket']}/resolve/{quote(path)}"
    kind, _, rest = options["repo"].partition("/")
    known = KINDS.get(kind)
    repo = rest if known else options["repo"]
    return hf_hub_url(repo, path, repo_type=known, revision=options["revision"], endpoint=endpoint)


@contextmanager
def _in_words(place: str) -> Iterator[None]:
    """The library's errors as one sentence."""
    with alone:
        import httpx
        from huggingface_hub.errors import (
            EntryNotFoundError,
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

    try:
        yield
    except GatedRepoError:
        raise SourceError(
            f"{place}: its owner must let you in", fix="set HF_TOKEN to a token that may"
        ) from None
    except (LocalEntryNotFoundError, httpx.TransportError) as error:
        cause = _first_line(error.__cause__ or error)
        raise SourceError(f"{place}: no answer from the hub: {cause}", fix="check the network") from None
    except RepositoryNotFoundError:
        raise SourceError(
            f"{place}: the hub knows no such repository, or hides it",
            fix="correct repo in models.toml, or set HF_TOKEN to a token that may read it",
        ) from None
    except RevisionNotFoundError:
        raise SourceError(f"{place}: no such commit", fix="correct revision in models.toml") from None
    except EntryNotFoundError:
        raise _Missing(f"{place}: no such file", fix="correct files in models.toml") from None
    except (HfHubHTTPError, HFValidationError, httpx.HTTPError, OSError, ValueError) as error:
        if fills(error):
            raise
        absent = getattr(getattr(error, "response", None), "status_code", None) == 404
        kind = _Missing if absent else SourceError
        raise kind(f"{place}: {_first_line(error)}", fix="try again, or check models.toml") from None


def _first_line(error: BaseException) -> str:
    return scrubbed((str(error).strip().splitlines() or [type(error).__name__])[0])


def _check(options: Mapping[str, Any], name: str, path: str, final: Path) -> None:
    """Check a file against what is said of it under its role, or its own name."""
    place = f"{_place(options)}/{path}"
    expected = options.get("sha256", {}).get(name)
    found = sha256_of(final)
    key = f"sha256.{name}" if ROLE.fullmatch(name) else f'sha256."{name}"'
    if expected is None and "bucket" in options:
        raise SourceError(
            f"{place}: expected its sha256: a bucket has no versions",
            fix=f'if these are the right bytes, write {key} = "{found}" in models.toml',
        )
    if expected is not None and found != expected:
        raise SourceError(
            f"{place}: expected sha256 {expected}, got {found}",
            fix=f"find out why it changed before you correct {key} in models.toml",
        )


def _check_announced(options: Mapping[str, Any], place: str, path: Path, announced: Announced) -> None:
    if announced.sha256 is not None and announced.sha256 != (found := sha256_of(path)):
        raise SourceError(
            f"{place}: the hub announces sha256 {announced.sha256}, and sent {found}",
            fix="try again, or another endpoint: what came is not what its owner put there",
        )
    if "revision" in options and announced.commit not in (None, options["revision"]):
        raise SourceError(
            f"{place}: the hub answers for commit {announced.commit}",
            fix="correct revision in models.toml, or try another endpoint",
        )
