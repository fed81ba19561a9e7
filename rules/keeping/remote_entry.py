"""What a remote store says a build key once gave: an ActionResult of the Remote Execution API, as its JSON.

That form is the one that bazel-remote checks on upload and gives out for `Accept: application/json`; every
other store just keeps it. Facts, which it has no field for, travel as the standard output.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from rules.keeping.files import is_plain

SHA256 = re.compile("[0-9a-f]{64}")
MOST = 1000  # outputs of one result; a file in parts has 101
LARGEST = 1 << 63  # bytes


class Poisoned(Exception):
    """A remote store gave something else than it was asked for; the text says what, and what was expected."""


@dataclass(frozen=True)
class Blob:
    """An output as a remote store lists it: its name, hex sha256, and size in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Entry:
    """A remote result: the outputs in the order they are put in place, facts for the record, the step, and an
    OpenSSH signature of `signed`, or nothing."""

    outputs: tuple[Blob, ...]
    facts: dict[str, Any]
    step: str
    signature: str = ""

    @property
    def result(self) -> dict[str, Any]:
        """The result in the form that the local store keeps."""
        named = [{"name": one.name, "sha256": one.sha256} for one in self.outputs]
        return {"outputs": named, "facts": self.facts, "step": self.step}

    def signed(self, key: str) -> bytes:
        """What a signature covers: the build key, and so all that was built from, and all that came out."""
        outputs = [[one.name, one.sha256, one.size] for one in self.outputs]
        told = {"key": key, "outputs": outputs, "facts": self.facts, "step": self.step}
        read = json.loads(
            json.dumps(told)
        )  # as whoever checks it has read it: keys of tables are texts there
        return json.dumps(read, sort_keys=True, separators=(",", ":")).encode()


def encoded(entry: Entry) -> bytes:
    """The entry as JSON; equal entries give equal bytes."""
    told = json.dumps({"facts": entry.facts, "step": entry.step}, sort_keys=True)
    files = [
        {"path": one.name, "digest": {"hash": one.sha256, "sizeBytes": str(one.size)}}
        for one in entry.outputs
    ]
    raw = {"outputFiles": files, "stdoutRaw": base64.b64encode(told.encode()).decode()}
    if entry.signature:
        raw["stderrRaw"] = base64.b64encode(entry.signature.encode()).decode()
    return json.dumps(raw, indent=1).encode()


def decoded(content: bytes) -> Entry:
    """The entry in `content`, bytes that anybody may have written.

    Fields that servers add are passed over. Raises Poisoned when it is not an entry, or names an output that
    is not a plain file name, or names one twice.
    """
    try:
        raw = json.loads(content, parse_constant=_refuse)
        told = json.loads(base64.b64decode(raw["stdoutRaw"], validate=True), parse_constant=_refuse)
        files = raw.get("outputFiles", [])
        if len(files) > MOST:
            raise Poisoned(f"expected at most {MOST} outputs, got {len(files):,}")
        outputs = tuple(map(_blob, files))
        facts, step = told["facts"], told["step"]
        signature = base64.b64decode(raw.get("stderrRaw", ""), validate=True).decode()
    except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Poisoned(f"expected a result as JSON, got something else ({type(error).__name__})") from None
    if not isinstance(facts, dict) or not isinstance(step, str):
        raise Poisoned("expected facts as a table and a step's name, got something else")
    names = [one.name for one in outputs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Poisoned(f"expected each output once, got {twice!r} twice")
    return Entry(outputs, facts, step, signature)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"not JSON: {constant}")


def _blob(raw: Mapping[str, Any]) -> Blob:
    name, sha256 = raw["path"], raw["digest"]["hash"]
    # JSON of protobuf leaves a zero out, and writes 64-bit numbers as text.
    size = int(raw["digest"].get("sizeBytes", 0))
    if not is_plain(name):
        raise Poisoned(f"expected a plain file name, got {name!r:.80}")
    if not SHA256.fullmatch(sha256) or not 0 <= size < LARGEST:
        raise Poisoned(f"{name}: expected a sha256 and a size, got {sha256!r:.80} and {size}")
    return Blob(name, sha256, size)
