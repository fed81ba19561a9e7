"""Manifests and source maps as others publish them, in the catalog's words.

A manifest says what a model is called, a source map where its ONNX files come from. There are several forms
of each, and none is trusted to be complete.
"""

import errno
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rules.errors import SourceError, cause
from rules.keeping import files
from rules.keeping.digests import Digest, sha256_of
from rules.url import shown

Table = dict[str, Any]

NAME = "name a model_names_vNN.json or a model_source_map_vNN.json"
SPLIT, SUPERCOMBO = "split", "supercombo"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GENERATION = re.compile(r"_v([0-9]+)(?=[_.])")
_UNPRINTABLE = re.compile(r"[\s,\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")


@dataclass(frozen=True)
class Manifest:
    """A published manifest: what it tells of each model, by id, in its order, in the catalog's words."""

    name: str
    models: Mapping[str, Table]
    sources: Mapping[str, Table] = field(default_factory=dict)  # sunnypilot's catalogs hold them too


@dataclass(frozen=True)
class SourceMap:
    """A source map: a source table of the catalog by id, or why there is none."""

    name: str
    sources: Mapping[str, Table | str]

    @property
    def release(self) -> str | None:
        """The generation that the file's name tells: `model_source_map_v23.json` → `v23`."""
        found = _GENERATION.search(self.name)
        return f"v{found[1]}" if found else None


def read_manifest(path: Path) -> Manifest:
    """A manifest of any generation, a bare list, a table by id, or a sunnypilot catalog.

    Raises SourceError for a file that is none of these.
    """
    document = _json(path)
    rows = list(_rows(document, ("models", "bundles")))
    if not rows:
        raise SourceError(
            f"{path.name}: not a manifest: expected a list or table of models, got none",
            fix="name a model_names_vNN.json or a catalog of a publisher",
        )
    models = {_id(row): _fields(row) for row in rows}
    if len(models) < len(rows):
        twice = next(one for one in models if [_id(row) for row in rows].count(one) > 1)
        raise SourceError(f"{path.name}: {twice} stands in it twice", fix="remove one of the two")
    bundled = {_id(row): _source(row, path.parent) for row in rows if "ref" in row}
    return Manifest(path.name, models, {one: it for one, it in bundled.items() if isinstance(it, dict)})


def _json(path: Path) -> Any:
    try:
        return json.loads(files.read(path))
    except OSError as error:
        why = "it is a folder" if error.errno == errno.EISDIR else cause(error).lower()
        raise SourceError(f"{path}: cannot be read: {why}; expected a JSON file", fix=NAME) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg.lower()}"
        raise SourceError(f"{path}: not JSON: {where}", fix=NAME) from None
    except (ValueError, RecursionError):
        raise SourceError(f"{path}: not JSON: no text, or nested too deeply", fix=NAME) from None


def _rows(document: Any, under: Sequence[str]) -> Iterator[Table]:
    """Every table of a list, or of a table by id; both may stand under one of the names `under`."""
    if isinstance(document, dict):
        inner = next((document[key] for key in under if isinstance(document.get(key), list | dict)), document)
        if isinstance(inner, dict):
            yield from ({"id": one, **row} for one, row in inner.items() if isinstance(row, dict))
            return
        document = inner
    if isinstance(document, list):
        yield from (row for row in document if isinstance(row, dict) and _id(row))


def _id(row: Mapping[str, Any]) -> str:
    if row.get("id"):
        return str(row["id"])
    return re.sub(r"[^a-z0-9]+", "-", str(row.get("short_name", "")).casefold()).strip("-")


def _fields(row: Mapping[str, Any]) -> Table:
    """The catalog's keys for what a row tells; what it does not tell is left out."""
    overrides = row.get("overrides")
    folder = overrides.get("folder") if isinstance(overrides, dict) else None
    version = row.get("version")
    texts = {
        "name": _plain(row.get("name") or row.get("display_name")),
        "version": f"v{version}" if isinstance(version, int) else _plain(version),
        "series": _plain(row.get("series") or folder),
        "released": _plain(row.get("released") or str(row.get("build_time") or "")[:10]),
    }
    told: Table = {key: text for key, text in texts.items() if text}
    if row.get("community_favorite"):
        told["community_favorite"] = True
    if row.get("uses_external_gpu") or row.get("is_big"):
        told["uses_external_gpu"] = True
    return told


def _plain(text: object) -> str:
    """Without what shifts the client's catalog: it keeps these texts between commas."""
    return _UNPRINTABLE.sub(" ", text).strip() if isinstance(text, str) else ""


# ---- source maps


def read_source_map(path: Path) -> SourceMap:
    """A source map: `{id: {ref, input_format}}`, or with an ONNX archive in place of the ref.

    Raises SourceError for a file that is none.
    """
    rows = list(_rows(_json(path), ("models", "sources")))
    if not rows:
        raise SourceError(
            f'{path.name}: not a source map: expected {{"ID": {{"ref": …, "input_format": …}}}}, got none',
            fix="name a model_source_map_vNN.json",
        )
    return SourceMap(path.name, {_id(row): _source(row, path.parent) for row in rows})


def _source(row: Mapping[str, Any], folder: Path) -> Table | str:
    """A source table of the catalog, or why there can be none."""
    form = row.get("input_format") or row.get("format") or _bundled_format(row)
    if form not in (SPLIT, SUPERCOMBO, "dmonitoring", "generic"):
        return f"expected input_format {SPLIT} or {SUPERCOMBO}, got {form!r}"
    if row.get("ref"):
        ref = str(row["ref"]).lower()
        if not _COMMIT.fullmatch(ref):
            return f"expected a commit of 40 hexadecimal digits as ref, got {row['ref']!r}"
        repository = row.get("repository") or row.get("repo")
        return {
            "kind": "git",
            "ref": ref,
            "format": form,
            **({"repository": repository} if repository else {}),
        }
    return _archive(row, form, folder)


def _bundled_format(row: Mapping[str, Any]) -> str | None:
    models = row.get("models")
    types = [one.get("type") for one in models if isinstance(one, dict)] if isinstance(models, list) else []
    return None if not types else SUPERCOMBO if SUPERCOMBO in types else SPLIT


def _archive(row: Mapping[str, Any], form: str, folder: Path) -> Table | str:
    told = row.get("archive") or row.get("onnx_archive") or row
    told = told if isinstance(told, dict) else {**row, "url": told}
    place = told.get("url") or told.get("path")
    if not isinstance(place, str):
        return "expected a ref or an archive, got neither"
    key = "url" if re.match(r"(https?|file)://", place) else "path"
    digest = _told_digest(told) or _digest_of({key: place}, folder)
    if digest is None:
        return f"expected sha256 and size of {shown(place)}, got none"
    if key == "path":
        place = str(Path(folder, place).resolve())
    return {"kind": "archive", key: place, "sha256": digest.sha256, "size": digest.size, "format": form}


def _told_digest(told: Mapping[str, Any]) -> Digest | None:
    sha256, size = str(told.get("sha256", "")).lower(), told.get("size")
    return Digest(sha256, size) if _SHA256.fullmatch(sha256) and isinstance(size, int) else None


def _digest_of(options: Mapping[str, str], folder: Path) -> Digest | None:
    """The pin of an archive that lies on this machine."""
    from rules.sources.archive import folder_digest, local_path

    place = local_path(options, folder)
    if place is None or not place.exists():
        return None
    return folder_digest(place) if place.is_dir() else Digest(sha256_of(place), place.stat().st_size)
