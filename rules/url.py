"""A URL whose secrets stay in it: what is shown is scheme, host and path; all else needs an explicit ask."""

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

UNREADABLE = "an unreadable URL"
MASK = "…"
# Names that many share, and that a message may hold for other reasons.
PUBLIC_USERS = ("git", "anonymous", "oauth2")
SHORTEST = 4  # characters: what is shorter stands in any text

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=//|[/\\])[/\\]*")
_TRANSPORT = re.compile(r"([A-Za-z0-9]+)::")
_SCP = re.compile(r"(?:([^/\s]*)@)?(\[[^\]/\s]+\]|[^:/\[\]@\s]+):(?!//)([^?#]*)", re.DOTALL)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:@\[\]\s\\]*)(:[0-9]*)?")
# A URL in a text ends where a sentence or a quotation goes on.
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://|\\\\|\\/\\/)[^\s'\"<>`|{}]+")
_SCP_IN_TEXT = re.compile(r"[^\s'\"<>/@]+@(?=[\w.-]+:[^\s])")
_TAIL = ".,:;)!]"


@dataclass(frozen=True)
class Login:
    """A name and a password for one host."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, repr=False)
class Url:
    """A URL, an scp name (`user@host:path`) or a path, as somebody wrote it; printing it tells no secret."""

    _text: str

    @classmethod
    def of(cls, text: object) -> "Url":
        """What the text names; any text is accepted."""
        return cls(str(text))

    def __str__(self) -> str:
        return shown(self._text)

    def __repr__(self) -> str:
        return f"Url({shown(self._text)!r})"

    def reveal(self) -> str:
        """All of it, for whoever connects to it."""
        return self._text

    @property
    def parts(self) -> SplitResult | None:
        """Its parts, secrets among them; None when it cannot be read."""
        return _split(self._text)

    @property
    def origin(self) -> tuple[str, str]:
        """Scheme, and host with its port: what a login belongs to."""
        parts = self.parts
        return (parts.scheme, parts.netloc.rpartition("@")[2].lower()) if parts else ("", self._text)

    @property
    def login(self) -> Login | None:
        """The user and the password in it."""
        return self.without_login()[1]

    def without_login(self) -> tuple[str, Login | None]:
        """Its text less user and password, and those."""
        parts = self.parts
        if parts is None or "@" not in parts.netloc:
            return self._text, None
        named, _, host = parts.netloc.rpartition("@")
        user, _, password = named.partition(":")
        return urlunsplit(parts._replace(netloc=host)), Login(unquote(user), unquote(password))

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts of it that no message may hold, in every spelling, the longest first."""
        found = {one for one in self._secrets() if len(one) >= SHORTEST and one not in PUBLIC_USERS}
        return tuple(sorted(found, key=lambda one: (-len(one), one)))

    def _secrets(self) -> set[str]:
        if "://" not in self._text:
            scp = _SCP.match(self._text)
            return {*re.split("[:@]", scp[1] or "")} if scp else set()
        parts = self.parts
        if parts is None:
            return _pieces(self._text.partition("://")[2])
        named = parts.netloc.rpartition("@")[0]
        user, _, password = named.partition(":")
        found = {named, user, password, parts.query, parts.fragment}
        found |= {value for _, value in parse_qsl(parts.query, keep_blank_values=True)}
        found |= {part.partition("=")[2] or part for part in re.split("[&;]", parts.query)}
        found |= {unquote(one) for one in found}
        if named:
            found.add(base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode())
        return found

    def scrub(self, text: str) -> str:
        """What a child or a library said of this URL, less its secrets and those of any other URL."""
        return scrubbed(text, self.secrets)


def _pieces(rest: str) -> set[str]:
    """All that may be secret in a URL that cannot be read."""
    before, _, after = rest.partition("?") if "?" in rest else rest.partition("#")
    login = before.rpartition("@")[0]
    return {rest, login, after, *login.split(":"), *re.split("[=&#]", after)}


def shown(text: str) -> str:
    """What may be told of a URL, an scp name or a path: scheme, host and path of it."""
    if transport := _TRANSPORT.match(text):
        return f"{transport[1]}::{MASK}"
    if scheme := _SCHEME.match(text):
        return _shown_url(scheme[1], re.split(r"[?#]", text[scheme.end() :], maxsplit=1)[0], scheme[0])
    scp = _SCP.fullmatch(re.split(r"[?#]", text, maxsplit=1)[0]) if not text.startswith(("/", ".")) else None
    if scp and (scp[1] is not None or re.search(r"[?#]", text) is None):
        return printable(f"{scp[2]}:{scp[3]}")
    return printable(text)


def _shown_url(scheme: str, rest: str, before: str) -> str:
    slashes = "///" if before.endswith("///") else "//"
    if slashes == "///":
        return printable(f"{scheme}:///{rest}")
    host, slash, path = rest.partition("/")
    host = host.rpartition("@")[2]
    if _HOST.fullmatch(host) is None:
        # A slash in a password, say: the host comes after all of the login.
        host, slash, path = rest.rpartition("@")[2].partition("/") if "@" in rest else (UNREADABLE, "", "")
        if _HOST.fullmatch(host) is None:
            return UNREADABLE
    return printable(f"{scheme}://{host}{slash}{path}")


def scrubbed(text: str, secrets: tuple[str, ...] = ()) -> str:
    """A text less the secrets that are known, and of every URL and scp name in it what may be shown."""
    text = _SCP_IN_TEXT.sub("", hidden(text))
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def hidden(text: str) -> str:
    """A text in which every URL is as `shown` tells it."""
    return _IN_TEXT.sub(_hide, text) if "://" in text or ":\\" in text else text


def _hide(found: re.Match[str]) -> str:
    url = found[0].rstrip(_TAIL)
    # A host in brackets is part of the URL.
    tail = found[0][len(url) :]
    if tail.startswith("]") and url.count("[") > url.count("]"):
        url, tail = f"{url}]", tail[1:]
    return shown(url.replace("\\/", "/")) + tail


def printable(text: object) -> str:
    """A name, or a sentence with names in it, on one line: what a terminal would obey is shown escaped.

    Bytes of a file name that are no UTF-8 are shown as such (`\\xff`); a name can forge no line of ours.
    """
    plain = str(text)
    return plain if plain.isprintable() else "".join(map(_escaped, plain))


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    if 0xDC80 <= ord(letter) <= 0xDCFF:  # how Python holds such a byte (PEP 383)
        return f"\\x{ord(letter) - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode()


def _split(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError like urlsplit itself
    except ValueError:
        return None
    return parts


def guarded(text: str) -> str:
    """A value that may be a URL with a mistake in it: what is told is never more than of the right one."""
    before, at, rest = shown(text).rpartition("@")
    text = f"{MASK}@{rest}" if at and not re.search(r"\s", before) else f"{before}{at}{rest}"
    cut = re.search(r"[?#&](?=[^\s]*=)", text)
    return f"{text[: cut.start() + 1]}{MASK}" if cut else text


def holds_secrets(text: str) -> bool:
    """Whether a URL or an scp name in a text has more to it than may be shown."""
    urls = (found[0].rstrip(_TAIL) for found in _IN_TEXT.finditer(text))
    told = any(shown(url) != re.sub(r"://(git)@", "://", url) for url in urls)
    users = (found[0].removesuffix("@") for found in _SCP_IN_TEXT.finditer(text))
    return told or re.search(r'"\w+::', text) is not None or any(user not in PUBLIC_USERS for user in users)
