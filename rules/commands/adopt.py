"""`doit adopt DIR`: an existing StarPilot workspace taken in, as far as it can be proven."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rules.commands.arguments import JSON, option
from rules.commands.command import CatalogCommand
from rules.commands.run import WAIT
from rules.counting import counted
from rules.keeping.lock import holding

if TYPE_CHECKING:
    from rules.adopting import Survey
    from rules.graph import Graph


class Adopt(CatalogCommand):
    """ONNX files that are what their sources give are copied and recorded, so that none is fetched again."""

    doc_purpose = "take an existing StarPilot workspace in; nothing in it is changed"
    doc_usage = "DIR"
    doc_description = (
        "Every file of DIR is hashed and told. A compiled artifact is never taken in: nothing proves what it "
        "was built from. The exit code is 1 when anything is damaged."
    )
    cmd_options = (option("dry_run", "tell what would be recorded, and record nothing"), JSON, WAIT)
    least = most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Look through the folder, record, tell. Raises YardError."""
        from rules import adopting

        folder = Path(operands[0]).resolve()
        graph = self.yard(options).graph
        adopting.check_folder(folder, graph.workspace.root)
        graph.workspace.remote = None  # a remote store gets what was made by a build, and only that
        with holding(graph.workspace.lock, "doit adopt", wait=options["wait"]):
            result = adopting.survey(graph, folder)
            failed = {} if options["dry_run"] else _taken_in(graph, folder, result)
        tell = _json if options["json"] else _text
        print(tell(folder, result, failed, options["dry_run"]))
        return int(bool(failed) or result.count(adopting.Standing.DAMAGED) > 0)


def _taken_in(graph: "Graph", folder: Path, result: "Survey") -> dict[str, str]:
    from rules import adopting

    graph.workspace.seal.break_()
    graph.workspace.store.sweep()
    failed = adopting.take_in(graph, folder, result)
    graph.workspace.digests.flush(wait=True)
    return failed


def _tasks(result: "Survey", failed: dict[str, str]) -> list[str]:
    return [task for task in (f"onnx:{one}" for one in result.proven) if task not in failed]


def _json(folder: Path, result: "Survey", failed: dict[str, str], dry_run: bool) -> str:
    told = {
        "folder": str(folder),
        "dry_run": dry_run,
        "recorded": _tasks(result, failed),
        "failed": failed,
        "files": [one.as_json() for one in result.found],
    }
    return json.dumps(told, indent=1)


def _text(folder: Path, result: "Survey", failed: dict[str, str], dry_run: bool) -> str:
    from rules.adopting import Standing, lines

    told = [*lines(result.found), *(f"not recorded: {cause}" for cause in failed.values())]
    counts = ", ".join(f"{n} {one.value}" for one in Standing if (n := result.count(one)))
    tasks = _tasks(result, failed)
    verb = "would be recorded" if dry_run else "recorded"
    told.append(
        f"{counted(len(result.found), 'file')}: {counts or 'none'}; {verb}: {' '.join(tasks) or 'nothing'}"
    )
    return "\n".join(told)
