"""Which ONNX operators a tinygrad implements, read from its source and never by importing it."""

import ast
import functools
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rules.errors import SourceError, cause
from rules.keeping import files

ALL_INPUTS = frozenset((-1,))  # of an operator that reads on the host whatever it reads
HOST_TABLE = "required_input_python_consts"
HOST_CALLS = frozenset(("item", "tolist", "numpy", "data", "masked_select", "nonzero", "_to_python_const"))

FIX = "pin a tinygrad under [toolchains] that has an ONNX runner of the known form, such as 0.14.0"
MOST = 16 << 20  # bytes of a module


@dataclass(frozen=True)
class Operators:
    """`versioned` maps an operator to the (domain, first opset version) pairs it exists for."""

    domains: frozenset[str]
    plain: frozenset[str]
    versioned: dict[str, frozenset[tuple[str, int]]]

    def names(self) -> frozenset[str]:
        """Every operator there is in some version."""
        return self.plain | self.versioned.keys()

    def implements(self, domain: str, operator: str, version: int) -> bool:
        """Whether `operator` of `domain` ("" for the default one) runs at opset `version`."""
        domain = domain or "ai.onnx"
        if operator in self.versioned:
            return any(own == domain and since <= version for own, since in self.versioned[operator])
        return domain in self.domains and operator in self.plain

    def missing(self, used: Iterable[tuple[str, str]], opsets: Mapping[str, int]) -> list[str]:
        """The (domain, operator) pairs of `used` not implemented, as sorted names `domain.Operator`."""
        return sorted(
            f"{domain}.{operator}" if domain else operator
            for domain, operator in used
            if not self.implements(domain, operator, opsets.get(domain, 1))
        )


# Python 3.11 counts the depth of all syntax trees that are made at one time in one number (cpython 106905).
_parsing = threading.Lock()


def implemented(tinygrad_root: Path) -> Operators:
    """The operators of the tinygrad package in the directory `tinygrad_root`.

    Raises SourceError when `nn/onnx.py` is not there or does not have the form read here: get_onnx_ops with
    a function or a {OpSetId: function} dict per operator, and a Domain enumeration. Safe to share between
    threads: a runner is parsed once.
    """
    with _parsing:
        return _implemented(tinygrad_root)


@functools.lru_cache(maxsize=8)
def _implemented(tinygrad_root: Path) -> Operators:
    path, tree = _runner(tinygrad_root)
    domains = _domains(tree)
    body = _body(tree)
    found = Operators(frozenset(domains.values()), frozenset(_plain(body)), _versioned(body, domains))
    if not (found.domains and found.plain):
        raise SourceError(f"{path}: no get_onnx_ops and Domain were found, expected both", fix=FIX)
    return found


def read_on_host(tinygrad_root: Path) -> Mapping[str, frozenset[int]]:
    """The positions of inputs that operators read in Python, while they are captured; by operator.

    They are what the runner's own table turns into Python values, and `ALL_INPUTS` where an operator's
    function, or one that it calls, reads a tensor itself. Raises SourceError when `nn/onnx.py` has no such
    table. Safe to share between threads.
    """
    with _parsing:
        return _read_on_host(tinygrad_root)


@functools.lru_cache(maxsize=8)
def _read_on_host(tinygrad_root: Path) -> Mapping[str, frozenset[int]]:
    path, tree = _runner(tinygrad_root)
    positions = dict(_table(tree))
    if not positions:
        raise SourceError(f"{path}: no {HOST_TABLE} was found, expected one", fix=FIX)
    return {**positions, **dict.fromkeys(_readers(_body(tree)), ALL_INPUTS)}


def _runner(tinygrad_root: Path) -> tuple[Path, ast.Module]:
    path = tinygrad_root / "nn" / "onnx.py"
    try:
        return path, ast.parse(files.read(path, MOST))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = cause(error) if isinstance(error, OSError) else error
        raise SourceError(f"{path}: cannot be read as tinygrad's ONNX runner: {why}", fix=FIX) from error


def _table(tree: ast.Module) -> Iterator[tuple[str, frozenset[int]]]:
    """The entries of `{"Op": (0, 1), **{"Prefix" + name: (1,) for name in (NAMES)}}`."""
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [None])[0]
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == HOST_TABLE and isinstance(value, ast.Dict):
            for key, item in zip(value.keys, value.values, strict=True):
                if key is not None:
                    yield ast.literal_eval(key), frozenset(ast.literal_eval(item))
                elif isinstance(item, ast.DictComp):
                    yield from _spread(item)


def _spread(table: ast.DictComp) -> Iterator[tuple[str, frozenset[int]]]:
    prefix = table.key.left if isinstance(table.key, ast.BinOp) else ast.Constant("")
    for name in ast.literal_eval(table.generators[0].iter):
        yield ast.literal_eval(prefix) + name, frozenset(ast.literal_eval(table.value))


def _readers(body: list[ast.stmt]) -> set[str]:
    """The operators whose function reads a tensor on the host, or calls one that does."""
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    calls = {name: _called(node) for name, node in functions.items()}
    reading = {name for name, called in calls.items() if called & HOST_CALLS}
    while more := {name for name, called in calls.items() if called & reading} - reading:
        reading |= more
    return {name for name in reading if name[0].isupper()} | _chosen(body, reading)


def _called(function: ast.FunctionDef) -> set[str]:
    """The names of all functions and methods that a function calls."""
    calls = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {
        called.attr if isinstance(called, ast.Attribute) else called.id
        for called in calls
        if isinstance(called, ast.Attribute | ast.Name)
    }


def _chosen(body: list[ast.stmt], functions: set[str]) -> set[str]:
    """The operators one of whose versions is one of `functions`."""
    return {
        target.id
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name)
        and any(isinstance(one, ast.Name) and one.id in functions for one in node.value.values)
    }


def _domains(tree: ast.Module) -> dict[str, str]:
    """Member to value of the Domain enumeration."""
    return {
        target.id: item.value.value
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == "Domain"
        for item in node.body
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Constant)
        for target in item.targets
        if isinstance(target, ast.Name) and isinstance(item.value.value, str)
    }


def _body(tree: ast.Module) -> list[ast.stmt]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "get_onnx_ops":
            return node.body
    return []


def _plain(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name[0].isupper():
            yield node.name
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
            yield from _tensor_methods(node.value)


def _tensor_methods(table: ast.Dict) -> Iterator[str]:
    """Names of `**{op: getattr(Tensor, op.lower()) for op in (NAMES)}`."""
    for value in table.values:
        if isinstance(value, ast.DictComp) and isinstance(value.generators[0].iter, ast.Tuple | ast.List):
            for name in value.generators[0].iter.elts:
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value


def _versioned(body: list[ast.stmt], domains: dict[str, str]) -> dict[str, frozenset[tuple[str, int]]]:
    return {
        target.id: frozenset(_opsets(node.value, domains))
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _opsets(table: ast.Dict, domains: dict[str, str]) -> Iterator[tuple[str, int]]:
    """The keys of `{OpSetId(Domain.X, version): function}`."""
    for key in table.keys:
        match key:
            case ast.Call(args=[ast.Attribute(attr=member), ast.Constant(value=int(version))]) if (
                member in domains
            ):
                yield domains[member], version
