"""One command on another machine through ssh, as git runs its own: `git-lfs-authenticate`.

A server that gives objects over HTTP tells by it, to whoever may log in with ssh, where to ask and with which
headers (git-lfs docs/api/authentication.md).
"""

import json
import os
import re
import shlex
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rules.sources import child
from rules.sources.refusal import Refused
from rules.url import printable, scrubbed

SCHEMES = ("ssh", "git+ssh", "ssh+git")
COMMAND = "git-lfs-authenticate"
TIMEOUT_S = 60
SCP = re.compile(r"(?:([^@/]+)@)?(?:\[([^\]]+)\]|([^:/\[\]@]+)):(?!//)(.*)", re.DOTALL)


class Address(NamedTuple):
    """A repository on an ssh server: `host` as ssh takes it, perhaps with a user before it."""

    host: str
    port: str
    path: str


@dataclass(frozen=True)
class Grant:
    """What a server tells: the LFS URL (empty: the usual one), headers for it, when it ends (monotonic s)."""

    href: str
    header: Mapping[str, str] = field(repr=False)
    ends: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it can still be used."""
        return self.ends is None or time.monotonic() < self.ends


def address(url: str) -> Address | None:
    """What an ssh URL, or scp's `user@host:path`, names (git-clone(1), "GIT URLS"); None for any other."""
    if "://" in url:
        return _from_url(url)
    found = SCP.fullmatch(url)
    if found is None:
        return None
    user, bracketed, plain, path = found.groups()
    host, port = bracketed or plain, ""
    if bracketed and bracketed.count(":") == 1:
        host, _, port = bracketed.partition(":")
    return Address(f"{user}@{host}" if user else host, port, _at_home(path))


def _from_url(url: str) -> Address | None:
    try:
        parts = urllib.parse.urlsplit(url)
        port = "" if parts.port is None else str(parts.port)
    except ValueError:
        return None
    if parts.scheme not in SCHEMES:
        return None
    user, _, place = urllib.parse.unquote(parts.netloc).rpartition("@")
    host = re.sub(r":[0-9]*$", "", place) if not place.endswith("]") else place
    host = host.removeprefix("[").removesuffix("]")
    return Address(f"{user}@{host}" if user else host, port, _at_home(urllib.parse.unquote(parts.path)))


def _at_home(path: str) -> str:
    return path[1:] if path.startswith("/~") else path


def endpoint(place: Address) -> str:
    """The LFS URL of a server that names none (git-lfs docs/api/server-discovery.md)."""
    host = place.host.rpartition("@")[2]
    host = f"[{host}]" if ":" in host else host
    return lfs_url(f"https://{host}/{place.path.lstrip('/')}")


def lfs_url(repository: str) -> str:
    """Where a repository on an HTTP server has its LFS objects, unless it says otherwise."""
    bare = repository.rstrip("/")
    return f"{bare}/info/lfs" if bare.endswith(".git") else f"{bare}.git/info/lfs"


def program(configured: Callable[[], str]) -> list[str]:
    """The ssh that git would run: GIT_SSH_COMMAND, core.sshCommand (which `configured` looks up), GIT_SSH."""
    if text := os.environ.get("GIT_SSH_COMMAND") or configured():
        return ["sh", "-c", f'{text} "$@"', text]  # words for a shell
    return [os.environ.get("GIT_SSH") or "ssh"]


def authenticate(place: Address, ssh: Sequence[str]) -> Grant:
    """Ask the server for leave to download the objects of a repository. Raises Refused."""
    host, port, path = place
    if host.startswith("-") or path.startswith("-") or not host or not (host + path).isprintable():
        raise Refused("a host and a path that ssh would take for something else")
    words = [*ssh, *(["-p", port] if port else []), host, f"{COMMAND} {shlex.quote(path)} download"]
    asked = time.monotonic()
    return _grant(_said(words), asked)


def _said(words: Sequence[str]) -> bytes:
    """What a command prints; in a session of its own it has no terminal to ask a question on."""
    try:
        ran = child.run(words, {**os.environ, "LC_ALL": "C"}, within_s=TIMEOUT_S)
    except child.Missing as error:
        raise Refused(f"{error} cannot be run (No such file or directory)") from None
    except child.TooLong as error:
        raise Refused(f"no answer over ssh: {error}") from None
    if ran.returncode:
        raise Refused(f"{COMMAND} over ssh failed ({ran.returncode}): {cause(ran.stderr, 'without a word')}")
    return ran.stdout


def cause(stderr: bytes, otherwise: str) -> str:
    """A child's reason for a failure, without what may be secret in a URL."""
    lines = [line.strip() for line in stderr.decode("utf-8", "replace").splitlines()]
    # The first is the cause (ssh's own words, say); what git makes of it comes after it.
    telling = [line for line in lines if line and not line.lower().startswith(("warning", "hint"))]
    return printable(scrubbed(telling[0])) if telling else otherwise


def _grant(content: bytes, asked: float) -> Grant:
    """The answer, which may hold secrets, so that no message repeats any of it. Raises Refused."""
    try:
        answer: Any = json.loads(content)
        href, header, ends = answer.get("href") or "", answer.get("header") or {}, answer.get("expires_in")
        if not isinstance(href, str) or not all(isinstance(one, str) for one in header.values()):
            raise TypeError
        return Grant(href, dict(header), asked + float(ends) if ends else None)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Refused(f"{COMMAND} over ssh answers something else than href and header in JSON") from None
