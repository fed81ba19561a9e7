"""What gates judge on, and what they find."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rules.catalog import FlagSet, Limits

HOST_DEVICE = "NPY"  # where a runtime refills inputs from numpy


@dataclass(frozen=True)
class Finding:
    """One thing that a gate looked at: `subject` is a capture, a camera, a file or a head of a network.

    `group` is what of the subject was worst, where the gate looked at each part of it.
    """

    gate: str
    subject: str
    value: Any
    limit: Any
    passed: bool
    group: str | None = None

    def __str__(self) -> str:
        subject = f"{self.subject} ({self.group})" if self.group else self.subject
        return f"{self.gate} of {subject}: expected {self.limit}, got {self.value}"

    def as_json(self) -> dict[str, Any]:
        """The finding in a record."""
        return {name: value for name, value in asdict(self).items() if name != "group" or value}


@dataclass(frozen=True)
class Evidence:
    """All that is known about one compiled model.

    `request` is what the worker was asked for; `made` and `seen` are the facts of the compile and of the
    fresh process; `reference` is what `rules/networks/reference.py` tells, None when it was not
    asked. `sizes` are of the artifact's files by name and `weights` of the ONNX weights, in bytes.
    """

    request: Mapping[str, Any]
    made: Mapping[str, Any]
    seen: Mapping[str, Any]
    flags: FlagSet
    limits: Limits
    sizes: Mapping[str, int]
    weights: int
    reference: Mapping[str, Any] | None = None

    @property
    def cameras(self) -> list[tuple[int, int]]:
        """(width, height) of each camera, in pixels."""
        return [(width, height) for width, height in self.request["cameras"]]


Gate = Callable[[Evidence], Iterator[Finding]]
