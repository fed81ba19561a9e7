"""A remote store behind HTTP: bazel-remote, or any server that takes GET, HEAD and PUT of files (WebDAV)."""

import contextlib
import io
import os
import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urlsplit

from rules.imports import alone
from rules.keeping import files
from rules.keeping.digests import CHUNK
from rules.keeping.remote_entry import Poisoned

if TYPE_CHECKING:
    import httpx

MISSING = (404, 410)


class HttpStore:
    """`<url>/cas/<sha256>` and `<url>/ac/<key>`.

    Failures are OSErrors: FileNotFoundError when the server has no such thing, TimeoutError when it is silent
    for `timeout` seconds.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self._url = urlsplit(url)
        self._timeout = timeout
        self._making = threading.Lock()

    @cached_property
    def _client(self) -> "httpx.Client":
        with alone:
            import httpx

        # The credentials are taken out of the URL because httpx logs URLs.
        where = self._url._replace(netloc=self._url.netloc.rpartition("@")[2], query="", fragment="")
        user, password = self._url.username, self._url.password
        return httpx.Client(
            base_url=where.geturl().rstrip("/") + "/",
            auth=(unquote(user), unquote(password or "")) if user else None,
            timeout=self._timeout,
            follow_redirects=False,  # whoever is named in the settings is asked, and nobody else
            headers={"Accept-Encoding": "identity"},
        )

    def read(self, name: str) -> Iterator[bytes]:
        """The bytes under a name, in pieces. Raises OSError; Poisoned when they come compressed."""
        # bazel-remote gives JSON instead of protobuf only to whoever asks for nothing else.
        accept = "application/json" if name.startswith("ac/") else "*/*"
        with self._told(), self._connected().stream("GET", name, headers={"Accept": accept}) as answer:
            if answer.status_code in MISSING:
                raise FileNotFoundError(name)
            _require(answer.status_code == 200, answer)
            # A few bytes of a compressed body can be gigabytes. None was asked for.
            if (encoding := answer.headers.get("Content-Encoding", "identity").lower()) != "identity":
                raise Poisoned(
                    f"{name[:16]}…: expected the bytes as they are, got them encoded: {encoding!r:.40}"
                )
            yield from answer.iter_raw()  # as they come: a sum of them would hide that they do

    def size(self, name: str) -> int | None:
        """How many bytes are there under a name; None when there are none, or the server does not tell."""
        with self._told():
            answer = self._connected().head(name)
            length = answer.headers.get("Content-Length", "")
            return int(length) if answer.status_code == 200 and length.isdecimal() else None

    def write(self, name: str, content: Path | bytes) -> None:
        """Put bytes, or a file's, under a name. Raises OSError."""
        kind = "application/json" if name.startswith("ac/") else "application/octet-stream"
        with self._told(), _opened(content) as (file, size):
            headers = {"Content-Length": str(size), "Content-Type": kind}
            answer = self._connected().put(name, content=_pieces(file), headers=headers)
            _require(answer.is_success, answer)

    def _connected(self) -> "httpx.Client":
        with self._making:
            return self._client

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        with alone:
            import httpx

        try:
            yield
        except httpx.TimeoutException:
            raise TimeoutError(f"no answer within {self._timeout:g} s") from None
        except httpx.HTTPError as error:
            raise OSError(str(error) or type(error).__name__) from None


def _require(fine: bool, answer: "httpx.Response") -> None:
    if not fine:
        request = answer.request
        raise OSError(f"it answered {answer.status_code} to {request.method} {request.url.path}")


@contextlib.contextmanager
def _opened(content: Path | bytes) -> Iterator[tuple[BinaryIO, int]]:
    if isinstance(content, bytes):
        yield io.BytesIO(content), len(content)
    else:
        with files.opened(content) as file:
            yield file, os.fstat(file.fileno()).st_size


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(CHUNK):
        yield piece
