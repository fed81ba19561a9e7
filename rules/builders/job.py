"""A job for a builder: one request to the worker, and the environment it runs in."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """`label` is the model's name in messages; `log` takes everything the worker prints.

    `flags` is the whole of the flag set; `tinygrad` is the folder of the tinygrad package to import;
    `worker` is the zipapp to run; `scratch` is a private folder that outlives the job. Of
    memory it may take `most_bytes`, if that is not None.
    """

    label: str
    request: Mapping[str, Any]
    flags: Mapping[str, str]
    tinygrad: Path
    worker: Path
    scratch: Path
    log: Path
    most_bytes: int | None = None
