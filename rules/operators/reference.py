"""The reference's side: takes networks apart, runs each node in float32, judges what tinygrad gave.

It runs in a process of its own, since onnx and onnxruntime are heavy: one line of JSON says what to look at,
another what tinygrad made of it.
"""

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime  # type: ignore[import-untyped]
from onnx import helper

from rules.networks.reference import widened
from rules.networks.whole import loaded
from rules.operators import judging
from rules.operators.feeds import Feeds, terms
from rules.operators.nodes import (
    ABOUT_SHAPES,
    FOLDED,
    FOLDS,
    VALUE,
    WEIGHT,
    Known,
    Node,
    Walk,
    numpy_name,
)

LARGE: Final = 1 << 20  # numbers, and with so many a node is fed fewer magnitudes
MOST_NUMBERS: Final = 1 << 25
MOST_PRODUCTS: Final = 1 << 32
LARGE_PRODUCTS: Final = 1 << 27
MOVES: Final = 4
MEMORY: Final = 12 << 30


class NotHeld(Exception):
    """A node that cannot be held on its own, and why."""


class Alone:
    """One node in the reference, in float32."""

    def __init__(self, node: Node, feeds: Feeds) -> None:
        self.node, self.feeds = node, feeds
        self.large = sum(one.known.size for one in node.operands) > LARGE
        self.outputs = self._outputs()
        model = node.model(fixed=(VALUE,), values=feeds.given)
        widened(model)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def _outputs(self) -> dict[str, Known]:
        """Types and, where they follow from the inputs, shapes; raises NotHeld when a node is too large."""
        fixed = {**self.feeds.given, **self.feeds.weights}
        small = {name: one for name, one in fixed.items() if one.size <= FOLDS}
        kinds = (VALUE, FOLDED) if len(small) == len(fixed) else (VALUE,)
        inferred = onnx.shape_inference.infer_shapes(
            self.node.model(fixed=kinds, values=fixed), data_prop=True
        )
        found = {}
        for value in inferred.graph.output:
            kind = value.type.tensor_type
            sizes = [one.dim_value if one.HasField("dim_value") else -1 for one in kind.shape.dim]
            whole = kind.HasField("shape") and min(sizes, default=0) >= 0
            found[value.name] = Known(kind.elem_type, tuple(sizes) if whole else (-1,))
        if self.node.proto.op_type == "Dropout" and any(map(np.any, list(self.feeds.given.values())[1:])):
            raise NotHeld("it draws random numbers")
        self._check_size([one for one in found.values() if -1 not in one.shape])
        return found

    def _check_size(self, outputs: list[Known]) -> None:
        numbers = sum(one.size for one in (*outputs, *(one.known for one in self.node.operands)))
        products = max((one.size for one in outputs), default=0) * terms(self.node)
        self.large |= numbers > LARGE or products > LARGE_PRODUCTS
        heavy = (
            self.node.proto.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm")
            and products > MOST_PRODUCTS
        )
        if numbers > MOST_NUMBERS or heavy:
            raise NotHeld(f"it is too large to be held ({numbers:,} numbers)")

    def __call__(self, fed: Mapping[str, Any]) -> list[Any]:
        """Every output that is read, for all operands but those that the model holds."""
        wanted = self.session.get_inputs()
        kinds = {"tensor(float)": np.float32, "tensor(double)": np.float64}
        whole = {**self.feeds.given, **fed}
        found: list[Any] = self.session.run(
            None,
            {
                one.name: np.asarray(whole[one.name], kinds.get(one.type, whole[one.name].dtype), order="C")
                for one in wanted
            },
        )
        if any(not isinstance(one, np.ndarray) for one in found):
            raise NotHeld("it gives something else than tensors")
        return found

    def known(self, outputs: list[Any]) -> dict[str, Known]:
        """What the node gives, for those that read it."""
        fixed = self.node.proto.op_type in ABOUT_SHAPES or all(
            one.kind in (VALUE, FOLDED) for one in self.node.operands
        )
        found = {}
        for name, output in zip(self.node.outputs, outputs, strict=True):
            dtype = self.outputs[name].dtype or helper.np_dtype_to_tensor_dtype(output.dtype)
            value = output.astype(numpy_name(dtype)) if fixed and output.size <= FOLDS else None
            found[name] = Known(dtype, output.shape, value)
        return found

    @property
    def moves(self) -> int:
        """How often the reference is asked about moved operands."""
        return MOVES // 2 if self.large else MOVES

    @property
    def scale(self) -> judging.Scale:
        """How it rounds: by the coarsest float type it reads or writes."""
        dtypes = [one.known.dtype for one in self.node.operands] + [
            one.dtype for one in self.outputs.values()
        ]
        floats = [name for one in dtypes if one and (name := numpy_name(one)) in judging.UNITS]
        coarsest = max(floats, key=lambda name: judging.UNITS[name], default="float32")
        operator = self.node.proto.op_type
        around_one, quantizes = (
            operator in judging.AROUND_ONE,
            "Quantize" in operator or "QLinear" in operator,
        )
        return judging.Scale(coarsest, terms(self.node), around_one, quantizes)


@dataclass
class Case:
    """A node that is to be held: what it is fed and what it must give, by pass."""

    alone: Alone
    passes: list[dict[str, Any]]
    expected: list[list[Any]]


class Bench:
    """All nodes of one request."""

    def __init__(self, known: set[str], scratch: Path, half: bool) -> None:
        self.held = known
        self.scratch, self.half = scratch, half
        self.gives: dict[str, dict[str, Known]] = {}
        self.nodes: dict[str, Node] = {}
        self.not_held: dict[str, str] = {}
        self.cases: dict[str, Case] = {}

    def take_apart(self, label: str, path: str, shapes: Mapping[str, list[int]]) -> dict[str, Any]:
        """The digests of a network's distinct nodes, in order (`nodes`), and why some are `not_held`.

        The unknown ones become cases. `shapes` are of inputs whose sizes the file leaves open.
        """
        walk = Walk(loaded(Path(path), shapes), label)
        found: dict[str, None] = {}
        apart: dict[str, str] = {}
        for proto, node in walk.nodes():
            if isinstance(node, str):
                apart[hashlib.sha256(node.encode()).hexdigest()] = node
                continue
            digest = node.digest
            found[digest] = None
            if digest not in self.gives:
                self.nodes[digest] = node
                self.gives[digest] = self._looked_at(node, digest)
            walk.gave(proto, self.gives[digest])
        apart |= {digest: self.not_held[digest] for digest in found if digest in self.not_held}
        return {"nodes": list(found), "not_held": apart}

    def _looked_at(self, node: Node, digest: str) -> dict[str, Known]:
        feeds, alone = Feeds(node), None
        try:
            alone = Alone(node, feeds)
            passes = feeds.passes(large=alone.large)
            if digest in self.held:
                return alone.known(alone({**feeds.weights, **passes[0]}))
            expected = [alone({**feeds.weights, **one}) for one in passes]
            self.cases[digest] = Case(alone, passes, expected)
            return alone.known(expected[0])
        except Exception as error:
            why = str(error) if isinstance(error, NotHeld) else f"the reference cannot run it: {_line(error)}"
            self.not_held[digest] = f"{node.shown}: {why}"
            outputs = alone.outputs if alone else {}
            return {name: one for name, one in outputs.items() if -1 not in one.shape}

    def asked(self) -> list[dict[str, Any]]:
        """The cases as files: a model of the node alone, and what to feed it."""
        asked = []
        for number, (digest, case) in enumerate(self.cases.items()):
            node, feeds = case.alone.node, case.alone.feeds
            model, fed = self.scratch / f"{number}.onnx", self.scratch / f"{number}.npz"
            onnx.save(node.model(fixed=(VALUE, WEIGHT), values={**feeds.given, **feeds.weights}), model)
            folded = {one.name: one.known.value for one in node.operands if one.kind == FOLDED}
            arrays = {
                f"{at}/{name}": one
                for at, fed in enumerate(case.passes)
                for name, one in {**folded, **fed}.items()
            }
            np.savez(fed, **arrays)
            asked.append(
                {
                    "digest": digest,
                    "node": f"{node.proto.op_type}, {node.shown}",
                    "model": str(model),
                    "fed": str(fed),
                    "passes": len(case.passes),
                }
            )
        return asked

    def judged(self, given: Mapping[str, Any], failed: Mapping[str, str]) -> dict[str, Any]:
        """What there is to say of each case, by digest: how much of its allowance it used, what is wrong."""
        return {
            digest: self._verdict(digest, case, given, failed.get(digest))
            for digest, case in self.cases.items()
        }

    def _verdict(
        self, digest: str, case: Case, given: Mapping[str, Any], failed: str | None
    ) -> dict[str, Any]:
        node = self.nodes[digest]
        said = {
            "node": node.described(),
            "operator": node.proto.op_type,
            "opset": node.opset,
            "shown": node.shown,
        }
        if failed:
            return {**said, "failed": failed}
        passes = list(self._worst(digest, case, given))
        worst = next((one for one in passes if not one.ratio <= 1), max(passes, key=lambda one: one.ratio))
        wrong = not worst.ratio <= 1
        return {
            **said,
            "used": worst.ratio if np.isfinite(worst.ratio) else None,
            "passes": len(case.passes),
            **({"expected": _number(worst.expected), "got": _number(worst.found)} if wrong else {}),
        }

    def _worst(self, digest: str, case: Case, given: Mapping[str, Any]) -> Iterator[judging.Worst]:
        scale, random = self._scale(case.alone), np.random.default_rng(0)
        for at, (fed, expected) in enumerate(zip(case.passes, case.expected, strict=True)):
            whole = {**case.alone.feeds.weights, **fed}
            answers = [case.alone(self._moved(scale, whole, random)) for _ in range(case.alone.moves)]
            for number in range(len(expected)):
                found = given[f"{digest}/{at}/{number}"]
                same = [one[number] for one in answers if one[number].shape == expected[number].shape]
                yield judging.worst(scale, found, expected[number], same)

    def _moved(
        self, scale: judging.Scale, fed: Mapping[str, Any], random: np.random.Generator
    ) -> dict[str, Any]:
        return {name: judging.moved(one, scale.step, random) for name, one in fed.items()}

    def _scale(self, alone: Alone) -> judging.Scale:
        scale = alone.scale
        sums = alone.node.proto.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum")
        if self.half and sums and scale.dtype == "float32":
            return replace(scale, dtype="float16")
        return scale


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _line(error: Exception) -> str:
    lines = [one for one in str(error).splitlines() if one.strip()]
    return (lines or [type(error).__name__])[0][:200]


def main() -> int:
    """`python -m rules.operators.reference`: a request on stdin, cases on stdout, answers, verdicts."""
    _limit_memory()
    request = json.loads(sys.stdin.readline())
    bench = Bench(set(request["known"]), Path(request["scratch"]), request["half"])
    plans = {
        label: bench.take_apart(label, path, request["shapes"]) for label, path in request["networks"].items()
    }
    asked = bench.asked()
    print(json.dumps({"plans": plans, "cases": asked}), flush=True)
    if not asked:
        return 0
    told = json.loads(sys.stdin.readline())
    with Path(told["given"]).open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != told["sha256"]:
            print(f"{told['given']}: it is not what tinygrad wrote", file=sys.stderr)
            return 1
    with np.load(told["given"], allow_pickle=False) as given:
        print(json.dumps(bench.judged(given, told["failed"])), flush=True)
    return 0


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    sys.exit(main())
