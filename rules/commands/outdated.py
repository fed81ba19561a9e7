"""`doit outdated`: every step that a run would look into, one line each, with the reasons."""

import json
import sys
from typing import Any

from rules.commands import selection, wording
from rules.commands.arguments import JSON, VERIFY, option
from rules.commands.command import CatalogCommand
from rules.commands.ignore import skipped
from rules.counting import counted

EXIT_CODE = option("exit_code", "exit with 1 when something is outdated")


class Outdated(CatalogCommand):
    """The steps of the default tasks, or of TASKs, that are not up to date; the same decision as a run's.

    What a run skips, since `doit ignore` marked it or something upstream of it, is told apart.
    """

    doc_purpose = "list every stale step, with the reasons"
    doc_usage = "[TASK ...]"
    doc_description = (
        "A stale step is made anew by the next run. A step that follows a stale one is unknown: it is made "
        "anew only if what it reads comes out different."
    )
    cmd_options = (JSON, VERIFY, EXIT_CODE)

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Decide every step of the chain and print those that are not fresh."""
        graph = self.yard(options).graph
        judge = graph.new_judge(verify=options["verify"])
        steps = selection.chain(graph, operands)
        ignored = skipped(steps, self.ignored())
        decisions = [judge.decide(step) for step in steps if step.task not in ignored]
        outdated = [one for one in decisions if not one.fresh]
        up_to_date = len(decisions) - len(outdated)
        if options["json"]:
            rows = [wording.as_json(one) for one in outdated]
            told = {"outdated": rows, "ignored": list(ignored), "up_to_date": up_to_date}
            print(json.dumps(told, indent=1))
        else:
            self._print({one.step.task: wording.line(one) for one in outdated} | ignored)
            if not outdated:
                print(f"nothing is outdated: {counted(up_to_date, 'step')} up to date", file=sys.stderr)
        return int(bool(outdated) and options["exit_code"])

    def _print(self, lines: dict[str, str]) -> None:
        width = max(map(len, lines), default=0)
        for task, line in lines.items():
            print(f"{task:<{width}}  {line}")
