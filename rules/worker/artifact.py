"""Writing an artifact's pickle and reading it back."""

import pickle
from pathlib import Path
from typing import Any


def dump(artifact: Any, path: Path) -> None:
    """Pickle in-band, protocol 5; raises OSError when the disk is in the way."""
    with path.open("wb") as file:
        pickle.dump(artifact, file, protocol=5)


def read(path: Path) -> Any:
    """Load an artifact that this project has just built (never one from elsewhere)."""
    with path.open("rb") as file:
        return pickle.load(file)
