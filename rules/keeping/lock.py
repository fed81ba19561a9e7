"""One writer for a workspace: an advisory lock that the operating system drops when its holder dies."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rules.errors import WorkspaceError, cause, unwritable


class Held(WorkspaceError):
    """Another run holds the workspace."""

    exit_code = 4


@contextlib.contextmanager
def holding(path: Path, what: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the workspace while the block runs; `what` tells others what runs.

    Raises Held, naming the holder, when it is taken and `wait` is false; WorkspaceError where nothing can be
    written.
    """
    with _opened(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise Held(
                    f"{path.parent.parent}: {_holder(path)}", fix="wait for it, or add --wait"
                ) from None
            print(f"waiting: {_holder(path)}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "what": what, "since": int(time.time())}))
        file.flush()
        yield


def _opened(path: Path) -> TextIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+")
    except OSError as error:
        raise unwritable(path.parent.parent, cause(error)) from None


def _holder(path: Path) -> str:
    try:
        held = json.loads(path.read_text())
        since = time.strftime("%H:%M:%S", time.localtime(held["since"]))
        return f"process {held['pid']} holds this workspace since {since} ({held['what']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process holds this workspace"
