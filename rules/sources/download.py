"""A file at a URL, pinned by size and sha256: streamed, resumed by range, checked before it has a name.

Retries and ranges are those of RFC 9110: 14 (range requests), 10.2.3 (Retry-After), 15.6 (server errors).
"""

import datetime
import email.utils
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rules.counting import counted
from rules.errors import SourceError
from rules.imports import alone
from rules.keeping.digests import Digest, sha256_of
from rules.keeping.files import appending, put_in_place, remove
from rules.sources import space
from rules.sources.body import unlogged
from rules.url import Url, shown

if TYPE_CHECKING:
    import httpx

ATTEMPTS = 5  # in a row, without one new byte
TIMEOUT_S = 30.0
LONGEST_WAIT_S = 60.0
FIRST_WAIT_S = 0.5
WINDOW_S = 20.0  # over which progress is measured
SLOWEST = 1024  # bytes a second
AGAIN = (408, 425, 429, 500, 502, 503, 504)


class Drip(Exception):
    """Bytes come so seldom that the last of them would not be lived to see."""


class Progress:
    """What comes over a connection, whose timeout every single byte sets back. Raises Drip."""

    def __init__(self) -> None:
        self._began, self._size = time.monotonic(), 0

    def moved(self, size: int) -> None:
        """So many bytes came, just now."""
        self._size += size
        if (waited := time.monotonic() - self._began) >= WINDOW_S:
            if self._size < SLOWEST * waited:
                raise Drip(f"{counted(self._size, 'byte')} in {waited:.0f} s, expected {SLOWEST:,} a second")
            self._began, self._size = time.monotonic(), 0


class _Later(Exception):
    """This attempt failed in a way that another may not; `wait` is in seconds, None for our own choice."""

    def __init__(self, cause: str, wait: float | None = None) -> None:
        super().__init__(cause)
        self.wait = wait


def download(url: str, expected: Digest, final: Path, partial: Path) -> None:
    """Fetch `url` (http or https) to the file `final`: all of it as `expected`, or nothing.

    What a broken connection or a killed run left in `partial`, on the same file system, is continued. Raises
    SourceError when the server refuses, gives nothing new in 5 attempts, or sends other bytes.
    """
    with alone:
        import httpx

    unlogged()
    headers = {"Accept-Encoding": "identity"}  # a range of compressed bytes is not a range of the file
    with _only(partial), httpx.Client(follow_redirects=True, timeout=TIMEOUT_S, headers=headers) as client:
        _check_room(url, expected, partial)
        _Download(client, url, expected, partial).run()
        put_in_place(partial, final)


def _check_room(url: str, expected: Digest, partial: Path) -> None:
    got = min(expected.size, partial.stat().st_size) if partial.exists() else 0
    if lacking := space.lacking(partial.parent, expected.size - got):
        raise SourceError(
            f"{shown(url)}: {lacking}", fix="free some space there, or correct its size in models.toml"
        )


@contextmanager
def _only(partial: Path) -> Iterator[None]:
    """Two models may have one source, and be fetched at once."""
    with appending(partial.with_name(f"{partial.name}.lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass
class _Download:
    client: "httpx.Client"
    url: str
    expected: Digest
    partial: Path
    etag: str = ""
    failures: int = field(default=0)

    @property
    def got(self) -> int:
        """Bytes on disk."""
        return self.partial.stat().st_size if self.partial.exists() else 0

    def run(self) -> None:
        """Attempt until the file is whole and right. Raises SourceError."""
        while True:
            before = self.got
            try:
                self._attempt(before)
                return
            except _Later as error:
                moved = self.got > before and not isinstance(error.__context__, Drip)
                self.failures = 1 if moved else self.failures + 1
                if self.failures >= ATTEMPTS:
                    raise self._error(
                        f"gave up after {ATTEMPTS} attempts: {error}", "check the network, then try again"
                    ) from None
                ours = FIRST_WAIT_S * 2 ** (self.failures - 1)
                time.sleep(min(ours if error.wait is None else error.wait, LONGEST_WAIT_S))

    def _attempt(self, start: int) -> None:
        import httpx

        if start < self.expected.size:
            try:
                with self.client.stream("GET", self.url, headers=self._headers(start)) as answer:
                    self._receive(answer, start)
            except Drip as drip:
                raise _Later(str(drip), 0.0) from None
            except httpx.TransportError as error:
                raise _Later(Url.of(self.url).scrub(str(error)) or type(error).__name__) from None
            except (httpx.InvalidURL, httpx.HTTPError) as error:
                said = Url.of(self.url).scrub(str(error))
                raise self._error(said, "correct the source's url in models.toml") from None
        self._check(resumed=start > 0)

    def _headers(self, start: int) -> dict[str, str]:
        if not start:
            return {}
        condition = {"If-Range": self.etag} if self.etag else {}
        return {"Range": f"bytes={start}-", **condition}

    def _receive(self, answer: "httpx.Response", start: int) -> None:
        if answer.status_code == 416:
            remove(self.partial)
            raise _Later("the server has fewer bytes than were fetched before", 0.0)
        if answer.status_code in AGAIN:
            raise _Later(f"HTTP {answer.status_code}", _retry_after(answer.headers.get("Retry-After", "")))
        if answer.status_code not in (200, 206):
            raise self._error(
                f"HTTP {answer.status_code} {answer.reason_phrase}", _remedy(answer.status_code)
            )
        continued = answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if answer.status_code == 206 and not continued:
            remove(self.partial)
            raise _Later("the server sent a range that was not asked for")
        etag = answer.headers.get("ETag", "")
        self.etag = "" if etag.startswith("W/") else etag  # a weak one may stand for other bytes
        self._append(answer, 0 if answer.status_code == 200 else start)

    def _append(self, answer: "httpx.Response", start: int) -> None:
        size, progress = start, Progress()
        with appending(self.partial) as file:
            file.truncate(start)
            for chunk in answer.iter_raw():
                size += len(chunk)
                if size > self.expected.size:
                    raise self._error(
                        f"expected {counted(self.expected.size, 'byte')}, got more",
                        "find out what the server sends, then correct size and sha256 in models.toml",
                    )
                file.write(chunk)
                progress.moved(len(chunk))

    def _check(self, *, resumed: bool) -> None:
        found = Digest(sha256_of(self.partial), self.got)
        if found == self.expected:
            return
        remove(self.partial)
        if resumed:
            raise _Later("its parts are of different versions", 0.0)
        raise wrong(shown(self.url), self.expected, found)

    def _error(self, cause: str, fix: str) -> SourceError:
        return SourceError(f"{shown(self.url)}: {cause}", fix=fix)


def wrong(place: str, expected: Digest, found: Digest) -> SourceError:
    """The error for bytes that are not what the catalog pins."""
    if expected.size != found.size:
        difference = f"expected {counted(expected.size, 'byte')}, got {found.size:,} (sha256 {found.sha256})"
    else:
        difference = f"expected sha256 {expected.sha256}, got {found.sha256}"
    return SourceError(
        f"{place}: {difference}",
        fix="find out why it changed before you correct size and sha256 in models.toml",
    )


def _remedy(status: int) -> str:
    if status in (401, 403):
        return "the server wants a login: put the file where you can read it, and name that as path or url"
    return "correct the source's url in models.toml"


def _retry_after(text: str) -> float | None:
    """Seconds to wait: the header holds seconds, or a date."""
    if text.strip().isdigit():
        return float(text)
    try:
        when = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, (when - datetime.datetime.now(datetime.UTC)).total_seconds()) if when.tzinfo else None
