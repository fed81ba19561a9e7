"""`doit outdated`: every step that a run would look into, one line each, with the reasons."""

import json
import sys
from typing import TYPE_CHECKING, Any

from rules.commands import selection
from rules.commands.arguments import JSON, VERIFY, option
from rules.commands.command import CatalogCommand
from rules.commands.ignore import skipped
from rules.counting import counted

if TYPE_CHECKING:
    from rules.decide import Decision

EXIT_CODE = option("exit_code", "exit with 1 when something is outdated")


class Outdated(CatalogCommand):
    """The steps of the default tasks, or of TASKs, that are not up to date; the same decision as a run's.

    What a run skips, since `doit ignore` marked it or something upstream of it, is told apart.
    """

    only_looks = True
    doc_purpose = "list every stale step, with the reasons"
    doc_usage = "[TASK ...]"
    doc_description = (
        "A stale step is made anew by the next run. A step that follows a stale one is unknown: it is made "
        "anew only if what it reads comes out different."
    )
    cmd_options = (JSON, VERIFY, EXIT_CODE)

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Decide every step of the chain and print those that are not fresh."""
        yard, marked = self.yard(options), self.ignored()
        # What lets an idle run do without the graph answers here too.
        sealed = None if operands or marked or options["verify"] else yard.glance()
        if sealed is not None:
            return _tell({}, [], sealed, options)
        judge = yard.graph.new_judge(verify=options["verify"])
        steps = selection.chain(yard.graph, operands)
        ignored = skipped(steps, marked)
        decisions = [judge.decide(step) for step in steps if step.task not in ignored]
        outdated = [one for one in decisions if not one.fresh]
        return _tell(ignored, outdated, len(decisions) - len(outdated), options)


def _tell(
    ignored: dict[str, str], outdated: "list[Decision]", up_to_date: int, options: dict[str, Any]
) -> int:
    """Print what was found; returns the exit code."""
    rows = _rows(outdated, as_json=options["json"])
    if options["json"]:
        told = {"outdated": rows, "ignored": list(ignored), "up_to_date": up_to_date}
        print(json.dumps(told, indent=1))
        return int(bool(outdated) and options["exit_code"])
    lines = {one.step.task: row for one, row in zip(outdated, rows, strict=True)} | ignored
    width = max(map(len, lines), default=0)
    for task, line in lines.items():
        print(f"{task:<{width}}  {line}")
    if not outdated:
        print(f"nothing is outdated: {counted(up_to_date, 'step')} up to date", file=sys.stderr)
    return int(bool(outdated) and options["exit_code"])


def _rows(outdated: "list[Decision]", *, as_json: bool) -> list[Any]:
    if not outdated:
        return []
    from rules.commands import wording  # it needs what an idle run never imports

    return [wording.as_json(one) if as_json else wording.line(one) for one in outdated]
