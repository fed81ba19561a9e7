"""`doit pin`: the pins in models.lock.json, made and moved."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rules import pins
from rules.catalog import Catalog, Source
from rules.commands import selection
from rules.commands.arguments import UsageError, option
from rules.commands.command import CatalogCommand
from rules.counting import counted
from rules.errors import YardError
from rules.keeping import files as keeping
from rules.keeping.digests import Digest, sha256_of
from rules.keeping.lock import holding
from rules.keys import shown
from rules.sources import kind_of

if TYPE_CHECKING:
    from rules.tasks import Yard

MONITORING = "monitoring"


class Pin(CatalogCommand):
    """Pin sources that have no pin yet; with --update, move the pins of those that are named."""

    doc_purpose = "pin sources by sha256 and size, or move their pins"
    doc_usage = "[ID…]"
    doc_description = "Without an ID, of every model. A source is fetched to learn what it gives."
    cmd_options = (option("update", "fetch anew, show what changed, and pin that"),)

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Pin each in turn; one that fails does not stop the others."""
        if options["update"] and not operands:
            raise UsageError("doit pin --update: expected an ID, got none", fix="doit pin --update ID")
        yard = self.yard(options)
        named = sources(yard.catalog)
        failed = 0
        with holding(yard.workspace.lock, "doit pin"):
            for model_id in operands or [one for one in named if named[one].kind in pins.PINNED_KINDS]:
                try:
                    for line in pin(yard, model_id, _source(named, model_id), update=options["update"]):
                        print(line)
                except YardError as error:
                    print(f"ERROR: {error}", file=sys.stderr)
                    failed = error.exit_code
        return failed


def sources(catalog: Catalog) -> dict[str, Source]:
    """Every source of a catalog by model id; driver monitoring's under `monitoring`."""
    found = {model.id: model.source for model in catalog.models.values()}
    return found | ({MONITORING: catalog.monitoring.source} if catalog.monitoring else {})


def _source(named: dict[str, Source], model_id: str) -> Source:
    if model_id in named:
        return named[model_id]
    raise selection.unknown("model", model_id, named)


def pin(yard: "Yard", model_id: str, source: Source, *, update: bool) -> Iterator[str]:
    """Pin one source, or move its pins, and tell each file's old and new. Raises SourceError."""
    if source.kind not in pins.PINNED_KINDS:
        yield f"{model_id}: a {source.kind} source needs no pin: the build key holds what decides its bytes"
        return
    path = pins.path_of(yard.catalog.path)
    old = pins.read(path).of(model_id, source)
    if old and not update:
        yield f"{model_id}: pinned"
        return
    found = _fetched(yard, source)
    if found != old:
        with pins.writing(path):
            pins.write(path, pins.read(path).with_pins(model_id, source, found))
        _forget(yard, model_id)
    yield from changes(model_id, old, found)


def changes(model_id: str, old: pins.Found, new: pins.Found) -> Iterator[str]:
    """What moved, a line for each file."""
    for role in sorted({*old, *new}):
        before, after = (_shown(one.get(role)) for one in (old, new))
        moved = f"{before} → {after}" if before != after else f"unchanged, {after}"
        yield f"{model_id} {role}: {moved}"


def _shown(digest: Digest | None) -> str:
    return f"{shown(digest.sha256)} ({counted(digest.size, 'byte')})" if digest else "nothing"


def _fetched(yard: "Yard", source: Source) -> pins.Found:
    scratch = yard.workspace.store.scratch()
    try:
        base, cache = yard.catalog.path.parent, yard.workspace.hidden / "sources"
        files = kind_of(source).fetch(source.options, base, scratch, cache=cache)
        return {role: Digest(sha256_of(path), path.stat().st_size) for role, path in files.items()}
    finally:
        keeping.discard(scratch)


def _forget(yard: "Yard", model_id: str) -> None:
    """What was fetched under the old pin must not come back from the store."""
    step = yard.graph.steps[f"onnx:{model_id}"]
    record = yard.workspace.records.read(step.record)
    if record:
        yard.workspace.store.forget_result(record.key)
        yard.workspace.records.remove(step.record)
