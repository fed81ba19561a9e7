"""How decisions are told: a reason in words, how long ago a step was built, what failed."""

import datetime
from typing import Any

from rules.counting import counted
from rules.decide import FOLLOWS, Decision, Reason, State
from rules.keeping.records import Record
from rules.step import Step
from rules.workspace import Workspace

CODE = ("worker", "asked_by", "made_by", "gates.sources")  # settings that are digests of modelyard's own code
MOST = 3  # steps that a line names as followed
UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))


def subject(what: str) -> str:
    """A name of a key's content as people say it: `settings.flags.IMAGE` is flags.IMAGE."""
    kind, _, rest = what.partition(".")
    if kind == "settings":
        return rest
    if kind == "inputs":
        return rest.replace(".", " ", 1)
    if kind == "files":
        return rest.removesuffix(".sha256") if rest.endswith(".sha256") else rest.replace(".size", ": size")
    return what


def told(reason: Reason) -> str:
    """One reason, in words."""
    what = subject(reason.what)
    return str(Reason(f"modelyard's code ({what})" if what in CODE else what, reason.old, reason.new))


def line(decision: Decision) -> str:
    """All reasons of a decision, on one line; of many steps that it follows, the first few."""
    upstream = [r.what.removeprefix(FOLLOWS) for r in decision.reasons if r.what.startswith(FOLLOWS)]
    others = [told(reason) for reason in decision.reasons if not reason.what.startswith(FOLLOWS)]
    return "; ".join([*others, *([FOLLOWS + _few(upstream)] if upstream else [])])


def _few(tasks: list[str]) -> str:
    if len(tasks) <= MOST:
        return ", ".join(tasks)
    return f"{', '.join(tasks[: MOST - 1])} and {len(tasks) - MOST + 1} more"


def as_json(decision: Decision) -> dict[str, Any]:
    """A decision for programs."""
    reasons = [{"what": subject(r.what), "old": r.old, "new": r.new} for r in decision.reasons]
    step = decision.step
    return {"task": step.task, "model": step.model, "state": decision.state.value, "reasons": reasons}


def compared(decision: Decision) -> bool:
    """Whether the whole key was compared with a record's: only then is `nothing else` certain."""
    return decision.content is not None and decision.record is not None


def explained(decision: Decision) -> str:
    """Why a step is as it is: `up to date, …`, or what changed, and nothing else."""
    if decision.fresh and decision.record is not None:
        return f"up to date, {history(decision.record)}"
    if decision.state is State.UNKNOWN:
        return f"not known yet: it {line(decision)}"
    return line(decision) + ("; nothing else" if compared(decision) else "")


def history(record: Record) -> str:
    """When a step was built or restored, and how long that took."""
    how = "built" if record.made == "built" else "restored from the store"
    return f"{how} {ago(record.built_at)} in {record.seconds:.1f} s (key {record.key[:12]}…)"


def ago(moment: str, now: datetime.datetime | None = None) -> str:
    """An ISO 8601 time as "3 days ago"; a time to come, as after a clock jumped back, as itself."""
    try:
        then = datetime.datetime.fromisoformat(moment)
        seconds = int(((now or datetime.datetime.now(datetime.UTC)) - then).total_seconds())
    except (ValueError, TypeError):
        return f"at {moment}"
    if seconds < 0:
        return f"at {moment}"
    for unit, length in UNITS:
        if seconds >= length:
            many = seconds // length
            return f"{counted(many, unit)} ago"
    return "just now"


def failure(step: Step, workspace: Workspace) -> dict[str, Any] | None:
    """What the step's last run failed with, if it did: step, cause, log, log_tail, next."""
    noted = workspace.records.read_failure(f"{step.model or step.record}_failure")
    return noted if noted and noted["step"] == step.task else None
