"""A store that several machines share: asked before a step is built, and told afterwards in the background.

Off unless configured. A blob is kept only when its bytes have the sha256 that was asked for, a result only
when it has a result's form, and, where signers are named, one of them signed it. What a step can check of it
is then checked before anything is put in place (rules/build.py); what is left to believe is that an unsigned
candidate, which is inspected and then verified without network, home or write access, was honestly compiled.

It never fails a build. The first request that gets no answer in time ends all requests of the run, also those
that wait at that moment, so that a dead store costs its timeout once.
"""

import contextlib
import hashlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from rules.counting import counted
from rules.errors import CatalogError
from rules.keeping import files
from rules.keeping.remote_entry import Blob, Entry, Poisoned, decoded, encoded
from rules.keeping.reuse import Reuse
from rules.keeping.signatures import Unsignable, Unsigned, sign, signer
from rules.keeping.store import Store
from rules.url import Url

URL_VARIABLE = "MODELS_REMOTE"
ENTRY_LIMIT = 4 << 20  # bytes; a result with its facts takes some ten thousand
RESERVE = 64 << 20  # bytes that stay free on the disk
LINES = 5  # of refused results that a run tells
FLOOR = 256 << 10  # bytes per second; a store that is slower than this is taken for dead

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Settings:
    """`[store]` of models.toml: where, how many seconds it may be silent, whether results go there, whose
    signatures count (a file of OpenSSH's allowed signers; without one, nobody's is needed), and the key that
    signs what goes there."""

    url: str = field(repr=False)
    timeout: float = 5.0
    write: bool = True
    trust: Path | None = None
    sign: Path | None = None


def settings(table: Mapping[str, Any], base: Path = Path()) -> Settings | None:
    """The settings in a `[store]` table, whose paths are relative to `base`; None when there is no remote.

    The environment's MODELS_REMOTE goes before `remote`, since a URL with a password in it has no place in a
    file under version control; set and empty, it turns the remote store off. Raises CatalogError.
    """
    url = os.environ.get(URL_VARIABLE, table.get("remote", ""))
    if not url:
        return None
    if not _is_url(url):
        # The text may hold a password, so it is not repeated.
        raise CatalogError(
            f"store.remote or {URL_VARIABLE}: expected a URL, got something else",
            fix="write one such as https://cache.example/modelyard, file:///mnt/cache or s3://bucket/folder",
        )
    return Settings(
        url,
        float(table.get("timeout_s", Settings.timeout)),
        table.get("write", Settings.write),
        _file(table, "trust", base),
        _file(table, "sign", base),
    )


def _file(table: Mapping[str, Any], name: str, base: Path) -> Path | None:
    if name not in table:
        return None
    path = base / Path(table[name]).expanduser()
    if not path.is_file():
        raise CatalogError(
            f"models.toml: store.{name}: {path}: no such file", fix=f"correct store.{name}, or make the file"
        )
    return path


class Place(Protocol):
    """Where the bytes are kept, under `cas/<sha256>` and `ac/<key>`; any exception is a failure."""

    def read(self, name: str) -> Iterator[bytes]:
        """The bytes under a name, in pieces. Raises FileNotFoundError."""

    def size(self, name: str) -> int | None:
        """How many bytes are there; None when there are none, or when it does not tell."""

    def write(self, name: str, content: Path | bytes) -> None:
        """Put bytes, or a file's, under a name."""


class Down(Exception):
    """The store does not answer; the text says how."""


class Pace:
    """How long a transfer may still take: no silence beyond `timeout` seconds, and no less than FLOOR."""

    def __init__(self, timeout: float, expected: int = 0) -> None:
        self._timeout = timeout
        self._moved = expected  # bytes of which nothing is heard until all are through
        self._started = time.monotonic()
        self._last = self._started + expected / FLOOR

    def moved(self, size: int) -> None:
        """So many bytes came through, just now."""
        self._moved += size
        self._last = time.monotonic()

    def left(self) -> float:
        """Seconds from now; not above zero when time is up."""
        return min(self._last, self._started + self._moved / FLOOR) + self._timeout - time.monotonic()


@dataclass
class Breaker:
    """Lets requests through until one fails, and then none.

    Each runs in a thread of its own, since nothing else bounds every way to wait for a network: a name that
    does not resolve, a mount that hangs. A thread that never ends does not keep the process from ending.
    """

    timeout: float
    cause: str | None = None
    _waiting: set[Future[Any]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, request: Callable[[Pace], Answer]) -> Answer:
        """What the request returns or raises. Raises Down once any request was too slow, or was down."""
        pace, future = Pace(self.timeout), Future[Answer]()
        with self._lock:
            if self.cause is not None:
                raise Down(self.cause)
            self._waiting.add(future)
        threading.Thread(target=_settle, args=(future, request, pace), daemon=True).start()
        try:
            return self._outcome(future, pace)
        except Down as error:
            self.trip(str(error))
            raise
        finally:
            with self._lock:
                self._waiting.discard(future)

    def _outcome(self, future: Future[Answer], pace: Pace) -> Answer:
        while not future.done():
            if (left := pace.left()) <= 0:
                raise Down(f"no answer within {self.timeout:g} s")
            futures.wait([future], left)
        return future.result()

    def trip(self, cause: str) -> None:
        """No more requests; whoever waits for one stops waiting."""
        with self._lock:
            self.cause = self.cause or cause
            for future in self._waiting:
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(Down(self.cause))


def _settle(future: Future[Answer], request: Callable[[Pace], Answer], pace: Pace) -> None:
    # The future is settled already when the wait for it was given up.
    try:
        answer = request(pace)
    except Exception as error:
        with contextlib.suppress(InvalidStateError):
            future.set_exception(error)
    else:
        with contextlib.suppress(InvalidStateError):
            future.set_result(answer)


@dataclass(frozen=True)
class Offer:
    """A result that waits to go up."""

    key: str
    entry: Entry


class Remote:
    """The remote store of one run. Safe to share between threads."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings = settings
        self.store = store
        self._url = Url.of(settings.url)
        self.shown = str(self._url)
        self._place = _place(settings)
        self._breaker = Breaker(settings.timeout)
        self._refused: set[str] = set()
        self._told: list[str] = []
        self._unsigned: list[str] = []
        self._lock = threading.Lock()
        self._uploads = Uploads(self._upload, settings.timeout)

    def entry(self, key: str, reuse: Reuse) -> Entry | None:
        """What the key once gave elsewhere, of which not a byte has been fetched yet.

        None when the store does not know, is down, or has something that is not to be taken.
        """
        if not (reuse.signed and (reuse.unsigned or reuse.why or self.settings.trust)):
            return None
        try:
            entry = self._breaker.call(partial(self._entry, key))
        except (FileNotFoundError, Down):
            return None
        except Poisoned as error:
            self._tell(f"refused {error}")
            return None
        if self.settings.trust is not None:
            return entry if self._is_signed(key, entry, self.settings.trust) else None
        if not reuse.unsigned:
            self._tell(reuse.why)
        return entry if reuse.unsigned else None

    def _is_signed(self, key: str, entry: Entry, trust: Path) -> bool:
        try:
            signer(entry.signed(key), entry.signature, trust)
        except Unsigned as error:
            with self._lock:
                self._unsigned.append(f"{f'ac/{key}':.15}…: {error}")
            return False
        return True

    def fetch(self, entry: Entry) -> bool:
        """Bring the bytes of an entry into the local store; False when that does not go."""
        missing = [output for output in entry.outputs if not self.store.holds(output.sha256)]
        try:
            self._check_room(sum(output.size for output in missing))
            for output in missing:
                self._breaker.call(partial(self._fetch, output))
        except (FileNotFoundError, Down):
            return False
        except OSError as error:
            self._tell(f"what it holds cannot be kept here: {error.strerror or error}")
            return False
        except Poisoned as error:
            self._tell(f"refused {error}")
            return False
        return True

    def _check_room(self, size: int) -> None:
        """A size is but what the store says, and a disk that it fills would stop every build."""
        self.store.root.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.store.root).free
        if size and size > free - RESERVE:
            raise OSError(f"{size:,} bytes, where {free:,} are free")

    def refuse(self, key: str, flaw: str) -> None:
        """Tell the user that what `entry` gave cannot be a result of this key."""
        self._tell(f"refused {f'ac/{key}':.15}…: {flaw}")

    def of_use(self, reuse: Reuse) -> bool:
        """Whether anyone would take what is offered under these terms."""
        return reuse.signed and bool(reuse.unsigned or reuse.why or self.settings.sign)

    def offer(self, key: str, result: Mapping[str, Any]) -> None:
        """Let others have a result, in the background; its form is that of `Store.note_result`."""
        if self.settings.write:
            blobs = [
                Blob(one["name"], one["sha256"], self.store.path_of(one["sha256"]).stat().st_size)
                for one in result["outputs"]
            ]
            self._uploads.add(Offer(key, Entry(tuple(blobs), dict(result["facts"]), result["step"])))

    def close(self, *, wait: bool = True) -> tuple[str, ...]:
        """End the run: let what was offered go up while it moves; then the lines that the user must see.

        With `wait` false (the run was interrupted), what is not up yet is given up.
        """
        if self._breaker.cause is None and wait:
            self._uploads.finish()
        lost = self._uploads.stop("the run was interrupted")
        lines = self._told[:LINES]
        if len(self._told) > LINES:
            lines.append(f"and {len(self._told) - LINES} more of that kind")
        if self._unsigned and self.settings.trust is not None:
            results = counted(len(self._unsigned), "result")
            told = f"did not read {results} that nobody in {self.settings.trust} signed"
            lines.append(f"{told}, the first of them {self._unsigned[0]}")
        if self._breaker.cause is not None:
            lines.append(f"{self._breaker.cause}; this run went on without it")
        elif lost:
            results = counted(lost, "result")
            lines.append(f"{self._uploads.cause}; {results} not uploaded")
        return tuple(f"remote store {self.shown}: {line}" for line in lines)

    # ---- what runs in threads that may be given up

    def _entry(self, key: str, pace: Pace) -> Entry:
        name = f"ac/{key}"
        content = bytearray()
        try:
            for piece in self._pieces(name, pace):
                content += piece
                if len(content) > ENTRY_LIMIT:
                    raise Poisoned(f"expected at most {ENTRY_LIMIT:,} bytes, got more")
            return decoded(bytes(content))
        except Poisoned as error:
            self._refused.add(name)
            raise Poisoned(f"{name[:15]}…: {error}") from None

    def _fetch(self, wanted: Blob, pace: Pace) -> None:
        name, total, size = f"cas/{wanted.sha256}", hashlib.sha256(), 0
        scratch = self.store.scratch()
        try:
            with (scratch / wanted.sha256).open("xb") as file:
                for piece in self._pieces(name, pace):
                    size += file.write(piece)
                    total.update(piece)
                    if size > wanted.size:
                        break
            if (total.hexdigest(), size) != (wanted.sha256, wanted.size):
                self._refused.add(name)
                found = f"{total.hexdigest()[:12]}… of {size:,}{'+' if size > wanted.size else ''}"
                raise Poisoned(
                    f"{name[:16]}…: expected {counted(wanted.size, 'byte')} of that sha256, got {found}"
                )
            self.store.adopt(scratch / wanted.sha256, wanted.sha256)
        finally:
            files.discard(scratch)

    def _pieces(self, name: str, pace: Pace) -> Iterator[bytes]:
        """Only what the store does wrong becomes Down; a full disk here is not its fault."""
        try:
            for piece in self._place.read(name):
                pace.moved(len(piece))
                yield piece
        except (FileNotFoundError, Poisoned):
            raise
        except Exception as error:
            raise Down(self._cause(error)) from None

    def _upload(self, offer: Offer) -> str | None:
        """Blobs first: who finds a result finds its bytes. Returns what went wrong."""
        if self._breaker.cause is not None:
            return self._breaker.cause
        try:
            for blob in offer.entry.outputs:
                self._upload_blob(blob)
            self._place.write(f"ac/{offer.key}", encoded(self._signed(offer)))
        except Unsignable as error:
            return f"what is made here cannot be signed: {error}"
        except Exception as error:
            return self._cause(error)
        return None

    def _signed(self, offer: Offer) -> Entry:
        key = self.settings.sign
        if key is None:
            return offer.entry
        return replace(offer.entry, signature=sign(offer.entry.signed(offer.key), key))

    def _upload_blob(self, blob: Blob) -> None:
        name = f"cas/{blob.sha256}"
        if not self.store.holds(blob.sha256):
            raise FileNotFoundError(f"{name} is no longer in the local store")
        self._uploads.pace = Pace(self.settings.timeout, blob.size)
        if name in self._refused or self._place.size(name) != blob.size:
            self._place.write(name, self.store.path_of(blob.sha256))
        self._uploads.pace = Pace(self.settings.timeout)

    # ---- words

    def _tell(self, line: str) -> None:
        with self._lock:
            if line not in self._told:
                self._told.append(line)

    def _cause(self, error: Exception) -> str:
        """A failure in a line, without the credentials that a library may have put into it."""
        if isinstance(error, ModuleNotFoundError):
            return f"the package {error.name} is missing (pip install 'modelyard[remote]')"
        text = next(iter(str(error).splitlines()), "") or type(error).__name__
        return self._url.scrub(text)


class Uploads:
    """Results on their way up, one after the other, in a thread that starts with the first of them."""

    def __init__(self, upload: Callable[[Offer], str | None], timeout: float) -> None:
        self.cause: str | None = None
        self.pace = Pace(timeout)
        self._upload = upload
        self._timeout = timeout
        self._queue: queue.SimpleQueue[Offer] = queue.SimpleQueue()
        self._open = 0
        self._running = False
        self._changed = threading.Condition()

    def add(self, offer: Offer) -> None:
        """Send it when its turn comes; once one failed, none is sent."""
        with self._changed:
            self._open += 1
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, daemon=True).start()
        self._queue.put(offer)

    def finish(self) -> None:
        """Wait for all of them, as long as they move."""
        with self._changed:
            while self._open and self.cause is None:
                if (left := self.pace.left()) <= 0:
                    self.cause = f"no answer within {self._timeout:g} s"
                self._changed.wait(max(left, 0))

    def stop(self, cause: str) -> int:
        """Send no more; how many did not go up."""
        with self._changed:
            self.cause = self.cause or cause
            return self._open

    def _work(self) -> None:
        while True:
            offer = self._queue.get()
            if self.cause is not None:
                continue
            self.pace = Pace(self._timeout)
            cause = self._upload(offer)
            with self._changed:
                self.cause = self.cause or cause
                self._open -= cause is None
                self._changed.notify_all()


def _place(settings: Settings) -> Place:
    if urlsplit(settings.url).scheme in ("http", "https"):
        from rules.keeping.remote_http import HttpStore

        return HttpStore(settings.url, settings.timeout)
    from rules.keeping.remote_fsspec import FsspecStore

    return FsspecStore(settings.url)


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError like urlsplit itself
        return bool(parts.scheme and (parts.netloc or parts.path.strip("/")))
    except ValueError:
        return False
