"""`doit add`: one model into models.toml."""

import re
from pathlib import Path
from typing import Any

from rules.commands.arguments import UsageError, option
from rules.commands.command import CATALOG, Command
from rules.editing import adding, importing
from rules.editing.catalogtext import block
from rules.errors import printable


class Add(Command):
    """Add a model by its ONNX files, or by a commit."""

    doc_purpose = "add one model to models.toml, by its ONNX files or by a commit"
    doc_usage = "[FILE…]"
    doc_description = (
        "Format and id are read from the files' names, else from their inputs; the behaviour version is "
        "--version, else the one in the catalog, else what the files suggest."
    )
    cmd_options = (
        option("onnx", "an ONNX file; further ones may follow as FILE", kind=list),
        option("ref", "a commit: 40 hexadecimal digits", kind=str),
        option("repository", "where --ref is: a git URL or a folder", kind=str),
        option("id", "the model's id", kind=str),
        option("version", "how the client must drive it: vNN", kind=str),
        option("format", "split, supercombo or generic", kind=str),
        option("name", "the name that users see", kind=str),
        option("series", "the series that users see", kind=str),
        option("released", "the day, YYYY-MM-DD [default: today]", kind=str),
        option("release", "the release that the model enters [default: none]", kind=str),
        option("flags", "the flag set [default: the catalog's]", kind=str),
        option("shape", "NAME=1,2048: the sizes of an input that the file leaves open", kind=list),
        option("gpu", "it runs on an external GPU"),
        option("update_sources", "let a model that is known have another source"),
        option("catalog", f"the catalog to write [default: {CATALOG}]", kind=str, default=CATALOG),
        option("dry_run", "say what would be added, and write nothing"),
    )

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Add it and print its table."""
        files = [Path(one) for one in (*options["onnx"], *operands)]
        if bool(files) == bool(options["ref"]):
            got = "both" if files else "neither"
            raise UsageError(
                f"doit add: expected ONNX files or a --ref, got {got}", fix="doit add --onnx FILE"
            )
        if options["release"] and not re.fullmatch(r"v[0-9]+", options["release"]):
            wanted = "expected a generation such as v22"
            raise UsageError(f"doit add: --release: {wanted}, got {options['release']!r}")
        said = ("id", "version", "format", "name", "series", "released", "release", "flags")
        switches = {"gpu": options["gpu"], "update_sources": options["update_sources"]}
        asked = adding.Asked(
            **{key: options[key] for key in said}, **switches, shapes=_shapes(options["shape"]) or None
        )
        catalog, dry = Path(options["catalog"]), options["dry_run"]
        if files:
            added = adding.add_files(catalog, files, asked, dry=dry)
        else:
            added = adding.add_ref(catalog, options["ref"].lower(), options["repository"], asked, dry=dry)
        for path in added.copied:
            verb = "would be copied" if dry else "copied"
            print(f"{printable(path)}: {verb}, since names tell roles there")
        print(block(added.id, added.table).strip())
        if not files and not added.has_repository:
            print(f"WARNING: {importing.homeless_line([added.id], catalog)}")
        print(f"{catalog}: {'not written (--dry-run)' if dry else 'written'}; next: doit pkl:{added.id}")
        return 0


def _shapes(words: list[str]) -> dict[str, list[int]]:
    """`NAME=1,2048` as a table. Raises UsageError."""
    shapes: dict[str, list[int]] = {}
    for word in words:
        name, _, sizes = word.rpartition("=")
        if not name or not re.fullmatch(r"[1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*", sizes, re.ASCII):
            raise UsageError(
                f"doit add: --shape: expected NAME=SIZE,SIZE…, got {word!r}", fix="write --shape bytes=1,2048"
            )
        shapes[name] = [int(size) for size in sizes.split(",")]
    return shapes
