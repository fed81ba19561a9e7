"""`doit reproduce`: compile a model again elsewhere, from nothing, and compare the bytes."""

import tempfile
from pathlib import Path
from typing import Any

from rules.build import build
from rules.commands import selection
from rules.commands.command import CatalogCommand
from rules.errors import CatalogError
from rules.graph import Graph
from rules.inspection.compare import first_difference
from rules.keeping.records import Record
from rules.workspace import Workspace


class Reproduce(CatalogCommand):
    """A model's artifact, made a second time in a folder of its own by a process of its own."""

    doc_purpose = "compile a model again elsewhere, from nothing, and compare bytes"
    doc_usage = "ID"
    doc_description = "The exit code is 1 when the bytes differ; for CPU flag sets they must not."
    least = most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Compile, compare, tell."""
        yard = self.yard(options)
        (model_id,) = operands
        task = f"candidate:{model_id}"
        if task not in yard.graph.steps:
            raise selection.unknown("model", model_id, yard.catalog.models)
        recorded = yard.graph.judge.decide(yard.graph.steps[task])
        if recorded.record is None or not recorded.fresh:
            raise CatalogError(f"{model_id}: its artifact is not up to date", fix=f"doit pkl:{model_id}")
        with tempfile.TemporaryDirectory(prefix="reproduce-", dir=yard.workspace.root) as folder:
            return self._compare(yard.graph, task, recorded.record, Path(folder))

    def _compare(self, graph: Graph, task: str, recorded: Record, folder: Path) -> int:
        elsewhere = Graph(graph.catalog, Workspace(folder))
        elsewhere.cold = True
        for step in elsewhere.needed([task]):
            print(f"…  {step.task}", flush=True)
            again = build(step, elsewhere.judge, elsewhere.workspace)
        differing = 0
        for old, new in zip(recorded.outputs, again.outputs, strict=True):
            same = old.sha256 == new.sha256
            differing += not same
            print(f"{'same' if same else 'DIFFERENT'}: {old.name} {old.sha256[:12]}… {new.sha256[:12]}…")
            if not same:
                paths = (graph.workspace.path(old.path), elsewhere.workspace.path(new.path))
                print(f"  {first_difference(*paths)}")
        return int(differing > 0)
