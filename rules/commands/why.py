"""`doit why`: what changed since a step was built, from what to what, and that nothing else did."""

import json
from typing import Any

from rules.commands import damage, selection, wording
from rules.commands.arguments import JSON, VERIFY, UsageError
from rules.commands.command import CatalogCommand
from rules.commands.ignore import skipped
from rules.decide import Decision, Judge, State
from rules.errors import printable
from rules.graph import Graph
from rules.step import Step
from rules.workspace import Workspace


class Why(CatalogCommand):
    """All steps of a model, one of them, or the steps of a task."""

    only_looks = True
    doc_purpose = "tell why a model's steps are stale, or that they are up to date"
    doc_usage = "ID|TASK [STEP]"
    doc_description = "STEP is one of a model's steps: onnx, candidate, pkl or parts."
    cmd_options = (JSON, VERIFY)
    least, most = 1, 2

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Decide the steps and explain each."""
        yard = self.yard(options)
        judge = yard.graph.new_judge(verify=options["verify"])
        steps = self._steps(yard.graph, *operands)
        decisions = [judge.decide(step) for step in steps]
        causes = _causes(yard.graph, judge, steps)
        ignored = skipped(yard.graph.needed([step.task for step in steps]), self.ignored())
        if options["json"]:
            rows = [_as_json(one, yard.workspace) for one in decisions + causes]
            print(json.dumps([{**row, "ignored": row["task"] in ignored} for row in rows], indent=1))
            return 0
        for one in decisions + causes:
            _explain(one, yard.workspace)
            if one.step.task in ignored:
                print(f"  {ignored[one.step.task]}")
        return 0

    def _steps(self, graph: Graph, name: str, kind: str | None = None) -> list[Step]:
        own = [step for step in graph.steps.values() if step.model == name]
        if not own:
            if kind is not None:
                models = {step.model for step in graph.steps.values() if step.model}
                raise selection.unknown("model", name, models)
            return _named(graph, name)
        if kind is None:
            return own
        kinds = {step.task.partition(":")[0]: step for step in own}
        if name in kinds:  # driver monitoring's verified files carry no kind
            kinds["pkl"] = kinds.pop(name)
        if kind not in kinds:
            raise UsageError(f"{name}: no step {kind!r}", fix=f"its steps are {', '.join(kinds)}")
        return [kinds[kind]]


def _named(graph: Graph, name: str) -> list[Step]:
    models = [step.model for step in graph.steps.values() if step.model]
    try:
        return selection.named(graph, [name])
    except UsageError:
        raise selection.unknown("model or task", name, [*models, *graph.steps]) from None


def _causes(graph: Graph, judge: Judge, steps: list[Step]) -> list[Decision]:
    """The decisions upstream of `steps` that keep one of them from being known."""
    told = {step.task for step in steps}
    upstream = graph.needed([step.task for step in steps])
    found = [judge.decide(step) for step in upstream if step.task not in told]
    return [one for one in found if not one.fresh and all(judge.decide(up).fresh for up in one.step.after)]


def _explain(decision: Decision, workspace: Workspace) -> None:
    print(f"{decision.step.task}: {wording.explained(decision)}")
    for sentence in damage.sentences(decision, workspace):
        print(f"  {sentence}")
    failed = wording.failure(decision.step, workspace)
    if failed and not decision.fresh:
        cause = "\n".join(map(printable, failed["cause"].splitlines()))
        print(f"  it failed last time: {cause}")
        print(printable(f"  log: {workspace.path(failed['log'])}; next: {failed['next']}"))


def _as_json(decision: Decision, workspace: Workspace) -> dict[str, Any]:
    record = decision.record
    return {
        **wording.as_json(decision),
        "nothing_else": decision.state is State.STALE and wording.compared(decision),
        "record": record
        and {
            "key": record.key,
            "made": record.made,
            "built_at": record.built_at,
            "seconds": record.seconds,
        },
        "damage": damage.sentences(decision, workspace),
        "failure": wording.failure(decision.step, workspace),
    }
