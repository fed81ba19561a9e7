"""The nodes of a network, each as a model of its own with all that decides what tinygrad makes of it.

A graph is walked in order; what onnxruntime gives for one node says of what type and shape the inputs of the
next are. Two nodes are one when operator, opset, attributes, types, shapes and constant operands agree.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from rules.keys import Content, key_of
from rules.networks.architecture import FLOATS, WEIGHT_OPERATORS

DATA, WEIGHT, VALUE, FOLDED = "data", "weight", "value", "folded"
# Above so many numbers a float constant is a weight wherever it stands, and its values are nothing to hold.
VALUES: Final = 64
FOLDS: Final = 4096  # a larger constant that a graph works out is drawn like any other input
ABOUT_SHAPES: Final = ("Shape", "Size")  # what they give is known before any input is
IR_VERSION: Final = 10


@dataclass(frozen=True)
class Known:
    """What is known of a value of a graph: type (onnx.TensorProto), shape, and its numbers if they are fixed.

    `stored` is set for what stands in the file, which tinygrad treats otherwise than what a graph works out.
    """

    dtype: int
    shape: tuple[int, ...]
    value: Any = None
    stored: bool = False

    @property
    def size(self) -> int:
        """How many numbers."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __str__(self) -> str:
        return f"{numpy_name(self.dtype)} ({', '.join(map(str, self.shape))})"


def numpy_name(dtype: int) -> str:
    """The name of an onnx.TensorProto type, as numpy has it where it has it."""
    return "bfloat16" if dtype == TensorProto.BFLOAT16 else str(helper.tensor_dtype_to_np_dtype(dtype))


@dataclass(frozen=True)
class Operand:
    """One input of a node: `name` in the node's own model, and how it is fed (`data`, `weight`, `value` or
    `folded`)."""

    name: str
    kind: str
    known: Known

    def described(self) -> Content:
        """What of it decides."""
        found: Content = {"kind": self.kind, "type": str(self.known)}
        if self.kind in (VALUE, FOLDED):
            found["sha256"] = hashlib.sha256(np.ascontiguousarray(self.known.value).tobytes()).hexdigest()
        return found


@dataclass(frozen=True)
class Node:
    """One node by itself: `proto` reads the operands' names, in order, and writes o0, o1, …"""

    proto: Any
    opsets: dict[str, int]
    operands: tuple[Operand, ...]
    outputs: tuple[str, ...]  # those that somebody reads
    place: str = field(compare=False)

    @property
    def opset(self) -> int:
        """The version that its own domain is imported in."""
        return self.opsets[self.proto.domain]

    def described(self) -> Content:
        """Everything that decides what tinygrad makes of the node."""
        return {
            "operator": self.proto.op_type,
            "domain": self.proto.domain,
            "opset": self.opset,
            "attributes": {one.name: _attribute(one) for one in self.proto.attribute},
            "reads": list(self.proto.input),
            "writes": list(self.proto.output),
            "held": list(self.outputs),
            "operands": {one.name: one.described() for one in self.operands},
        }

    @property
    def digest(self) -> str:
        """The sha256 of what it is described by."""
        return key_of(self.described())

    @property
    def shown(self) -> str:
        """The node in a sentence: where it is, its attributes, what it reads."""
        attributes = [f"{one.name}={_attribute(one)}"[:60] for one in self.proto.attribute]
        listed = f" ({', '.join(attributes)})" if attributes else ""
        read = ", ".join(map(_shown, self.operands)) or "nothing"
        return f"node {self.place}{listed} of {read}"

    def model(self, *, fixed: tuple[str, ...], values: dict[str, Any]) -> Any:
        """An onnx.ModelProto of the node alone; operands of the `fixed` kinds are in it, others its inputs.

        `values` holds the numbers of fixed operands by name.
        """
        inside = {one.name for one in self.operands if one.kind in fixed}
        inputs = [_info(one.name, one.known) for one in self.operands if one.name not in inside]
        tensors = [numpy_helper.from_array(values[name], name) for name in sorted(inside)]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        graph = helper.make_graph([self.proto], "alone", inputs, outputs, tensors)
        imports = [helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)


def _shown(operand: Operand) -> str:
    few = operand.kind in (VALUE, FOLDED) and operand.known.size <= 8
    return str(operand.known.value.tolist()) if few else str(operand.known)


def _info(name: str, known: Known) -> Any:
    return helper.make_tensor_value_info(name, known.dtype, known.shape)


def _attribute(attribute: Any) -> Any:
    """An attribute as JSON: numbers and texts as they are, tensors and graphs by digest."""
    value = helper.get_attribute_value(attribute)
    match attribute.type:
        case AttributeProto.INT | AttributeProto.FLOAT:
            return value
        case AttributeProto.STRING:
            return value.decode("utf-8", "replace")
        case AttributeProto.INTS | AttributeProto.FLOATS:
            return list(value)
        case AttributeProto.STRINGS:
            return [one.decode("utf-8", "replace") for one in value]
    return hashlib.sha256(attribute.SerializeToString(deterministic=True)).hexdigest()[:16]


class Walk:
    """The nodes of one network in order. Whoever walks tells what each gives, by `gave`."""

    def __init__(self, model: Any, label: str) -> None:
        self.label = label
        self.opsets = {one.domain: one.version for one in model.opset_import}
        self.opsets.setdefault("", 1)
        self.graph = model.graph
        self.known: dict[str, Known] = {}
        self.stored = {tensor.name: tensor for tensor in self.graph.initializer}
        self.read = {one.name for one in self.graph.output}
        for node in self.graph.node:
            self.read.update((*node.input, *captured(node)))
        for value in self.graph.input:
            self._take_input(value)

    def _take_input(self, value: Any) -> None:
        kind = value.type.tensor_type
        sizes = [one.dim_value if one.HasField("dim_value") else -1 for one in kind.shape.dim]
        if value.type.HasField("tensor_type") and min(sizes, default=0) >= 0:
            self.known[value.name] = Known(kind.elem_type, tuple(sizes))

    def nodes(self) -> Iterator[tuple[Any, Node | str]]:
        """Every node that somebody reads but constants: as it stands in the file, then by itself, or why it
        cannot be taken out."""
        for number, proto in enumerate(self.graph.node):
            if proto.op_type == "Constant":
                self._constant(proto)
            elif self.read.intersection(proto.output):
                yield proto, self._node(proto, number)

    def gave(self, proto: Any, outputs: dict[str, Known]) -> None:
        """What a node gives: known by the names it has by itself."""
        for number, name in enumerate(proto.output):
            if name and f"o{number}" in outputs:
                self.known[name] = outputs[f"o{number}"]

    def _constant(self, proto: Any) -> None:
        (attribute,) = proto.attribute
        value = helper.get_attribute_value(attribute)
        if attribute.name == "value":
            self.stored[proto.output[0]] = value
        elif attribute.name in ("value_int", "value_ints", "value_float", "value_floats"):
            kind = np.int64 if "int" in attribute.name else np.float32
            self.stored[proto.output[0]] = numpy_helper.from_array(np.array(value, kind))

    def _node(self, proto: Any, number: int) -> Node | str:
        place = f"{proto.name or proto.op_type + ' ' + str(number)!r} in {self.label}"
        if (proto.domain or "") not in self.opsets:
            return f"{place}: its domain is imported in no version"
        names = list(dict.fromkeys(name for name in proto.input if name))
        inner = [name for name in captured(proto) if name not in names]
        missing = [name for name in (*names, *inner) if name not in self.known and name not in self.stored]
        if missing:
            return f"{place}: the type and shape of {missing[0]!r} are not known"
        renamed = {name: f"i{at}" for at, name in enumerate(names)} | {name: name for name in inner}
        alone = onnx.NodeProto(op_type=proto.op_type, domain=proto.domain)
        alone.input.extend(renamed.get(name, "") for name in proto.input)
        alone.output.extend(f"o{at}" if name else "" for at, name in enumerate(proto.output))
        alone.attribute.extend(sorted(proto.attribute, key=lambda one: str(one.name)))
        for attribute in alone.attribute:
            attribute.ClearField("doc_string")
        operands = tuple(self._operand(proto, name, new) for name, new in renamed.items())
        opsets = {one: self.opsets[one] for one in {"", proto.domain}}
        outputs = tuple(f"o{at}" for at, name in enumerate(proto.output) if name in self.read)
        return Node(alone, opsets, operands, outputs, place)

    def _operand(self, proto: Any, name: str, new: str) -> Operand:
        if name not in self.stored:
            known = self.known[name]
            return Operand(new, DATA if known.value is None else FOLDED, known)
        tensor = self.stored[name]
        known = Known(tensor.data_type, tuple(tensor.dims), stored=True)
        plain = proto.op_type in WEIGHT_OPERATORS or known.size > VALUES
        if tensor.data_type in FLOATS and plain:
            return Operand(new, WEIGHT, known)
        value = numpy_helper.to_array(tensor)
        return Operand(new, VALUE, Known(known.dtype, known.shape, value, stored=True))


def captured(proto: Any) -> list[str]:
    """The names that a node's subgraphs read from around it, in order."""
    found: dict[str, None] = {}
    for attribute in proto.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            own = {one.name for one in (*graph.input, *graph.initializer)}
            own |= {name for node in graph.node for name in node.output}
            read = [name for node in graph.node for name in (*node.input, *captured(node))]
            read += [one.name for one in graph.output]
            found |= dict.fromkeys(name for name in read if name and name not in own)
    return list(found)
