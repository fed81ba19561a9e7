"""A run that ended with everything fresh, remembered as the stamps of every file it looked at.

A decision is a function of files and of what is not a file (the seal's `identity`). While all of them are as
they were, so is the answer; checking that takes one stat for each file and no parsing of records.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from rules.keeping import files
from rules.keeping.digests import Stamp
from rules.keeping.files import remove, write_bytes


class Seal:
    """The seal of one workspace."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def holds(self, identity: str) -> int | None:
        """How many steps are fresh, if the seal is for `identity` and no file has changed; else None."""
        try:
            kept = json.loads(files.read(self._path))
            if kept["identity"] != identity:
                return None
            stamps = zip(*[iter(kept["stamps"])] * len(Stamp._fields), strict=True)
            intact = all(Stamp.of(path) == stamp for path, stamp in zip(kept["paths"], stamps, strict=True))
            return int(kept["steps"]) if intact and kept["paths"] else None
        except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def write(self, identity: str, steps: int, looked_at: Mapping[str, Stamp]) -> None:
        """Seal what was looked at."""
        paths = sorted(looked_at)
        stamps = [number for path in paths for number in looked_at[path]]
        kept = {"identity": identity, "steps": steps, "paths": paths, "stamps": stamps}
        write_bytes(self._path, json.dumps(kept).encode())

    def break_(self) -> None:
        """Something is about to change."""
        remove(self._path)
