"""`doit gc`: free what the content store holds and nothing needs, and what withdrawn releases left."""

import json
from typing import Any

from rules.commands.arguments import JSON, UsageError, option
from rules.commands.command import CatalogCommand
from rules.commands.run import WAIT
from rules.counting import counted
from rules.errors import printable
from rules.keeping.gc import Garbage, Keep, garbage, seconds
from rules.keeping.lock import holding
from rules.releasing.withdrawn import RELEASES, Withdrawn, lines, withdrawn

AGE = "30d"
GENERATIONS = 2


class Gc(CatalogCommand):
    """Everything that a record or a release refers to stays; a running build keeps the command out."""

    doc_purpose = "free what nothing needs: in the content store, and of releases taken out of models.toml"
    doc_usage = "[--keep AGE] [--keep-generations N] [--dry-run]"
    doc_description = (
        f"Without --keep and --keep-generations, results younger than {AGE} stay, and the {GENERATIONS} "
        "newest of each step; with one of them, only what it says."
    )
    most = 0
    cmd_options = (
        option("keep", "keep results used within this time: 30d, 12h, 90m, 2w", kind=str),
        option("keep_generations", "keep so many of the newest results of each step", kind=int),
        option("dry_run", "tell what would go, and remove nothing"),
        JSON,
        WAIT,
    )

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Find what can go, and remove it. Raises YardError; exit code 4 while a run holds the workspace."""
        keep = _keep(options["keep"], options["keep_generations"])
        yard = self.yard(options)
        workspace = yard.workspace
        with holding(workspace.lock, "doit gc", wait=options["wait"], reads=options["dry_run"]):
            gone = withdrawn(workspace, yard.catalog.releases)
            going = {path for one in gone for path in (*one.files, *one.records)}
            found = garbage(workspace, workspace.path(RELEASES), keep, going)
            if not options["dry_run"]:
                for one in gone:
                    one.remove()
                found.remove()
            workspace.digests.flush(wait=True)
        if options["json"]:
            print(_json(found, gone, options))
            return 0
        told = [line for one in gone for line in lines(one, workspace.root, dry=options["dry_run"])]
        print(*map(printable, told), _line(found, options), sep="\n")
        return 0


def _keep(age: str | None, generations: int | None) -> Keep:
    if age is None and generations is None:
        age, generations = AGE, GENERATIONS
    if generations is not None and generations < 0:
        raise UsageError(f"--keep-generations: expected 0 or more, got {generations}")
    return Keep(0.0 if age is None else seconds(age), generations or 0)


def _line(found: Garbage, options: dict[str, Any]) -> str:
    verb = "would free" if options["dry_run"] else "freed"
    blobs, results = counted(len(found.blobs), "blob"), counted(len(found.results), "result")
    leftovers = counted(len(found.temporaries), "leftover")
    return (
        f"{verb} {found.freed:,} bytes: {blobs}, {results}, {leftovers} of killed runs; "
        f"kept {counted(found.kept, 'blob')}"
    )


def _json(found: Garbage, gone: list[Withdrawn], options: dict[str, Any]) -> str:
    told = {
        "dry_run": options["dry_run"],
        "bytes_freed": found.freed,
        "blobs": [path.name for path in found.blobs],
        "results": [path.stem for path in found.results],
        "leftovers": [str(path) for path in found.temporaries],
        "blobs_kept": found.kept,
        "releases": {
            one.name: {"files": list(map(str, one.files)), "left": list(map(str, one.left))} for one in gone
        },
    }
    return json.dumps(told, indent=1)
