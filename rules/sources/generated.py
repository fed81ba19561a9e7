"""Driving models made from a name, a seed and a width: real contracts, invented weights, the same bytes."""

import base64
import difflib
import pickle

import onnx

from rules.errors import SourceError
from rules.sources.architectures import ARCHITECTURES, Architecture, Graph, Slices

OPSET = 17
IR_VERSION = 8
PRODUCER = "modelyard"
SLICES_PROTOCOL = 4
NARROWEST, WIDEST = 4, 256


def architectures() -> dict[str, str]:
    """Every name that `generate` takes, with one line on what it is, sorted by name."""
    return {name: ARCHITECTURES[name].summary for name in sorted(ARCHITECTURES)}


def generate(architecture: str, *, seed: int, width: int) -> dict[str, bytes]:
    """The ONNX files of one model, {role: bytes}; a role is a file name without ID: `driving_vision`.

    `seed` decides the weights, `width` (4 to 256, even) the channels, the architecture all else. Images are
    uint8 (1, 12, 128, 256), or (1, 1382400) for driver monitoring; all other inputs are float16. The only
    output is `outputs`, float16 (1, N). `metadata_props` carries `output_slices` (base64 of a pickled dict of
    slices) and `model_checkpoint`, as openpilot's files do.

    Raises SourceError for an unknown architecture, an odd width, or a width outside the range.
    """
    chosen = _find(architecture)
    if not NARROWEST <= width <= WIDEST or width % 2:
        wanted = f"an even width from {NARROWEST} to {WIDEST}"
        raise SourceError(
            f"generated model {architecture!r}: expected {wanted}, got {width}",
            fix=f"write width = {min(max(width + width % 2, NARROWEST), WIDEST)}",
        )
    checkpoint = f"{architecture}/seed-{seed}/width-{width}"
    files = {}
    for role, network in chosen.networks.items():
        graph = Graph(f"{architecture}/{role}", seed)
        network(graph, width)
        files[role] = _serialized(graph, checkpoint)
    return files


def _find(architecture: str) -> Architecture:
    if architecture in ARCHITECTURES:
        return ARCHITECTURES[architecture]
    nearest = difflib.get_close_matches(architecture, sorted(ARCHITECTURES), n=1, cutoff=0.0)[0]
    raise SourceError(
        f"generated model: expected one of {', '.join(sorted(ARCHITECTURES))}, got {architecture!r}",
        fix=f"did you mean {nearest!r}?",
    )


def _serialized(graph: Graph, checkpoint: str) -> bytes:
    model = onnx.ModelProto(ir_version=IR_VERSION, producer_name=PRODUCER)
    model.opset_import.add(domain="", version=OPSET)
    model.graph.name = graph.name
    model.graph.node.extend(graph.nodes)
    model.graph.initializer.extend(graph.tensors.values())
    model.graph.input.extend(graph.inputs)
    outputs = onnx.helper.make_tensor_value_info("outputs", onnx.TensorProto.FLOAT16, (1, graph.columns))
    model.graph.output.append(outputs)
    model.metadata_props.add(key="model_checkpoint", value=checkpoint)
    model.metadata_props.add(key="output_slices", value=_text(graph.slices))
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _text(slices: Slices) -> str:
    return base64.b64encode(pickle.dumps(slices, protocol=SLICES_PROTOCOL)).decode("ascii")
