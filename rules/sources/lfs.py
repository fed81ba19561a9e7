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
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from rules.counting import counted
from rules.errors import SourceError
from rules.keeping.digests import CHUNK
from rules.keeping.files import replacing
from rules.sources import ssh
from rules.sources.refusal import Again, Refused
from rules.url import Login, Url

if TYPE_CHECKING:
    import httpx

SPEC = b"version https://git-lfs.github.com/spec/v1"
LONGEST_POINTER = 1024  # docs/spec.md: a pointer is less than 1024 bytes
MEDIA_TYPE = "application/vnd.git-lfs+json"
LONGEST_ANSWER = 1 << 20
HOPS = 5
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
    """The pointer that a blob is, or None for any other content. Raises SourceError for a damaged pointer."""
    if not content.startswith(SPEC):
        return None
    lines = content.decode("utf-8", "replace").splitlines()
    pairs = dict(line.split(" ", 1) for line in lines if " " in line)
    oid = re.fullmatch(r"sha256:([0-9a-f]{64})", pairs.get("oid", ""))
    size = re.fullmatch(r"[0-9]{1,18}", pairs.get("size", ""))
    if not oid or not size:
        raise SourceError(
            f"a damaged Git LFS pointer: expected oid sha256:<64 hex> and size <bytes>, got {lines[1:4]}",
            fix="pin a commit whose pointer is whole",
        )
    return Pointer(oid[1], int(size[0]))


def copied(pointer: Pointer, folders: Sequence[Path], final: Path) -> bool:
    """Whether one of the folders held the object intact, so that it is now at `final`."""
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
    places.incoming.mkdir(parents=True, exist_ok=True)
    part = places.incoming / f"{pointer.oid}.part"
    with locked(places.incoming / f"{pointer.oid}.lock"), _Session(places) as session:
        for url in places.urls:
            try:
                _download(session, url, pointer, part, final, patience or Patience())
                return
            except Refused as refused:
                tried.append(f"{url}: {url.scrub(str(refused))}")
    raise _nowhere(pointer, tried)


def _nowhere(pointer: Pointer, tried: Sequence[str]) -> SourceError:
    fix = (
        "name a server that has it in the source: lfs = [URL], or a clone that holds it: repository = FOLDER"
    )
    if any(re.search(r": 40[13],", line) for line in tried):
        fix = "let git know a login for that host (git help credentials), then try again"
    elif any("over ssh failed" in line for line in tried):
        fix = "let ssh log in to that host without a question (ssh-add, ~/.ssh/config), then try again"
    answers = "; ".join(tried) or "no place was named"
    return SourceError(
        f"Git LFS object {pointer.oid} ({counted(pointer.size, 'byte')}) did not come: {answers}", fix=fix
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until no other holds `path`, then hold it while the block runs; the file stays."""
    with path.open("ab") as file:
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
        source = held.open("rb")
    except FileNotFoundError:
        raise Refused("not there") from None
    except OSError as error:
        raise Refused(f"cannot be read ({error.strerror})") from None
    with source, replacing(final) as target:
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
            part.unlink()
            if fresh:
                raise
            # The bytes that were resumed may be another server's: this one gets a chance with its own alone.
            continue
        part.unlink()
        return


def _complete(session: "_Session", url: Url, pointer: Pointer, part: Path, patience: Patience) -> None:
    """Ask until `part` has the object's size; a try that brings new bytes sets the count of tries back."""
    tries, most = 0, _size(part)
    while _size(part) != pointer.size or not part.exists():
        try:
            session.stream(session.action(url, pointer), pointer, part)
        except Again as again:
            tries = 1 if _size(part) > most else tries + 1
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
        import logging

        import httpx

        # At INFO httpx tells whole URLs, at DEBUG httpcore tells headers: signatures and cookies are in both.
        for name in ("httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)
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
        body = json.dumps(content | {"objects": [pointer._asdict()]}).encode()
        server, granted = self._server(url)
        headers = {**granted, "Accept": MEDIA_TYPE, "Content-Type": MEDIA_TYPE}
        batch = Url.of(f"{server.rstrip('/')}/objects/batch")
        with self._open("POST", batch, headers, body) as response:
            _check_status(response)
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

    def _read(self, response: "httpx.Response") -> bytes:
        content = b""
        try:
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > LONGEST_ANSWER:
                    raise Refused(f"its batch answer is longer than {LONGEST_ANSWER} bytes")
        except self._httpx.TransportError as error:
            raise Again(f"its batch answer broke off ({type(error).__name__})") from None
        except self._httpx.DecodingError:
            raise Refused("its batch answer is not encoded as it says") from None
        return content

    def stream(self, action: Action, pointer: Pointer, part: Path) -> None:
        """Add to `part` what it lacks. Raises Refused, or Again with whatever came kept in `part`."""
        if _size(part) > pointer.size:
            part.unlink()
        have = _size(part)
        headers = {**action.headers, "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with self._open("GET", action.href, headers) as response:
            if response.status_code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                _check_status(response)
            start = _start(response, have, pointer)
            if start is None:
                part.unlink(missing_ok=True)
                raise Again(f"{response.status_code}, will not resume the download at byte {have}")
            with part.open("ab" if start else "wb") as file:
                self._pour(response, file, start, pointer)

    def _pour(self, response: "httpx.Response", file: BinaryIO, size: int, pointer: Pointer) -> None:
        try:
            for chunk in response.iter_raw():
                size += len(chunk)
                if size > pointer.size:
                    file.truncate(0)
                    raise Refused(f"expected {counted(pointer.size, 'byte')}, got more")
                file.write(chunk)
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
            raise Refused(f"{url} cannot be asked for with HTTP")
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
            raise Refused(f"{url} cannot be asked for with HTTP") from None
        except self._httpx.TransportError as error:
            raise Again(f"no answer ({type(error).__name__})") from None


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


def _check_status(response: "httpx.Response") -> None:
    code = response.status_code
    if not response.is_success:
        raise _refusal(code, _retry_after(response.headers.get("Retry-After", "")))


def _refusal(code: int, wait_s: float | None = None) -> Refused | Again:
    try:
        phrase = http.HTTPStatus(code).phrase
    except ValueError:
        phrase = "an unknown status"
    if code == http.HTTPStatus.UNAUTHORIZED or code == http.HTTPStatus.FORBIDDEN:
        phrase += ": git knows no login that this server takes"
    what = f"{code}, {phrase}"
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
            raise _refusal(int(error["code"]))
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
