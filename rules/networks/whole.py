"""An ONNX file as one onnx.ModelProto: outside weights read in, open sizes of inputs filled in.

onnx itself refuses to read a file that has several hard links, as all have that come from a store.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rules.keeping import files
from rules.networks import outside


def loaded(path: Path, shapes: Mapping[str, Sequence[int]] | None = None) -> Any:
    """The onnx.ModelProto; `shapes` are of inputs by name. Raises SourceError, OSError, or as onnx does."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    kept = [one for one in _tensors(model) if one.data_location == onnx.TensorProto.EXTERNAL]
    beside = outside.names(path) if kept else []
    for tensor in kept:
        _read_in(tensor, path.parent, beside)
    for value in model.graph.input:
        for dimension, size in zip(
            value.type.tensor_type.shape.dim, (shapes or {}).get(value.name, ()), strict=False
        ):
            dimension.dim_value = size
    return model


def _read_in(tensor: Any, folder: Path, beside: list[str]) -> None:
    place = {entry.key: entry.value for entry in tensor.external_data}
    name = str(PurePosixPath(place["location"]))
    if name not in beside:
        raise ValueError(f"{name} is not beside the model")
    with files.opened(folder / name) as file:
        file.seek(int(place.get("offset", 0)))
        tensor.raw_data = file.read(int(place["length"]) if "length" in place else -1)
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def _tensors(model: Any) -> Iterator[Any]:
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def _of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else []))
            for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from _of_graph(graph)
