"""models.lock.json: sha256 and size of every file that a source once gave; a later fetch must give the same.

A pin belongs to what identifies the source in models.toml: another ref is another source, and is pinned anew;
another mirror of the same ref is not.
"""

import contextlib
import fcntl
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rules.catalog import PINS, Source
from rules.counting import counted
from rules.errors import SourceError, located
from rules.keeping import files
from rules.keeping.digests import Digest
from rules.keeping.files import canonical, opened, write_bytes
from rules.networks.outside import ROLE
from rules.sources import kind_of

FORMAT = 1
PATIENCE_S = 60.0  # for another process that changes the pins, which takes a moment
LOOK_S = 0.05
# What others publish. A generated model is made here, and a local file is its owner's to edit: the build key
# holds their identity, and nothing stands between the two.
PINNED_KINDS = frozenset(("archive", "git", "hub", "wheel"))

Found = Mapping[str, Digest]  # by role, or by its name a file that such a one keeps weights in

_changing = threading.Lock()
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Pins:
    """What one model's source gave: what identifies the source, and digests by role or name."""

    source: Mapping[str, Any]
    files: Found


@dataclass(frozen=True)
class Lock:
    """All pins, by model id; `name` is the file's, for errors."""

    name: str
    models: Mapping[str, Pins] = field(default_factory=dict)

    def of(self, model_id: str, source: Source) -> Found:
        """The pins that hold for this source of the model; empty when it has none yet."""
        pins = self.models.get(model_id)
        return pins.files if pins and pins.source == _identity(source) else {}

    def check(self, model_id: str, role: str, sha256: str, size: int) -> None:
        """Compare one file (`size` in bytes) with its pin. Raises SourceError for another, or for no pin."""
        pins = self.models.get(model_id)
        pinned = pins.files.get(role) if pins else None
        if pinned is None:
            raise self._error(model_id, f"expected no {_file(role)}, got one of {counted(size, 'byte')}")
        if pinned.size != size:
            raise self._error(
                model_id, f"{_file(role)}: expected {counted(pinned.size, 'byte')}, got {size:,}"
            )
        if pinned.sha256 != sha256:
            raise self._error(model_id, f"{_file(role)}: expected sha256 {pinned.sha256}, got {sha256}")

    def check_all(self, model_id: str, found: Found) -> None:
        """Compare all files of a model with its pins, none missing and none new. Raises SourceError."""
        for role, digest in sorted(found.items()):
            self.check(model_id, role, *digest)
        pins = self.models.get(model_id)
        if missing := sorted(set(pins.files if pins else ()) - set(found)):
            raise self._error(
                model_id, f"expected {_file(missing[0])}, got {', '.join(sorted(found)) or 'nothing'}"
            )

    def with_pins(self, model_id: str, source: Source, found: Found) -> "Lock":
        """This lock with the model's pins replaced."""
        return Lock(self.name, {**self.models, model_id: Pins(_identity(source), dict(found))})

    def _error(self, model_id: str, difference: str) -> SourceError:
        return SourceError(
            f"{model_id}: its source is not what {self.name} pins: {difference}",
            fix=f"find out why; if the change is meant, doit pin --update {model_id}",
        )


def path_of(catalog: Path) -> Path:
    """The lock file beside a catalog: `models.toml` → `models.lock.json`."""
    return catalog.with_suffix(PINS)


def read(path: Path) -> Lock:
    """The pins in `path`; none when there is no such file. Raises SourceError when it is damaged."""
    try:
        text = files.read(path).decode()
        raw = json.loads(text)
    except FileNotFoundError:
        return Lock(path.name)
    except OSError as error:
        raise _damaged(path, located(error)) from None
    except json.JSONDecodeError as error:
        raise _damaged(path, error.msg, error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or not isinstance(raw.get("models"), dict):
        raise _damaged(path, f'expected "format": {FORMAT} and "models"', 1)
    models = {}
    for model_id, entry in raw["models"].items():
        try:
            models[model_id] = _pins(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            cause = f"{model_id}: {type(error).__name__}: {error}"
            raise _damaged(path, cause, _line_of(text, model_id)) from None
    return Lock(path.name, models)


def _line_of(text: str, model_id: str) -> int:
    """The line on which the pins of a model begin; 1 where that cannot be told."""
    quoted = json.dumps(model_id, ensure_ascii=False)
    return next((at for at, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith(quoted)), 1)


def write(path: Path, lock: Lock) -> None:
    """Keep the pins: sorted by id and role, so that equal pins are equal bytes. Raises OSError."""
    models = {
        model_id: {
            "source": dict(pins.source),
            "files": {role: {"sha256": one.sha256, "size": one.size} for role, one in pins.files.items()},
        }
        for model_id, pins in lock.models.items()
    }
    text = json.dumps({"format": FORMAT, "models": models}, indent=2, sort_keys=True, ensure_ascii=False)
    write_bytes(canonical(path), text.encode() + b"\n")


def settle(path: Path, model_id: str, source: Source, found: Found) -> bool:
    """After a fetch: compare `found` with the pins, or record it as the first; True when it was recorded.

    Safe between threads and processes. Raises SourceError as `check_all` does, or when another holds `path`.
    """
    with writing(path):
        lock = read(path)
        if lock.of(model_id, source):
            lock.check_all(model_id, found)
            return False
        write(path, lock.with_pins(model_id, source, found))
        return True


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Hold the pins for a change: reading, changing and writing them are one act. Raises SourceError.

    What is locked is the catalog beside them. The folder may be a workspace, which a run holds from begin to
    end, and the pins' own file is replaced, so that a lock on the old one would bind nobody.
    """
    with _changing, contextlib.ExitStack() as stack:
        with contextlib.suppress(FileNotFoundError):
            catalog = stack.enter_context(opened(path.with_name(path.name.removesuffix(PINS) + ".toml")))
            _lock(catalog.fileno(), path)
        yield


def _lock(descriptor: int, path: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise SourceError(
                    f"{path.name}: another process has held it for {PATIENCE_S:.0f} s",
                    fix="end that process, or let it go on, then run the command again",
                ) from None
            time.sleep(LOOK_S)
        except OSError:  # a file system without locks: the threads of this process still take turns
            return


def _file(name: str) -> str:
    return f"{name}.onnx" if ROLE.fullmatch(name) else name


def _identity(source: Source) -> dict[str, Any]:
    return {"kind": source.kind, **kind_of(source).identity(source.options)}


def _pins(entry: Mapping[str, Any]) -> Pins:
    files = {role: _digest(one) for role, one in sorted(entry["files"].items())}
    return Pins(dict(entry["source"]), files)


def _digest(one: Mapping[str, Any]) -> Digest:
    sha256, size = one["sha256"], one["size"]
    if not _SHA256.fullmatch(sha256) or not isinstance(size, int) or size < 0:
        raise ValueError(f"expected a sha256 and a size in bytes, got {sha256} and {size}")
    return Digest(sha256, size)


def _damaged(path: Path, cause: str, line: int | None = None) -> SourceError:
    where = path.name if line is None else f"{path.name}:{line}"
    return SourceError(
        f"{where}: not a file of pins: {cause}", fix=f"restore it: git checkout -- {path.name}"
    )
