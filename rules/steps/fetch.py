"""source → onnx/<id>/: a model's ONNX files, under its id, each checked before anything is built on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rules.catalog import Source
from rules.errors import SourceError
from rules.networks.openshapes import Shapes, check_shapes
from rules.networks.outside import ONNX, ROLE
from rules.sources import kind_of
from rules.step import Made
from rules.steps.preflight import Preflight, check_roles, infer_model_type, preflight


def checked(
    model_id: str,
    model_type: str | None,
    files: Mapping[str, Path],
    tinygrad: Path,
    shapes: Shapes | None = None,
) -> dict[str, Preflight]:
    """Preflight every ONNX file of a model, by role, and the set as a whole.

    `files` has them by file name, with the outside files that they name, all of which are named by one.
    `shapes` gives inputs by name the sizes that a file leaves open. Raises SourceError.
    """
    outside = {name: path for name, path in files.items() if not name.endswith(ONNX)}
    found = {
        name.removesuffix(ONNX): preflight(
            model_id, path, tinygrad_root=tinygrad, outside=outside, shapes=shapes or {}
        )
        for name, path in files.items()
        if name.endswith(ONNX)
    }
    if strange := outside.keys() - {name for one in found.values() for name in one.outside}:
        raise SourceError(f"{model_id}: expected ONNX files and what they name, got {min(strange)}")
    check_roles(model_id, model_type or infer_model_type(set(found)), found)
    check_shapes(model_id, shapes or {}, found)
    return found


def facts(
    model_id: str,
    model_type: str | None,
    files: Mapping[str, Path],
    tinygrad: Path,
    shapes: Shapes | None = None,
) -> dict[str, Any]:
    """What a record tells of every ONNX file of a model, by role. Raises SourceError as `checked` does."""
    found = checked(model_id, model_type, files, tinygrad, shapes)
    return {role: one.as_json() for role, one in found.items()}


def fetch(source: Source, base: Path, scratch: Path, cache: Path) -> Made:
    """Fetch a model's files into `scratch`.

    `base` is the catalog's folder; `cache` keeps what should not be fetched twice. Raises SourceError.
    """
    files = kind_of(source).fetch(source.options, base, scratch, cache=cache)
    return Made({file_name(name): files[name] for name in sorted(files)})


def file_name(name: str) -> str:
    """What an output of a source's step is called: a role's file by the role, any other by its own name."""
    return f"{name}{ONNX}" if ROLE.fullmatch(name) else name
