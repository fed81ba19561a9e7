"""Sources on a Hugging Face hub: files of a repository at a commit, or of a bucket, pinned by sha256."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rules.errors import SourceError, fills
from rules.imports import alone
from rules.keeping.digests import sha256_of
from rules.keys import Content

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
    fetched = {}
    for role, path in sorted(options["files"].items()):
        fetched[role] = scratch / f"{role}.onnx"
        with _in_words(f"{_place(options)}/{path}"):
            _fetch_one(options, path, fetched[role], scratch / "hub")
        _check(options, role, fetched[role])
    shutil.rmtree(scratch / "hub", ignore_errors=True)
    return fetched


def _place(options: Mapping[str, Any]) -> str:
    return (
        f"{options.get('bucket') or options['repo']}{'@' + options['revision'] if 'repo' in options else ''}"
    )


def _endpoint(options: Mapping[str, Any]) -> str | None:
    return options.get("endpoint") or os.environ.get("HF_ENDPOINT")


def _fetch_one(options: Mapping[str, Any], path: str, final: Path, folder: Path) -> None:
    with alone:
        from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # ours is the only live line
    if "bucket" in options:
        _from_bucket(options, path, final)
    else:
        _from_repository(options, path, folder).replace(final)


def _from_repository(options: Mapping[str, Any], path: str, folder: Path) -> Path:
    with alone:
        from huggingface_hub import hf_hub_download

    kind, _, rest = options["repo"].partition("/")
    known = KINDS.get(kind)
    got: str = hf_hub_download(
        rest if known else options["repo"],
        path,
        repo_type=known,
        revision=options["revision"],
        local_dir=folder,  # not the user's cache: a file damaged there would come back for ever
        endpoint=_endpoint(options),
    )
    return Path(got)


def _from_bucket(options: Mapping[str, Any], path: str, final: Path) -> None:
    """By the address that the hub resolves for a plain GET; its own protocol works with no mirror."""
    with alone:
        from huggingface_hub import constants
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils._headers import build_hf_headers

    url = f"{_endpoint(options) or constants.ENDPOINT}/buckets/{options['bucket']}/resolve/{quote(path)}"
    with final.open("xb") as file:
        http_get(url, file, headers=build_hf_headers())


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
        raise SourceError(f"{place}: no such file", fix="correct files in models.toml") from None
    except (HfHubHTTPError, HFValidationError, httpx.HTTPError, OSError, ValueError) as error:
        if fills(error):
            raise
        raise SourceError(f"{place}: {_first_line(error)}", fix="try again, or check models.toml") from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _check(options: Mapping[str, Any], role: str, path: Path) -> None:
    expected = options.get("sha256", {}).get(role)
    found = sha256_of(path)
    if expected is None and "bucket" in options:
        raise SourceError(
            f"{_place(options)}/{options['files'][role]}: expected its sha256: a bucket has no versions",
            fix=f'if these are the right bytes, write sha256.{role} = "{found}" in models.toml',
        )
    if expected is None:
        return
    if found != expected:
        raise SourceError(
            f"{_place(options)}/{options['files'][role]}: expected sha256 {expected}, got {found}",
            fix=f"find out why it changed before you correct sha256.{role} in models.toml",
        )
