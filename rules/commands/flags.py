"""`doit flags`: a flag set as the environment it stands for, or held against a runtime's build script."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rules import flags
from rules.buildscripts.sconscript import Comparison, Difference, against
from rules.commands.arguments import JSON, option
from rules.commands.command import CatalogCommand
from rules.errors import CatalogError

if TYPE_CHECKING:
    from rules.catalog import Catalog, FlagSet

AGAINST = option("against", "say which flags a build script, or a runtime's tree, has otherwise", kind=str)


class Flags(CatalogCommand):
    """`doit flags`."""

    name = "flags"
    doc_purpose = "print a flag set, or compare it with a runtime's build script"
    doc_usage = "[SET]"
    doc_description = "SET is the default set unless named. With --against, exit code 1 tells a difference."
    cmd_options = (AGAINST, JSON)
    most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Print the set, or the differences."""
        target = Path(options["against"]).resolve() if options["against"] else None
        catalog = self.yard(options).catalog
        one = chosen(catalog, operands[0] if operands else None)
        if target is None:
            return show(one, as_json=options["json"])
        return compare(catalog, one, target, as_json=options["json"])


def chosen(catalog: "Catalog", name: str | None) -> "FlagSet":
    """The set of this name, or the default one; raises CatalogError with the nearest name."""
    if name is None:
        return catalog.defaults.flags
    if name not in catalog.flag_sets:
        near = flags.nearest(name, catalog.flag_sets)
        has = f"the sets are {', '.join(catalog.flag_sets)}"
        fix = f"did you mean {near}? {has}" if near else has
        raise CatalogError(f"{catalog.path.name}: flags.{name}: there is no such flag set", fix=fix)
    return catalog.flag_sets[name]


def show(one: "FlagSet", *, as_json: bool = False) -> int:
    """Print a set as lines of an environment."""
    if as_json:
        print(json.dumps({"set": one.name, "requires": one.requires, "flags": one.values}, indent=1))
    else:
        print("\n".join(f"{name}={value}" for name, value in one.values.items()))
    return 0


def compare(catalog: "Catalog", one: "FlagSet", target: Path, *, as_json: bool = False) -> int:
    """Print how a build script differs from the set; 1 when it does. Raises SourceError as `against` does."""
    names = set(flags.known(toolchain.tinygrad for toolchain in catalog.toolchains.values()))
    names |= {name for each in catalog.flag_sets.values() for name in each.values}
    found = against(target, one.values, names)
    if as_json:
        differences = [difference._asdict() for difference in found.differences]
        told = {"set": one.name, "bundles": found.bundles, "others": found.others, "differences": differences}
        print(json.dumps(told, indent=1))
    else:
        print("\n".join(_lines(one, found)))
    return 1 if found.differences else 0


def _lines(one: "FlagSet", found: Comparison) -> list[str]:
    if not found.differences:
        return [f"{one.name}: the same flags at {', '.join(found.bundles)}"]
    return [_line(one, difference) for difference in found.differences]


def _line(one: "FlagSet", difference: Difference) -> str:
    kind, name, wanted, there, file, line, when = difference
    told = {
        "missing": f"{name}={wanted} is missing",
        "extra": f"{name}={there if there is not None else '(computed)'} is extra: {one.name} has no {name}",
        "different": f"{name}={there}, expected {wanted}",
        "unclear": f"{name} is computed there, expected {wanted}",
    }[kind]
    return f"{file}:{line}: {told}{f' (when {when})' if when else ''}"
