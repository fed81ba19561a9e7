"""source → onnx/<id>/: a model's ONNX files, under its id, each checked before anything is built on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rules.catalog import Source
from rules.sources import kind_of
from rules.step import Made
from rules.steps.preflight import Preflight, check_roles, infer_model_type, preflight


def checked(
    model_id: str, model_type: str | None, files: Mapping[str, Path], tinygrad: Path
) -> dict[str, Preflight]:
    """Preflight every file of a model by role, and the set as a whole. Raises SourceError."""
    found = {role: preflight(model_id, path, tinygrad_root=tinygrad) for role, path in files.items()}
    check_roles(model_id, model_type or infer_model_type(set(found)), found)
    return found


def facts(model_id: str, model_type: str | None, files: Mapping[str, Path], tinygrad: Path) -> dict[str, Any]:
    """What a record tells of every file of a model, by role. Raises SourceError as `checked` does."""
    found = checked(model_id, model_type, files, tinygrad)
    return {role: one.as_json() for role, one in found.items()}


def fetch(source: Source, base: Path, scratch: Path, cache: Path) -> Made:
    """Fetch a model's files by role into `scratch`.

    `base` is the catalog's folder; `cache` keeps what should not be fetched twice. Raises SourceError.
    """
    files = kind_of(source).fetch(source.options, base, scratch, cache=cache)
    return Made({f"{role}.onnx": files[role] for role in sorted(files)})
