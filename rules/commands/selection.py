"""Which steps a command line names: tasks, groups of tasks, patterns, target files."""

import fnmatch
from collections.abc import Iterable
from pathlib import Path

from rules import flags
from rules.commands.arguments import UsageError
from rules.graph import Graph
from rules.step import Step


def named(graph: Graph, names: Iterable[str]) -> list[Step]:
    """The steps that `names` stand for, in the graph's order. Raises UsageError for a name of none."""
    wanted = {step.task for name in names for step in _of(graph, name)}
    return [step for step in graph.steps.values() if step.task in wanted]


def chain(graph: Graph, names: Iterable[str]) -> list[Step]:
    """`named` (the default tasks when nothing is named) and all that is upstream of them, upstream first."""
    chosen = [step.task for step in named(graph, names)] or graph.catalog.default_tasks
    return graph.needed(chosen)


def _of(graph: Graph, name: str) -> list[Step]:
    steps = graph.steps
    if name in steps:
        return [steps[name]]
    found = [
        step
        for step in steps.values()
        if step.task.startswith(f"{name}:")
        or ("*" in name and fnmatch.fnmatch(step.task, name))
        or any(graph.workspace.path(target) == Path(name).absolute() for target in step.targets)
    ]
    if not found:
        groups = {task.partition(":")[0] for task in steps}
        raise unknown("task", name, [*steps, *groups])
    return found


def unknown(kind: str, name: str, names: Iterable[str]) -> UsageError:
    """There is no `kind` (task, model) of this name."""
    near = flags.nearest(name, names)
    fix = f"did you mean {near}?" if near else "doit list --all shows every task"
    return UsageError(f"{name}: no such {kind} in the catalog", fix=fix)
