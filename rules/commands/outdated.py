"""`doit outdated`: every step that a run would look into, one line each, with the reasons."""

import json
import sys
from typing import Any

from rules.commands import selection, wording
from rules.commands.arguments import JSON, VERIFY, option
from rules.commands.command import CatalogCommand
from rules.counting import counted
from rules.decide import Decision

EXIT_CODE = option("exit_code", "exit with 1 when something is outdated")


class Outdated(CatalogCommand):
    """The steps of the default tasks, or of TASKs, that are not up to date; the same decision as a run's."""

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
        decisions = [judge.decide(step) for step in selection.chain(graph, operands)]
        outdated = [one for one in decisions if not one.fresh]
        if options["json"]:
            rows = [wording.as_json(one) for one in outdated]
            print(json.dumps({"outdated": rows, "up_to_date": len(decisions) - len(outdated)}, indent=1))
        else:
            self._print(outdated, len(decisions))
        return int(bool(outdated) and options["exit_code"])

    def _print(self, outdated: list[Decision], all_steps: int) -> None:
        width = max((len(one.step.task) for one in outdated), default=0)
        for one in outdated:
            print(f"{one.step.task:<{width}}  {wording.line(one)}")
        if not outdated:
            print(f"nothing is outdated: {counted(all_steps, 'step')} up to date", file=sys.stderr)
