"""A step of the graph: what it reads, what it depends on besides, what it makes, and how."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rules.keeping.digests import Digest
from rules.keeping.reuse import ANYWHERE, Reuse
from rules.keys import Content


@dataclass(frozen=True)
class Made:
    """What a step's action made, and facts for its record.

    `outputs` maps an output's name to a finished file in the scratch folder, or to the sha256 of bytes that
    the store holds already. They are put in place in this order: what vouches for others comes last.
    """

    outputs: Mapping[str, Path | str]
    facts: Mapping[str, Any] = field(default_factory=dict)


def _told(_: Mapping[str, Path], facts: Mapping[str, Any]) -> Mapping[str, Any]:
    return facts


@dataclass(frozen=True, eq=False)
class Step:
    """One arrow of the graph.

    `files` are sources outside the workspace, by logical name; `after` are the steps whose outputs this one
    reads. `settings` gives everything else that could change the bytes; it raises YardError when the answer
    is a mistake of the user's. `make` is told the key's content, and uses what that names and nothing newer.
    `place` says where in the workspace an output goes; `targets` are the outputs known before building (a
    step may make more: parts of a large file). `admit` is asked before outputs, by name, are put in place,
    and raises YardError when they may not be; `objection` says why what once came out is not to be had any
    more, or nothing.

    What a store gives is believed as far as it can be checked. `reuse` says from where a result is taken at
    all. `expected` gives sha256 by name of outputs that the key's content tells beforehand. `check` looks at
    outputs, files by name, and at their facts, those just made and those from a store alike; it returns the
    facts to record, and raises YardError for what this step cannot have made. `vet` says what is wrong with
    bytes from a store that are going to be run.
    """

    task: str
    record: str
    doc: str
    settings: Callable[[], Content]
    make: Callable[[Path, Content], Made]
    place: Callable[[str], str]
    after: tuple["Step", ...] = ()
    files: Callable[[], Mapping[str, Path]] = dict
    targets: tuple[str, ...] = ()
    admit: Callable[[Mapping[str, Digest]], None] = lambda _: None
    objection: Callable[[Mapping[str, Digest]], str] = lambda _: ""
    reuse: Callable[[], Reuse] = lambda: ANYWHERE
    expected: Callable[[Content], Mapping[str, str]] | None = None
    check: Callable[[Mapping[str, Path], Mapping[str, Any]], Mapping[str, Any]] = _told
    vet: Callable[[Mapping[str, Path]], str] = lambda _: ""
    owns: str | None = None  # a workspace folder in which nothing but this step's outputs may lie
    model: str | None = None

    def contradiction(self, content: Content, outputs: Mapping[str, str]) -> str:
        """Why outputs (sha256 by name) are not those that this content tells; nothing if they are."""
        if self.expected is None:
            return ""
        try:
            wanted = dict(self.expected(content))
        except (LookupError, TypeError, AttributeError, ValueError):
            return "its key does not tell what comes out"
        for name in sorted({*wanted, *outputs}):
            if wanted.get(name) != outputs.get(name):
                told, got = (one.get(name, "nothing")[:12] for one in (wanted, outputs))
                return f"{name}: expected sha256 {told}…, as its key says, got {got}…"
        return ""

    def named(self, upstream: "Step") -> str:
        """How a key names an upstream step: without the id, when both make the same model."""
        same = self.model is not None and upstream.model == self.model
        return upstream.task.split(":")[0] if same else upstream.task
