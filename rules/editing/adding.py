"""One model added to models.toml: its format, id and behaviour version inferred where nothing says them.

Explicit comes first, then what the catalog has, then what the files suggest.
"""

import datetime
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rules.catalog import Toolchain
from rules.editing import catalogtext
from rules.editing.importing import flags_for, homeless, starter_text
from rules.editing.published import SPLIT, SUPERCOMBO
from rules.errors import CatalogError, SourceError
from rules.flags import nearest
from rules.keeping.files import canonical, opened, replacing
from rules.networks import behaviour
from rules.releasing import namespace
from rules.steps.preflight import ROLES
from rules.toolchain import tinygrad_root

GENERIC, MONITORING = "generic", "dmonitoring_model"
COPIES = "sources"
UNVERSIONED = "v0"  # a network that nobody drives by has no behaviour


@dataclass(frozen=True)
class Asked:
    """What was said of the model; None is to be inferred."""

    id: str | None = None
    version: str | None = None
    format: str | None = None
    name: str | None = None
    series: str | None = None
    released: str | None = None
    release: str | None = None
    flags: str | None = None
    shapes: Mapping[str, list[int]] | None = None
    gpu: bool = False
    update_sources: bool = False


@dataclass(frozen=True)
class Added:
    """What was added: the id, the table of the catalog, files that were copied beside it.

    `has_repository` is false for a commit that is in no repository that the catalog names.
    """

    id: str
    table: Mapping[str, Any]
    copied: tuple[Path, ...] = ()
    has_repository: bool = True


def add_files(catalog: Path, files: Sequence[Path], asked: Asked, *, dry: bool = False) -> Added:
    """Add a model by its ONNX files, which stay where they are when their names tell their roles.

    Others are copied to `sources/<id>/` beside the catalog. Raises SourceError for files that a build would
    refuse or that cannot be told from one another, CatalogError when the catalog would not be valid.
    """
    roles = _roles(files, asked.format)
    model_id = asked.id or _id_of(roles)
    form = asked.format or _format_of(model_id, roles)
    if asked.version is None and form in (SPLIT, SUPERCOMBO) and not _old(catalog, model_id):
        asked = replace(asked, version=behaviour.suggested(roles))
    place = _place(roles, form)
    copies = {} if place else _copies(roles, catalog.parent / COPIES / model_id)
    where = place or catalog.parent / COPIES / model_id
    source = {"kind": "file", "path": _written(where, catalog.parent), "format": form}
    text, table = _with_model(catalog, model_id, source, asked)
    catalogtext.write(catalog, text, dry=True)  # a catalog that would be refused leaves no copies behind
    _check(model_id, table, roles, _tinygrad(text, table, catalog.parent))
    if not dry:
        for final, path in copies.items():
            inside = canonical(catalog).parent / final.relative_to(catalog.parent)
            with opened(path) as reader, replacing(inside) as writer:
                shutil.copyfileobj(reader, writer)
        catalogtext.write(catalog, text, dry=False)
    return Added(model_id, table, tuple(copies))


def add_ref(catalog: Path, ref: str, repository: str | None, asked: Asked, *, dry: bool = False) -> Added:
    """Add a model by a commit (`ref`: 40 hexadecimal digits) of `repository` (None: as the catalog says).

    Raises SourceError when no id is given, or nothing tells the format; CatalogError as `add_files`.
    """
    old = _old(catalog, asked.id) if asked.id else {}
    form = asked.format or old.get("source", {}).get("format") or _format_at(ref, repository, asked)
    missing = _missing(asked, form, old)
    if asked.id is None or form is None or missing:
        raise SourceError(f"ref {ref}: more must be said of it", fix=f"add {' '.join(missing)}")
    big = {"big": True} if asked.gpu else {}
    named = {"repository": repository} if repository else {}
    source = {"kind": "git", "ref": ref, "format": form, **named, **big}
    text, table = _with_model(catalog, asked.id, source, asked)
    catalogtext.write(catalog, text, dry=dry)
    return Added(asked.id, table, has_repository=not homeless(tomllib.loads(text), [asked.id]))


def _missing(asked: Asked, form: str | None, old: Mapping[str, Any]) -> list[str]:
    """The options that must be given, all of them at once."""
    versioned = asked.version or "version" in old or form not in (None, SPLIT)
    return [
        *(["--id ID"] if asked.id is None else []),
        *(["--format split or supercombo"] if form is None else []),
        *(["--version vNN (how the client must drive it)"] if not versioned else []),
    ]


# ---- what the files say


def _tinygrad(text: str, table: Mapping[str, Any], base: Path) -> Path:
    """The tinygrad package of the toolchain that a model of a catalog's text has."""
    document = tomllib.loads(text)
    name = table.get("toolchain") or document["defaults"].get("toolchain", "default")
    pinned = document["toolchains"][name]
    return tinygrad_root(Toolchain(name, pinned.get("tinygrad"), pinned.get("path")), base)


def _check(model_id: str, table: Mapping[str, Any], roles: Mapping[str, Path], tinygrad: Path) -> None:
    """Hold the files to all that a build holds them to. Raises SourceError."""
    from rules.steps.fetch import checked

    try:
        files = {final.as_posix(): path for final, path in _copies(roles, Path()).items()}
        checked(model_id, table.get("type"), files, tinygrad, table.get("shapes"))
    except SourceError as error:
        # The model is not in models.toml, so nothing can be corrected or fetched there.
        absent = "models.toml" in error.fix or "doit onnx:" in error.fix
        raise SourceError(error.what, fix="name the right files" if absent else error.fix) from error


def _roles(files: Sequence[Path], form: str | None) -> dict[str, Path]:
    from rules.sources.local import role_of
    from rules.steps.preflight import classify

    roles: dict[str, Path] = {}
    for path in files:
        if not path.is_file():
            raise SourceError(f"{path}: no such file", fix="name the ONNX files of one model")
        classify(path.stem, path)
        role = role_of(path, form) or _role_inside(path)
        if role in roles:
            raise SourceError(
                f"{roles[role]} and {path} are both a {role}: expected the files of one model",
                fix="name one of them, or rename them by what they are (driving_on_policy.onnx)",
            )
        roles[role] = path.absolute()
    return roles


def _copies(roles: Mapping[str, Path], folder: Path) -> dict[Path, Path]:
    """Which files are copied, by where to in `folder`: each under its role, with what it keeps weights in."""
    from rules.sources import beside

    names = {role: beside.named(path) for role, path in roles.items()}
    whole = {folder / f"{role}.onnx": path for role, path in roles.items()}
    return whole | {folder / name: path for name, path in beside.of_files(roles, names).items()}


def _role_inside(path: Path) -> str:
    """The role that a network's inputs tell, for a file whose name does not."""
    from rules.networks import onnxfile
    from rules.steps.preflight import POLICY, VISION
    from rules.steps.preflight import SUPERCOMBO as WHOLE

    inputs = sorted(onnxfile.read(path).inputs)
    images, features = any("img" in name for name in inputs), "features_buffer" in inputs
    found = {(True, True): WHOLE, (True, False): VISION, (False, True): POLICY}.get((images, features))
    if "calib" in inputs:
        found = MONITORING
    if found is None:
        raise SourceError(
            f"{path}: neither its name nor its inputs ({', '.join(inputs)}) tell what it is for",
            fix=f"doit add {path} --id {_proposed(path)} --format generic, or rename it"
            " (driving_vision.onnx, …) if it drives",
        )
    return found


def _id_of(roles: Mapping[str, Path]) -> str:
    ids = {path.stem.removesuffix(role).removesuffix("_").removesuffix("big") for role, path in roles.items()}
    (one,) = ids if len(ids) == 1 else ("",)
    if not one or namespace.id_flaw(one):
        names = ", ".join(sorted(path.name for path in roles.values()))
        fix = f"add --id ID, such as --id {_proposed(*roles.values())}"
        raise SourceError(f"{names}: expected an id before the role, got none", fix=fix)
    return one


def _proposed(*paths: Path) -> str:
    """An id that the name of a single file makes, or that of the folder of several."""
    path = paths[0].absolute()
    name = path.stem if len(paths) == 1 and path.stem not in ROLES else path.parent.name
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_") or "mine"


def _format_of(model_id: str, roles: Mapping[str, Path]) -> str:
    from rules.steps.preflight import infer_model_type

    kind = infer_model_type(set(roles))
    if kind == "dmonitoring":
        raise SourceError(
            f"{model_id}: {roles[MONITORING].name} is the driver-monitoring model, of which there is one",
            fix="name it as source under [monitoring] in models.toml",
        )
    return {"supercombo": SUPERCOMBO, "generic": GENERIC}.get(kind, SPLIT)


def _format_at(ref: str, repository: str | None, asked: Asked) -> str | None:
    """The format that the files of a commit tell, where the repository is on this machine, and only one."""
    from rules.sources.git import GROUPS

    names = _names_at(ref, repository)
    big = "big_" if asked.gpu else ""
    found = [
        str(form)
        for form, groups in GROUPS.items()
        if form in (SPLIT, SUPERCOMBO)
        and all(any(f"{big}{one}.onnx" in names for one in group) for group in groups)
    ]
    return found[0] if len(found) == 1 else None


def _names_at(ref: str, repository: str | None) -> set[str]:
    from rules.sources.git import names_at

    return names_at(Path(repository), ref) if repository and Path(repository).is_dir() else set()


def _place(roles: Mapping[str, Path], form: str) -> Path | None:
    """The file or folder that is the source as it lies there; None when its names do not tell enough."""
    from rules.sources.local import role_of

    if any(role_of(path, form) != role for role, path in roles.items()):
        return None
    paths = list(roles.values())
    if len(paths) == 1:
        return paths[0]
    folders = {path.parent for path in paths}
    there = {p for folder in folders for p in folder.glob("*.onnx") if not p.name.startswith("._")}
    return paths[0].parent if len(folders) == 1 and there == set(paths) else None


def _written(path: Path, base: Path) -> str:
    """Relative where it lies with the catalog, so that both can move."""
    base = base.absolute()
    return path.absolute().relative_to(base).as_posix() if path.absolute().is_relative_to(base) else str(path)


# ---- the catalog


def _old(catalog: Path, model_id: str) -> Mapping[str, Any]:
    document = catalogtext.parsed(catalogtext.editable(catalog) or "")
    found: Mapping[str, Any] = document.get("models", {}).get(model_id, {})
    return found


def _with_model(
    catalog: Path, model_id: str, source: Mapping[str, Any], asked: Asked
) -> tuple[str, Mapping[str, Any]]:
    """The catalog's text with the model, and the model's table."""
    if flaw := namespace.id_flaw(model_id):
        raise CatalogError(f"{model_id!r}: not a model ID: {flaw}", fix="give it another --id")
    text = catalogtext.editable(catalog) or starter_text()
    document = catalogtext.parsed(text)
    _check_release(document.get("release", {}), asked.release)
    if model_id not in document.get("models", {}):
        table = _table(document, model_id, source, asked)
        return catalogtext.with_models(text, catalogtext.block(model_id, table), {model_id: table}), table
    old = document["models"][model_id]
    if dict(old["source"]) != source and not asked.update_sources:
        raise SourceError(
            f"{model_id} stands in {catalog.name} with another source: {dict(old['source'])}",
            fix="add --update-sources to move it, or give the new model another --id",
        )
    values = {**_said(asked), **({"source": source} if dict(old["source"]) != source else {})}
    changed = {key: value for key, value in values.items() if old.get(key) != value}
    return catalogtext.with_keys(text, ("models", model_id), changed), {**old, **changed}


def _check_release(releases: Mapping[str, Any], asked: str | None) -> None:
    if asked is None or asked in releases:
        return
    near = nearest(asked, releases)
    raise CatalogError(
        f"models.toml has no release {asked}",
        fix=f"did you mean {near}?" if near else f"write [release.{asked}] into models.toml first",
    )


def _said(asked: Asked) -> dict[str, Any]:
    said = {
        "name": asked.name,
        "version": asked.version,
        "series": asked.series,
        "released": asked.released,
        "since": asked.release,
        "flags": asked.flags,
        "shapes": asked.shapes,
        "uses_external_gpu": asked.gpu or None,
    }
    return {key: value for key, value in said.items() if value is not None}


def _table(document: Any, model_id: str, source: Mapping[str, Any], asked: Asked) -> dict[str, Any]:
    form = source["format"]
    version = asked.version or {SUPERCOMBO: behaviour.SUPERCOMBO, GENERIC: UNVERSIONED}.get(form)
    if version is None:
        raise SourceError(
            f"{model_id}: expected a behaviour version for a {form} model, got none",
            fix="add --version vNN (how the client must drive it)",
        )
    inferred = {
        "name": model_id,
        "version": version,
        "series": "Custom",
        "released": datetime.date.today().isoformat(),
        "flags": flags_for(document, form, gpu=asked.gpu),
        "type": GENERIC if form == GENERIC else None,
    }
    table = {**inferred, **_said(asked), "source": source}
    return {key: value for key, value in _ordered(table) if value is not None}


def _ordered(table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The source last, as in a catalog written by hand."""
    return [*((key, one) for key, one in table.items() if key != "source"), ("source", table["source"])]
