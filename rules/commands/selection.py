"""Which steps a command line names: tasks, groups of tasks, patterns, target files; what it names wrongly."""

import fnmatch
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rules import flags
from rules.commands.arguments import UsageError

if TYPE_CHECKING:
    from rules.graph import Graph
    from rules.step import Step

BUILT_BY = ("pkl", "release")  # the task that a name of a model or a release is most likely meant as
LISTED = {
    "command": "doit help lists the commands",
    "task": "doit list --all lists the tasks",
    "model": "models --list lists the models",
    "release": "doit list --all release lists the releases",
}
# What other tools call our commands; `run` is the one that is never typed.
OTHERWISE = {
    "build": "run",
    "check": "fsck",
    "compile": "run",
    "delete": "clean",
    "explain": "why",
    "ls": "list",
    "make": "run",
    "models": "list",
    "new": "init",
    "remove": "clean",
    "rm": "clean",
    "show": "info",
    "stale": "outdated",
    "status": "outdated",
    "tasks": "list",
    "verify": "fsck",
}


def named(graph: "Graph", names: Iterable[str]) -> "list[Step]":
    """The steps that `names` stand for, in the graph's order. Raises UsageError for a name of none."""
    wanted = {step.task for name in names for step in _of(graph, name)}
    return [step for step in graph.steps.values() if step.task in wanted]


def chain(graph: "Graph", names: Iterable[str]) -> "list[Step]":
    """`named` (the default tasks when nothing is named) and all that is upstream of them, upstream first."""
    chosen = [step.task for step in named(graph, names)] or graph.catalog.default_tasks
    return graph.needed(chosen)


def _of(graph: "Graph", name: str) -> "list[Step]":
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
        raise unlike("task", name, near_task(name, steps))
    return found


# ---- what there is not


def unknown(kind: str, name: str, names: Iterable[str]) -> UsageError:
    """There is no `kind` ("task", "model or task", …) of this name; the nearest of `names` may be meant."""
    return unlike(kind, name, flags.nearest(name, names))


def unlike(kind: str, name: str, near: str | None) -> UsageError:
    """`unknown`, where `near` is what may have been meant, though it may not look like `name`."""
    lists = ", ".join(LISTED[one] for one in kind.split(" or "))
    fix = f"did you mean {near}? else {lists}" if near else lists
    where = "" if kind.startswith("command") else " in the catalog"
    return UsageError(f"{name}: no such {kind}{where}", fix=fix)


def near_task(name: str, tasks: Iterable[str], others: Iterable[str] = ()) -> str | None:
    """The task, or one of `others`, that `name` is most likely a slip for; a model's name means its task."""
    tasks = list(tasks)
    ids: dict[str, str] = {}
    for task in tasks:
        kind, _, one = task.partition(":")
        if one and (one not in ids or kind in BUILT_BY):
            ids[one] = task
    words = {*tasks, *(task.partition(":")[0] for task in tasks), *others}
    near = name if name in ids else flags.nearest(name, [*words, *ids])
    return near if near in words else ids.get(near or "")


def refused(words: Sequence[str], tasks: Collection[str], commands: Collection[str], lost: str) -> UsageError:
    """`doit WORDS` names the command or task `lost`, which there is not."""
    if lost in commands:
        return UsageError(f"{lost}: a command comes before its options", fix=f"write doit {lost} first")
    command = OTHERWISE.get(lost)
    if command == "run":
        following = next((word for word in words[words.index(lost) + 1 :]), "")
        near = following if following in tasks else near_task(following, tasks)
        return unlike("command or task", lost, near or command)
    return unlike("command or task", lost, command or near_task(lost, tasks, commands))
