"""`doit import`: published manifests and source maps into models.toml."""

import re
from pathlib import Path
from typing import Any

from rules.commands.arguments import UsageError, option
from rules.commands.command import CATALOG, Command
from rules.editing import importing, published
from rules.errors import printable


class Import(Command):
    """Write or update models.toml from a manifest and source maps."""

    name = "import"
    doc_purpose = "write or update models.toml from a published manifest and source maps"
    doc_usage = "--source-map FILE [--base-manifest FILE]"
    doc_description = (
        "New models enter the release that --release names, else the one in their map's file name. "
        "A source that models.toml or an earlier map has is kept unless --update-sources is given."
    )
    cmd_options = (
        option("base_manifest", "the manifest that tells names, versions, series and dates", kind=str),
        option("source_map", "a map from id to source; may be given several times", kind=list),
        option("catalog", f"the catalog to write [default: {CATALOG}]", kind=str, default=CATALOG),
        option("release", "the release that new models enter", kind=str),
        option("update_sources", "let the maps change sources that are known"),
        option("dry_run", "say what would change, and write nothing"),
    )
    most = 0

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Import and print the report; 1 when a source could not be used."""
        if not options["base_manifest"] and not options["source_map"]:
            raise UsageError("doit import: nothing to import", fix="doit import --source-map FILE.json")
        release = options["release"]
        if release and not re.fullmatch(r"v[0-9]+", release):
            raise UsageError(f"doit import: --release: expected a generation such as v22, got {release!r}")
        manifest = (
            published.read_manifest(Path(options["base_manifest"])) if options["base_manifest"] else None
        )
        maps = [published.read_source_map(Path(one)) for one in options["source_map"]]
        wishes = importing.Wishes(release, options["update_sources"])
        report = importing.run(Path(options["catalog"]), manifest, maps, wishes, dry=options["dry_run"])
        for line in report.lines():
            print(printable(line))
        changed = report.added or report.updated or report.claimed
        verb = "not written (--dry-run)" if options["dry_run"] else "written" if changed else "unchanged"
        print(f"{options['catalog']}: {verb}")
        for number, step in enumerate(report.steps(options["catalog"]), 1):
            print(printable(f"{'next: ' if number == 1 else '      '}{number}. {step}"))
        return 1 if report.unusable else 0
