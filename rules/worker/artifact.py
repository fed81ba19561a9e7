"""Writing an artifact's pickle and reading it back."""

import os
import pickle
from pathlib import Path
from typing import Any

from . import outofband

IN_BAND, OUT_OF_BAND = "in-band", "out-of-band"
METADATA = "_metadata.pkl"  # files of metadata alone, which every runtime reads with a plain pickle.load


def dump(content: Any, path: Path, form: str = IN_BAND) -> None:
    """Pickle with protocol 5, its buffers `in-band` or `out-of-band`; metadata files are always in-band.

    Raises OSError when the disk is in the way.
    """
    if form == OUT_OF_BAND and not path.name.endswith(METADATA):
        outofband.dump(content, path)
    else:
        with path.open("wb") as file:
            pickle.dump(content, file, protocol=5)


def read(path: Path) -> Any:
    """Load an artifact, of either form, that this project has just built (never one from elsewhere).

    Raises ValueError when one goes on after its end or an out-of-band one is cut short, and EOFError or
    pickle.UnpicklingError when an in-band one is.
    """
    if outofband.is_out_of_band(path):
        return outofband.load(path)
    with path.open("rb") as file:
        content = pickle.load(file)
        at, size = file.tell(), os.fstat(file.fileno()).st_size
    if at != size:
        raise ValueError(f"{path.name}: {size - at} trailing bytes from byte {at}")
    return content
