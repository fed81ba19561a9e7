"""An HTTP answer that is read as a whole: bounded as it is sent, and once more as it is decoded."""

import json
import zlib
from typing import TYPE_CHECKING, Any

from rules.counting import counted
from rules.sources.refusal import Refused
from rules.url import printable

if TYPE_CHECKING:
    import httpx

# What is asked of a server: a few bytes that are compressed may stand for any number of them.
PLAIN = {"Accept-Encoding": "identity"}
WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
LONGEST_REASON = 200


def read(response: "httpx.Response", most: int, what: str) -> bytes:
    """The body, of at most `most` bytes. Raises Refused, and what httpx raises when the connection breaks."""
    content = b""
    for chunk in response.iter_raw(1 << 16):
        content += chunk
        if len(content) > most:
            raise Refused(f"{what} is longer than {most} bytes")
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    return content if encoding in ("", "identity") else _decoded(content, encoding, most, what)


def _decoded(content: bytes, encoding: str, most: int, what: str) -> bytes:
    if encoding not in WINDOWS:
        raise Refused(f"{what} is encoded in another way than was asked for")
    try:
        decoder = zlib.decompressobj(WINDOWS[encoding])
        plain = decoder.decompress(content, most + 1)
    except zlib.error:
        raise Refused(f"{what} is not encoded as it says") from None
    if len(plain) > most:
        raise Refused(f"{what} is longer than {most} bytes")
    return plain


def reason(content: bytes) -> str:
    """The sentence that a server gives for a refusal (git-lfs docs/api/batch.md, "Response Errors")."""
    try:
        answer: Any = json.loads(content)
        told = answer["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    if not isinstance(told, str):
        return ""
    told = printable(" ".join(told.split()))
    cut = len(told) - LONGEST_REASON
    return told if cut <= 0 else f"{told[:LONGEST_REASON]}… ({counted(cut, 'character')} more)"


def unlogged() -> None:
    """Keep secrets out of logs: at INFO httpx tells whole URLs, at DEBUG httpcore tells headers."""
    import logging

    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
