"""Edits of models.toml as text: comments, order and line ends stay as their author left them."""

import json
import platform
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rules import faults
from rules.errors import CatalogError
from rules.keeping import files
from rules.keeping.files import canonical, write_bytes

_HEADER = re.compile(r"\s*\[+([^\[\]#=]+)\]+\s*(#.*)?$")


def read(path: Path) -> str | None:
    """The catalog's text, line ends as they are; None when there is no such file.

    Raises CatalogError, as `doit` does, for what cannot be read and what is no TOML.
    """
    try:
        text = faults.decoded(files.read(path), path.name)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise faults.unreadable(path, error) from None
    faults.parsed(text, path.name)
    return text


def editable(path: Path) -> str | None:
    """`read`, of what has the shape of a catalog, though it may have no models yet. Raises CatalogError."""
    text = read(path)
    if text:
        models = "" if "models" in tomllib.loads(text) else "\n[models]\n"
        faults.shaped((text + models).encode(), path.name)
    return text


def write(path: Path, text: str, *, dry: bool) -> None:
    """Check `text` as a whole, then keep it under `path`; `dry` only checks. Raises CatalogError."""
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[max(0, error.start - 30) : error.end])
        raise CatalogError(f"{path.name}: half a character in {half}", fix="correct what is read") from None
    faults.checked(content, path.name, platform.machine())
    if not dry and read(path) != text:
        write_bytes(canonical(path), content)


def parsed(text: str) -> Any:
    """The text as tomlkit holds it. Raises CatalogError."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise CatalogError(f"models.toml: not TOML: {error}", fix="correct it first") from None


def inline(values: Mapping[str, Any]) -> Any:
    """An inline table in the catalog's style; tomlkit's own has no spaces inside its braces."""
    import tomlkit

    return tomlkit.value(_literal(values))


def _literal(value: Any) -> str:
    import tomlkit

    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_literal(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return str(tomlkit.item(value).as_string())


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else json.dumps(name)


def block(model_id: str, table: Mapping[str, Any], note: str = "") -> str:
    """A model's table as text, a blank line before it; `note` ends its header."""
    lines = [f"{_key(key)} = {_literal(value)}" for key, value in table.items()]
    return "\n" + "\n".join([f"[models.{model_id}]{note}", *lines]) + "\n"


def with_models(text: str, blocks: str, new: Mapping[str, Any]) -> str:
    """The catalog's text with the tables `blocks` after its last model, so that parts stay parts.

    `new` is what the blocks hold. Raises CatalogError when they cannot be added to this text.
    """
    if not new:
        return text
    whole = tomllib.loads(text)
    wanted = {**whole, "models": {**whole.get("models", {}), **new}}
    found = _first(wanted, _after(text, "models", blocks), text.rstrip() + "\n" + blocks)
    if found is None:
        raise CatalogError(
            "models.toml: models: expected tables such as [models.ID], got another form",
            fix="write each model as a table of its own",
        )
    return found


def with_keys(text: str, path: tuple[str, str], values: Mapping[str, Any]) -> str:
    """The text with `values` set in the table at `path`, such as `("models", "pop22")`; comments stay.

    tomlkit alone would put a new key after the comments that end a table, which are about what follows.
    """
    import tomlkit

    document = parsed(text)
    table = document[path[0]][path[1]]
    old: dict[str, Any] = {}
    new: dict[str, Any] = {}
    for key, value in values.items():
        (old if key in table else new)[key] = value
    for key, value in old.items():
        table[key] = inline(value) if isinstance(value, Mapping) else value
    text = tomlkit.dumps(document)
    if not new:
        return text
    wanted = tomllib.loads(text)
    wanted[path[0]][path[1]].update(new)
    lines = "".join(f"{_key(key)} = {_literal(value)}\n" for key, value in new.items())
    newline = "\r\n" if "\r\n" in text else "\n"
    found = _first(wanted, _after(text, ".".join(path), lines.replace("\n", newline)))
    if found is not None:
        return found
    for key, value in new.items():
        table[key] = inline(value) if isinstance(value, Mapping) else value
    return tomlkit.dumps(document)


def _first(wanted: Mapping[str, Any], *candidates: str) -> str | None:
    """The first text that reads as what is wanted: finding a place by lines can be wrong, this cannot."""
    for one in candidates:
        try:
            if tomllib.loads(one) == wanted:
                return one
        except tomllib.TOMLDecodeError:
            continue
    return None


def _after(text: str, table: str, addition: str) -> str:
    """The text with `addition` after the last statement of `table`; of `models`, of any model."""
    lines = re.split(r"(?<=\n)", text)
    section, at = "", len(lines)
    for index, line in enumerate(lines):
        if header := _HEADER.match(line):
            section = re.sub(r"[\s\"']", "", header[1])
        here = section == table or (section.startswith("models.") and table == "models")
        if here and line.strip() and not line.lstrip().startswith("#"):
            at = index + 1
    head = "".join(lines[:at])
    return head + ("" if head.endswith("\n") else "\n") + addition + "".join(lines[at:])
