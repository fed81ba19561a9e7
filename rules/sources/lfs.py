"""Git LFS without git-lfs: a pointer's object from a folder of objects or a server's batch API, verified.

No place is trusted: what it gives has the pointer's size and sha256, or the next place is asked. Formats are
those of git-lfs: docs/spec.md (pointers), docs/api/batch.md, docs/api/basic-transfers.md.
"""

import base64
import contextlib
import fcntl
import hashlib
import http
import json
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from rules.counting import counted
from rules.errors import SourceError
from rules.imports import alone
from rules.keeping import files
from rules.keeping.digests import CHUNK
from rules.keeping.files import appending, make_folder, remove, replacing, write_bytes
from rules.sources import body, space, ssh
from rules.sources.download import Drip, Progress
from rules.sources.refusal import Again, Refused
from rules.url import Login, Url, printable, scrubbed

if TYPE_CHECKING:
    import httpx

# What makes a small file one that git-lfs wrote, even if others wrote into it.
MENTIONS = rb"(?m)^version https?://(git-lfs\.github\.com|hawser\.github\.com|git-media\.io)/"
VERSIONS = r"https://(git-lfs|hawser)\.github\.com/spec/v1|http://git-media\.io/v/2"
KEYS = (
    ("version", VERSIONS, "version https://git-lfs.github.com/spec/v1"),
    ("oid", r"sha256:[0-9a-f]{64}", "oid sha256:<64 hex>"),
    ("size", r"\+?[0-9]{1,18}", "size <bytes>"),
)
EMPTY = hashlib.sha256().hexdigest()
LONGEST_POINTER = 1024  # docs/spec.md: a pointer is less than 1024 bytes
MEDIA_TYPE = "application/vnd.git-lfs+json"
LONGEST_ANSWER = 1 << 20
HOPS = 5
NO_LOGIN = ": git knows no login that this server takes"
TIMEOUT_S = 30


class Pointer(NamedTuple):
    """What stands for an object: lower-case hex sha256, and size in bytes."""

    oid: str
    size: int


@dataclass(frozen=True)
class Patience:
    """How often one server is asked while nothing new comes, and how long one pause may be, in seconds."""

    attempts: int = 5
    first_s: float = 0.5
    longest_s: float = 60.0

    def pause(self, tries: int, again: "Again") -> None:
        """Sleep before the next try: what the server asked for, else doubling. Raises Refused at the end."""
        wait = self.first_s * 2 ** (tries - 1) if again.wait_s is None else again.wait_s
        if tries >= self.attempts:
            raise Refused(f"{again}, after {counted(tries, 'try', 'tries')}")
        if wait > self.longest_s:
            raise Refused(f"{again}, and wants {wait:.0f} s of waiting")
        time.sleep(wait)


@dataclass(frozen=True)
class Places:
    """Where objects may be: folders laid out `aa/bb/<oid>`, then servers, each in order.

    A server is an LFS URL, or a repository over ssh, which is asked for one. `incoming` keeps what broken
    downloads left, to be resumed; `login` asks for a URL's login, `ssh_command` for git's core.sshCommand.
    """

    folders: Sequence[Path]
    urls: Sequence[Url]
    incoming: Path
    login: Callable[[Url], Login | None]
    ssh_command: Callable[[], str] = lambda: ""


def parse(content: bytes) -> Pointer | None:
    """The pointer that a blob is, or None for any other content. Raises SourceError for a damaged pointer.

    What git-lfs takes is taken: the keys in their order, each once, and nothing else.
    """
    if not re.search(MENTIONS, content):
        return None
    values: list[str] = []
    for number, line in enumerate(content.strip().decode("utf-8", "replace").split("\n"), 1):
        line = line.removesuffix("\r")
        key, space_, value = line.partition(" ")
        expected = KEYS[len(values)] if len(values) < len(KEYS) else ("nothing", "", "")
        if line and (key != expected[0] or not space_ or not re.fullmatch(expected[1], value)):
            raise _damaged(number, line, expected[2] or "nothing after its size")
        values += [value] if line else []
    if len(values) < len(KEYS):
        raise _damaged(number + 1, "", KEYS[len(values)][2])
    return Pointer(values[1].removeprefix("sha256:"), int(values[2]))


def _damaged(number: int, line: str, expected: str) -> SourceError:
    found = f"got {printable(line[:80])!r}" if line else "got the end"
    fix = "pin a commit whose pointer is whole"
    if line.startswith(("<<<<<<<", "=======", ">>>>>>>", "|||||||")):
        fix = "pin a commit in which the conflict of two pointers is resolved"
    elif re.match(r"ext-[0-9]-\w+ ", line):
        fix = "name the file in a folder: what the extension of Git LFS made of it is not known here"
    return SourceError(f"a damaged Git LFS pointer: line {number}: expected {expected}, {found}", fix=fix)


def copied(pointer: Pointer, folders: Sequence[Path], final: Path) -> bool:
    """Whether a folder held the object intact, so that it is now at `final`; none need hold an empty one."""
    if pointer.size == 0 and pointer.oid == EMPTY:
        write_bytes(final, b"")
        return True
    return any(_from_folder(folder, pointer, final) is None for folder in folders)


def bring(pointer: Pointer, final: Path, places: Places, patience: Patience | None = None) -> None:
    """Put the object at `final`, whole and verified, from the first place that has it.

    Raises SourceError, saying what each place answered.
    """
    tried = []
    for folder in places.folders:
        refused = _from_folder(folder, pointer, final)
        if refused is None:
            return
        tried.append(f"{folder}: {refused}")
    make_folder(places.incoming)
    part = places.incoming / f"{pointer.oid}.part"
    with (
        locked(places.incoming / f"{pointer.oid}.lock"),
        _Session(places) as session,
        _bounded(part, pointer),
    ):
        for url in places.urls:
            try:
                _download(session, url, pointer, part, final, patience or Patience())
                return
            except Refused as refused:
                tried.append(f"{url}: {url.scrub(str(refused))}")
    raise _nowhere(pointer, tried)


@contextlib.contextmanager
def _bounded(part: Path, pointer: Pointer) -> Iterator[None]:
    """Refuse what has no room before its first byte, and leave nothing that nobody could go on with."""
    if lacking := space.lacking(part.parent, pointer.size - min(pointer.size, _size(part))):
        part.unlink(missing_ok=True)
        raise SourceError(
            f"Git LFS object {pointer.oid}: {lacking}",
            fix="free some space there; if it cannot be that large, pin a commit whose pointer is right",
        )
    try:
        yield
    except OSError:
        part.unlink(missing_ok=True)  # a disk that it filled stays full otherwise
        raise
    finally:
        if _size(part) == 0:
            part.unlink(missing_ok=True)


def _nowhere(pointer: Pointer, tried: Sequence[str]) -> SourceError:
    fix = (
        "name a server that has it in the source: lfs = [URL], or a clone that holds it: repository = FOLDER"
    )
    if any(NO_LOGIN in line for line in tried):
        fix = "let git know a login for that host alone (git help credentials), "
        fix += "or name the server in the source: lfs = [URL]; then try again"
    elif any("over ssh failed" in line for line in tried):
        fix = "let ssh log in to that host without a question (ssh-add, ~/.ssh/config), then try again"
    answers = "; ".join(tried) or "no place was named"
    return SourceError(
        f"Git LFS object {pointer.oid} ({counted(pointer.size, 'byte')}) did not come: {answers}", fix=fix
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other holds `path`, then hold it while the block runs; the file stays."""
    with appending(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# ---- objects on this machine


def _from_folder(folder: Path, pointer: Pointer, final: Path) -> Refused | None:
    held = folder / pointer.oid[:2] / pointer.oid[2:4] / pointer.oid
    try:
        _take(held, pointer, final)
    except Refused as refused:
        return refused
    return None


def _take(held: Path, pointer: Pointer, final: Path) -> None:
    """Copy a file to `final` if it is the object; nothing appears there otherwise. Raises Refused."""
    try:
        source = files.opened(held)
    except FileNotFoundError:
        raise Refused("not there") from None
    except OSError as error:
        raise Refused(f"cannot be read ({error.strerror})") from None
    with source:
        size = os.fstat(source.fileno()).st_size
        if size != pointer.size:
            raise Refused(f"expected {counted(pointer.size, 'byte')}, got {size:,}")
        _copy(source, pointer, final)


def _copy(source: BinaryIO, pointer: Pointer, final: Path) -> None:
    with replacing(final) as target:
        found = _pour_hashed(source, target)
        if found != pointer:
            raise Refused(_mismatch(pointer, found))


def _pour_hashed(source: BinaryIO, target: BinaryIO) -> Pointer:
    total, size = hashlib.sha256(), 0
    while chunk := source.read(CHUNK):
        total.update(chunk)
        size += target.write(chunk)
    return Pointer(total.hexdigest(), size)


def _mismatch(expected: Pointer, found: Pointer) -> str:
    if expected.size != found.size:
        return f"expected {counted(expected.size, 'byte')}, got {found.size:,}"
    return f"expected sha256 {expected.oid}, got {found.oid}"


# ---- objects on a server


def _download(
    session: "_Session", url: Url, pointer: Pointer, part: Path, final: Path, patience: Patience
) -> None:
    while True:
        fresh = not part.exists()
        _complete(session, url, pointer, part, patience)
        try:
            _take(part, pointer, final)
        except Refused:
            remove(part)
            if fresh:
                raise
            # The bytes that were resumed may be another server's: this one gets a chance with its own alone.
            continue
        remove(part)
        return


def _complete(session: "_Session", url: Url, pointer: Pointer, part: Path, patience: Patience) -> None:
    """Ask until `part` has the object's size; a try that brings new bytes sets the count of tries back."""
    tries, most = 0, _size(part)
    while _size(part) != pointer.size or not part.exists():
        try:
            session.stream(session.action(url, pointer), pointer, part)
        except Again as again:
            tries = 1 if _size(part) > most and not isinstance(again.__context__, Drip) else tries + 1
            most = max(most, _size(part))
            patience.pause(tries, again)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


class Action(NamedTuple):
    """Where a server says that an object can be downloaded."""

    href: Url
    headers: Mapping[str, str]


class _Session:
    """Requests to LFS servers, with logins where they are asked for."""

    def __init__(self, places: Places) -> None:
        with alone:
            import httpx

        body.unlogged()
        self._httpx = httpx
        self._client = httpx.Client(timeout=TIMEOUT_S)
        self._ask = places.login
        self._ssh_command = places.ssh_command
        self._grants: dict[Url, ssh.Grant] = {}
        self._logins: dict[tuple[str, str], Login | None] = {}

    def __enter__(self) -> "_Session":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def action(self, url: Url, pointer: Pointer) -> Action:
        """Ask the batch API where the object is. Raises Refused or Again."""
        content = {"operation": "download", "transfers": ["basic"], "hash_algo": "sha256"}
        asked = json.dumps(content | {"objects": [pointer._asdict()]}).encode()
        server, granted = self._server(url)
        headers = {**granted, **body.PLAIN, "Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE}
        batch = Url.of(f"{server.rstrip('/')}/objects/batch")
        with self._open("POST", batch, headers, asked) as response:
            self._check_status(response)
            return _action(self._read(response), pointer)

    def _server(self, url: Url) -> tuple[str, Mapping[str, str]]:
        """The LFS URL, and headers for it; an ssh server tells both, for a while. Raises Refused."""
        place = ssh.address(url.reveal())
        if place is None:
            return url.reveal(), {}
        grant = self._grants.get(url)
        if grant is None or not grant.holds:
            grant = self._grants[url] = ssh.authenticate(place, ssh.program(self._ssh_command))
        return grant.href or ssh.endpoint(place), grant.header

    def _check_status(self, response: "httpx.Response") -> None:
        if response.is_success:
            return
        said = ""
        with contextlib.suppress(Refused, self._httpx.TransportError):
            said = body.reason(body.read(response, LONGEST_ANSWER, "its answer"))
        known = [word for login in self._logins.values() if login for word in (login.password, login.user)]
        wait_s = _retry_after(response.headers.get("Retry-After", ""))
        raise _refusal(response.status_code, wait_s, scrubbed(said, tuple(filter(None, known))))

    def _read(self, response: "httpx.Response") -> bytes:
        try:
            return body.read(response, LONGEST_ANSWER, "its batch answer")
        except self._httpx.TransportError as error:
            raise Again(f"its batch answer broke off ({type(error).__name__})") from None

    def stream(self, action: Action, pointer: Pointer, part: Path) -> None:
        """Add to `part` what it lacks. Raises Refused, or Again with whatever came kept in `part`."""
        if _size(part) > pointer.size:
            remove(part)
        have = _size(part)
        headers = {**action.headers, **body.PLAIN}
        if have:
            headers["Range"] = f"bytes={have}-"
        with self._open("GET", action.href, headers) as response:
            if response.status_code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                self._check_status(response)
            start = _start(response, have, pointer)
            if start is None:
                remove(part)
                raise Again(f"{response.status_code}, will not resume the download at byte {have}")
            with appending(part) as file:
                file.truncate(start)
                self._pour(response, file, start, pointer)

    def _pour(self, response: "httpx.Response", file: BinaryIO, size: int, pointer: Pointer) -> None:
        progress = Progress()
        try:
            for chunk in response.iter_raw():
                size += len(chunk)
                if size > pointer.size:
                    file.truncate(0)
                    raise Refused(f"expected {counted(pointer.size, 'byte')}, got more")
                file.write(chunk)
                progress.moved(len(chunk))
        except Drip as drip:
            raise Again(f"it drips: {drip}") from None
        except self._httpx.TransportError as error:
            whole = counted(pointer.size, "byte")
            broke = f"the connection broke after {size:,} of {whole} ({type(error).__name__})"
            raise Again(broke) from None
        if size < pointer.size:
            raise Again(f"expected {counted(pointer.size, 'byte')}, got {size:,}")

    @contextlib.contextmanager
    def _open(
        self, method: str, url: Url, headers: Mapping[str, str], body: bytes = b""
    ) -> Iterator["httpx.Response"]:
        """Send, follow redirects with the method kept, log in when told to."""
        for _ in range(HOPS + 1):
            response = self._send(method, url, headers, body)
            try:
                if not response.has_redirect_location:
                    yield response
                    return
                url, headers = _redirected(url, response.headers["Location"], headers)
            finally:
                response.close()
        raise Refused(f"redirects more than {HOPS} times")

    def _send(self, method: str, url: Url, headers: Mapping[str, str], body: bytes) -> "httpx.Response":
        if url.parts is None:
            raise Refused(f"{_named(url)} cannot be asked for with HTTP")
        bare, inline = url.without_login()
        url, origin = Url.of(bare), url.origin
        if inline:
            self._logins.setdefault(origin, inline)
        response = self._once(method, url, headers, body)
        if response.status_code not in (401, 403) or origin in self._logins or _has_login(headers):
            return response
        response.close()
        self._logins[origin] = self._ask(url)
        return self._once(method, url, headers, body)

    def _once(self, method: str, url: Url, headers: Mapping[str, str], body: bytes) -> "httpx.Response":
        login = None if _has_login(headers) else self._logins.get(url.origin)
        if login:
            text = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
            headers = {**headers, "Authorization": f"Basic {text}"}
        try:
            request = self._client.build_request(method, url.reveal(), headers=headers, content=body or None)
            return self._client.send(request, stream=True)
        except (
            self._httpx.UnsupportedProtocol,
            self._httpx.LocalProtocolError,
            self._httpx.InvalidURL,
            ValueError,  # a header that is not ASCII
        ):
            raise Refused(f"{_named(url)} cannot be asked for with HTTP") from None
        except self._httpx.TransportError as error:
            raise Again(f"no answer ({type(error).__name__})") from None


def _named(url: Url) -> str:
    # What is no URL may be anything, a secret among them.
    return str(url) if "://" in url.reveal() else "what it names"


def _has_login(headers: Mapping[str, str]) -> bool:
    return any(name.lower() == "authorization" for name in headers)


def _redirected(url: Url, location: str, headers: Mapping[str, str]) -> tuple[Url, Mapping[str, str]]:
    """The next URL, and the headers that may go there: what is secret stays with its host."""
    try:
        after = Url.of(urllib.parse.urljoin(url.reveal(), location))
    except ValueError:
        raise Refused("redirects to an unreadable URL") from None
    if url.origin == after.origin:
        return after, headers
    if url.origin[0] == "https" and after.origin[0] != "https":
        raise Refused(f"redirects from https to {after}")
    kept = ("accept", "accept-encoding", "content-type", "range")
    return after, {name: value for name, value in headers.items() if name.lower() in kept}


def _refusal(code: int, wait_s: float | None = None, said: str = "") -> Refused | Again:
    try:
        phrase = http.HTTPStatus(code).phrase
    except ValueError:
        phrase = "an unknown status"
    unknown = code == http.HTTPStatus.UNAUTHORIZED or (code == http.HTTPStatus.FORBIDDEN and not said)
    what = f"{code}, {phrase}{NO_LOGIN if unknown else ''}" + (f' (it says "{said}")' if said else "")
    again = code in (http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS) or code >= 500
    return Again(what, wait_s) if again else Refused(what)


def _retry_after(text: str) -> float | None:
    """Seconds (RFC 9110, 10.2.3: a number of them, or a date); None for anything else."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    import email.utils

    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def _action(content: bytes, pointer: Pointer) -> Action:
    """The download of a batch answer. Raises Refused or Again."""
    try:
        answer = json.loads(content)
        found: Any = next(one for one in answer["objects"] if one["oid"] == pointer.oid)
        if error := found.get("error"):
            raise _refusal(int(error["code"]), said=body.reason(json.dumps(error).encode()))
        if int(found.get("size", pointer.size)) != pointer.size:
            raise Refused(
                f"expected {counted(pointer.size, 'byte')}, its batch answer says {int(found['size']):,}"
            )
        download = found["actions"]["download"]
        headers = {str(name): str(value) for name, value in (download.get("header") or {}).items()}
        return Action(Url.of(download["href"]), headers)
    except (
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        StopIteration,
        RecursionError,
    ):
        raise Refused("its batch answer offers no download of this object") from None


def _start(response: "httpx.Response", have: int, pointer: Pointer) -> int | None:
    """At which byte the body starts: 0, or `have`; None when it is no part of the object. Raises Refused."""
    if response.status_code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        return None
    if response.status_code == http.HTTPStatus.PARTIAL_CONTENT:
        text = response.headers.get("Content-Range", "")
        span = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)", text)
        fits = span and int(span[1]) == have and span[2] in ("*", str(pointer.size))
        return have if fits else None
    length = response.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) != pointer.size:
        raise Refused(f"expected {counted(pointer.size, 'byte')}, got {int(length):,}")
    return 0
