"""`doit diagnose LOG`: the failure that a runtime's log gives away, and what to type next."""

import json
import sys
from typing import TYPE_CHECKING, Any

from rules.commands.arguments import JSON
from rules.commands.command import CatalogCommand, NoCatalog
from rules.diagnosing.diagnosis import LIMIT, Finding, diagnose, models, recorded
from rules.errors import ArtifactError, WorkspaceError
from rules.keeping import files

if TYPE_CHECKING:
    from rules.graph import Graph

NOTHING = "nothing known was found"
PICKLE = b"\x80"  # every pickle of protocol 2 or later begins so


class Diagnose(CatalogCommand):
    """`doit diagnose`; works in any folder, and knows the models where there is a catalog."""

    name = "diagnose"
    doc_purpose = "name the failure in a runtime's log or crash text"
    doc_usage = "LOG|-"
    doc_description = "Exit code 1 when nothing known was found. `-` reads standard input."
    cmd_options = (JSON,)
    least = 1
    most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Print the findings."""
        text = read(operands[0])
        return report(text, self._graph(options), as_json=options["json"])

    def _graph(self, options: dict[str, Any]) -> "Graph | None":
        """The catalog's graph; a catalog that is not here or not in order is no reason to say nothing."""
        from doit.exceptions import InvalidDodoFile

        try:
            return self.yard(options).graph
        except (NoCatalog, InvalidDodoFile):
            return None


def read(source: str) -> str:
    """The text of a log, from standard input when `source` is "-"; bytes that are no UTF-8 become U+FFFD.

    Raises WorkspaceError when it cannot be read or is too long, ArtifactError when it is an artifact.
    """
    try:
        with files.opened(source) if source != "-" else sys.stdin.buffer as file:
            raw = file.read(LIMIT + 1)
    except OSError as error:
        raise WorkspaceError(
            f"{source}: cannot be read: {error.strerror}",
            fix="name a file; doit's logs are in artifacts/logs/",
        ) from None
    if len(raw) > LIMIT:
        raise WorkspaceError(
            f"{source}: longer than the {LIMIT:,} bytes that are read",
            fix=f"tail -c {LIMIT} {source} | doit diagnose -",
        )
    if raw.startswith(PICKLE):
        raise ArtifactError(f"{source}: a pickle, expected a log", fix=f"doit inspect {source}")
    return raw.decode("utf-8", "replace")


def report(text: str, graph: "Graph | None", *, as_json: bool = False) -> int:
    """Print what `text` gives away; 0 when something was found, else 1."""
    found = diagnose(text, graph)
    records = [recorded(graph, model) for model in models(text, graph)] if graph else []
    if as_json:
        print(json.dumps({"findings": [one.as_json() for one in found], "models": records}, indent=1))
    else:
        print(
            "\n\n".join([*(_finding(one) for one in found), *(_record(one) for one in records)] or [NOTHING])
        )
        if records and not found:
            print(NOTHING)
    return 0 if found else 1


def _finding(one: Finding) -> str:
    lines = [f"{one.name} ({one.confidence})"]
    lines += [f"  line {each.line}: {each.text}" for each in one.evidence]
    if one.lines > len(one.evidence):
        lines.append(f"  … {one.lines} such lines")
    return "\n".join([*lines, f"  because {one.cause}", f"  → {one.fix}"])


def _record(told: dict[str, Any]) -> str:
    built = f"built {told['built_at']}" if told["built_at"] else "never built here"
    lines = [f"{told['model']} in the catalog: {built}, {told['state']}"]
    lines += [f"  {reason}" for reason in told["reasons"]]
    if told["toolchain"]:
        lines.append("  with " + _toolchain(told["toolchain"]) + f"; the catalog pins {told['pinned']}")
    if told["flags"]:
        lines.append(
            "  flags " + " ".join(f"{name}={value}" for name, value in sorted(told["flags"].items()))
        )
    if devices := sorted({device for found in told["devices"].values() for device in found}):
        lines.append(f"  captured on {', '.join(devices)}")
    return "\n".join([*lines, *([f"  last failure: {told['failure']}"] if told["failure"] else [])])


def _toolchain(content: dict[str, Any]) -> str:
    """The toolchain that a key holds: versions as they are, digests cut short."""
    parts = []
    for name in ("tinygrad", "python", "numpy"):
        value = content.get(name)
        known = [value.get("version"), value.get("tree")] if isinstance(value, dict) else [value]
        if told := [str(one)[:12] for one in known if one is not None]:
            parts.append(f"{name} {' '.join(told)}")
    return ", ".join(parts)
