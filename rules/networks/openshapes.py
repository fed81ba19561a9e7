"""Dimensions that an ONNX file leaves open, and the sizes that the catalog gives its inputs instead."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rules.errors import SourceError
from rules.networks.onnxfile import OnnxSummary, TensorSpec, clean, shown

Shapes = Mapping[str, Sequence[int]]  # by input

UNNAMED = "?"
CORRECT = "correct shapes in the model's table of models.toml"


def closed(name: str, summary: OnnxSummary, shapes: Shapes) -> OnnxSummary:
    """The summary of the ONNX file `name` with its inputs of the given shapes.

    Open dimensions of one symbol are one size, in outputs too. Raises SourceError for a shape that the file
    does not allow, or that gives a symbol two sizes.
    """
    sizes: dict[str, int] = {}
    for given, shape in shapes.items():
        if given in summary.inputs:
            _bind(name, given, summary.inputs[given], shape, sizes)
    inputs = {
        one: TensorSpec(spec.dtype, tuple(shapes[one]) if one in shapes else _filled(spec, sizes))
        for one, spec in summary.inputs.items()
    }
    outputs = {one: TensorSpec(spec.dtype, _filled(spec, sizes)) for one, spec in summary.outputs.items()}
    return replace(summary, inputs=inputs, outputs=outputs)


def _bind(name: str, given: str, spec: TensorSpec, shape: Sequence[int], sizes: dict[str, int]) -> None:
    pairs = list(zip(spec.shape, shape, strict=False))
    symbols = [(own, size) for own, size in pairs if isinstance(own, str) and own != UNNAMED]
    fits = len(shape) == len(spec.shape) and all(isinstance(own, str) or own == size for own, size in pairs)
    if not fits or any(sizes.setdefault(own, size) != size for own, size in symbols):
        listed = ", ".join(map(str, shape))
        raise SourceError(
            f"{name}: shapes gives input {shown(given)} the shape ({listed}), expected one of {spec}"
            + (f" with {', '.join(f'{clean(one)} = {size}' for one, size in sizes.items())}" if fits else ""),
            fix=CORRECT,
        )


def _filled(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int | str, ...]:
    return tuple(sizes.get(size, size) if isinstance(size, str) else size for size in spec.shape)


def check_shapes(model_id: str, shapes: Shapes, found: Mapping[str, Any]) -> None:
    """Raise SourceError unless each shape is that of an input of some network (role → Preflight)."""
    inputs = {name for one in found.values() for name in one.summary.inputs}
    if strange := [name for name in shapes if name not in inputs]:
        listed = ", ".join(map(clean, sorted(inputs)))
        raise SourceError(
            f"{model_id}: shapes.{clean(strange[0])}: expected an input of {listed}", fix=CORRECT
        )


def advice(summary: OnnxSummary) -> str:
    """What to write where inputs have open dimensions; a batch is of one, unless more is open."""
    opened = {
        name: spec.shape
        for name, spec in summary.inputs.items()
        if any(isinstance(size, str) for size in spec.shape)
    }
    wholly = all(isinstance(size, int) for shape in opened.values() for size in shape[1:])
    rows = {
        name: [
            str(size) if isinstance(size, int) else "1" if at == 0 else "N" for at, size in enumerate(shape)
        ]
        for name, shape in opened.items()
    }
    table = ", ".join(f"{_key(name)} = [{', '.join(row)}]" for name, row in rows.items())
    words = " ".join(f"--shape {clean(name)}={','.join(row)}" for name, row in rows.items())
    sizes = "" if wholly else ", each N the size that it is run with"
    return f"say its size{sizes}: shapes = {{ {table} }} in the model's table, or doit add … {words}"


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
