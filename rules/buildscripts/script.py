"""A Python build script followed by hand: what flags its strings, tables and lists hold, on each path.

Only what carries flags is followed; everything else is unknown. A condition on something unknown is taken
both ways, and remembered, so that one path never holds `arch == "larch64"` and `arch == "Darwin"` at once.
"""

import ast
import bisect
import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

DEVICE: Final = "DEV"
HOLE: Final = "\0"  # where a text holds something unknown
MOST_PATHS: Final = 128
MOST_STEPS: Final = 400_000  # statements and expressions, over all paths
MOST_TEXT: Final = 1 << 16
MOST_PARTS: Final = 2000  # of a text or a list
MOST_TURNS: Final = 64  # of a loop
MOST_ROUNDS: Final = 20
CHANGING: Final = ("append", "extend", "pop", "setdefault", "update")
DEEPEST: Final = 8  # calls within calls
WHEN: Final = 3  # conditions that are told
ASSIGNMENT: Final = re.compile(r"(?<![\w.$/-])([A-Z][A-Z0-9_]*)=(\"[^\"\n=]*\"|'[^'\n=]*'|[^\s;&|\"'()]*)")


class Found(NamedTuple):
    """A flag's value, None when the script computes it, and its line."""

    value: str | None
    line: int


class Bundle(NamedTuple):
    """Flags that go together, by name; `when` says on which path, "" on all."""

    pins: Mapping[str, Found]
    when: str


class Piece(NamedTuple):
    """Some characters of a text, and the lines of the script that they were written on."""

    text: str
    first: int
    last: int


@dataclass(frozen=True)
class Text:
    """A string in pieces; HOLE stands for what is unknown."""

    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass
class Table:
    """A dict: values by key, with the line of each; `selected` once an unknown key took one of them."""

    entries: "dict[str, tuple[Value, int]]" = field(default_factory=dict)
    selected: bool = False


@dataclass
class Items:
    """A list, tuple or set."""

    values: "list[Value]" = field(default_factory=list)


Value: TypeAlias = Text | Table | Items | None


class _Returned(Exception):
    def __init__(self, value: Value) -> None:
        self.value = value


class _Enough(Exception):
    """The script is larger than anything a build needs."""


def assignments(text: str) -> Iterator[tuple[int, str, str | None]]:
    """`NAME=value` words as a shell reads them: offset, name, value (None when it is computed)."""
    for one in ASSIGNMENT.finditer(text):
        value = one[2].strip("\"'")
        yield one.start(), one[1], None if HOLE in value or "$" in value else value


def maximal(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Without those that are a part of another one."""
    found: list[Bundle] = []
    for one in sorted(bundles, key=lambda bundle: -len(bundle.pins)):
        if not any(one.pins.items() <= other.pins.items() for other in found):
            found.append(one)
    return sorted(found, key=lambda bundle: min(pin.line for pin in bundle.pins.values()))


def _known(value: Value) -> str | None:
    text = str(value) if isinstance(value, Text) else None
    return None if text is None or HOLE in text else text


class Interpreter:
    """Follows `tree`, parsed from `source`; `names` are the words that count as flags."""

    def __init__(self, tree: ast.Module, source: str, names: frozenset[str]) -> None:
        self.tree = tree
        self.lines = source.split("\n")
        self.names = names
        self.steps = MOST_STEPS
        self.complete = True
        self.relevant = Relevance(tree, names)

    def bundles(self) -> list[Bundle]:
        """Every bundle with a DEV, each once. Raises RecursionError when the script nests too deep."""
        found: dict[tuple[tuple[str, Found], ...], Bundle] = {}
        forced: list[bool] | None = []
        for _ in range(MOST_PATHS):
            path = Path(self, forced)
            for bundle in path.follow():
                found.setdefault(tuple(sorted(bundle.pins.items())), bundle)
            forced = path.next()
            if forced is None or self.steps <= 0:
                break
        self.complete = forced is None and self.steps > 0
        return list(found.values())

    def step(self) -> None:
        """Count what is done."""
        self.steps -= 1
        if self.steps <= 0:
            raise _Enough

    def pins(self, value: Value) -> Iterator[dict[str, Found]]:
        """The bundles that a value holds, with or without a DEV."""
        self.step()
        if isinstance(value, Text):
            yield self._of_text(value)
        elif isinstance(value, Items):
            words = [one for one in value.values if isinstance(one, Text)]
            yield {name: found for one in words for name, found in self._of_text(one).items()}
            for one in value.values:
                yield from self.pins(one) if not isinstance(one, Text) else ()
        elif isinstance(value, Table):
            own = {name: entry for name, entry in value.entries.items() if name in self.names}
            yield {name: Found(_known(one), line) for name, (one, line) in own.items()}
            rest = () if value.selected else (e for n, e in value.entries.items() if n not in own)
            for one, _ in rest:
                yield from self.pins(one)

    def _of_text(self, text: Text) -> dict[str, Found]:
        ends = list(itertools.accumulate(len(piece.text) for piece in text.pieces))
        return {
            name: Found(value, self._line(name, text.pieces[bisect.bisect_right(ends, start)]))
            for start, name, value in assignments(str(text))
            if name in self.names
        }

    def _line(self, name: str, piece: Piece) -> int:
        """Where in a text over several lines the name stands."""
        lines = range(piece.first, min(piece.last, len(self.lines)) + 1)
        return next((line for line in lines if f"{name}=" in self.lines[line - 1]), piece.first)


class Relevance:
    """Which statements have to do with flags: they hold one, are built from one, or go into one."""

    def __init__(self, tree: ast.Module, names: frozenset[str]) -> None:
        self.names = names
        self._found: dict[int, bool] = {}
        statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        facts = [self._facts(node) for node in statements if isinstance(node, ast.For) or not _has_body(node)]
        functions = [node for node in statements if isinstance(node, ast.FunctionDef)]
        self._own = {fact.key for fact in facts if fact.flagged}
        self._spread(facts, functions)

    def of(self, statement: ast.stmt) -> bool:
        """Whether to follow a statement."""
        key = id(statement)
        if key not in self._found:
            self._found[key] = any(id(node) in self._own for node in ast.walk(statement))
        return self._found[key]

    def _spread(self, facts: "Sequence[Facts]", functions: Sequence[ast.FunctionDef]) -> None:
        """Follow flags into what is made of them, and back to what they are made of."""
        inner = {node.name: {id(each) for each in ast.walk(node)} for node in functions}
        carriers: set[str] = set()
        feeders: set[str] = set()
        for _ in range(MOST_ROUNDS):
            before = len(self._own), len(carriers), len(feeders)
            for fact in facts:
                carrying = fact.flagged or bool(fact.loads & carriers)
                if carrying or fact.stores & feeders:
                    self._own.add(fact.key)
                    feeders |= fact.loads
                    carriers |= fact.stores if carrying else set()
            carriers |= {name for name, nodes in inner.items() if nodes & self._own}
            if before == (len(self._own), len(carriers), len(feeders)):
                return

    def _facts(self, statement: ast.stmt) -> "Facts":
        header = (statement.iter, statement.target) if isinstance(statement, ast.For) else (statement,)
        facts = Facts(id(statement), any(self._flagged(node) for one in header for node in ast.walk(one)))
        for one in header:
            _gather(one, facts)
        return facts

    def _flagged(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return not self.names.isdisjoint(re.findall(r"[A-Z][A-Z0-9_]*", node.value))
        return isinstance(node, ast.keyword) and node.arg in self.names


@dataclass
class Facts:
    """Whether one statement holds a flag, and the names (`os.environ` is one) that it reads and changes."""

    key: int
    flagged: bool
    loads: set[str] = field(default_factory=set)
    stores: set[str] = field(default_factory=set)


def _has_body(statement: ast.stmt) -> bool:
    return hasattr(statement, "body")


def _gather(top: ast.AST, facts: Facts) -> None:
    left = [top]
    while left:
        node = left.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changing = node.func.attr in CHANGING
            (facts.stores if changing else facts.loads).add(_dotted(node.func.value))
        if isinstance(node, ast.Name | ast.Attribute):
            (facts.loads if isinstance(node.ctx, ast.Load) else facts.stores).add(_dotted(node))
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            facts.stores.add(_dotted(node.value))
        left += ast.iter_child_nodes(node) if not isinstance(node, ast.Attribute) else [node.value]


def _dotted(node: ast.expr) -> str:
    """`a`, `a.b`, `a.b.c`; of anything else, the name that it starts with."""
    names = []
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    return ".".join([node.id if isinstance(node, ast.Name) else "", *reversed(names)])


class Path:
    """One way through the script; `forced` are the choices to repeat, beyond which every choice is True."""

    def __init__(self, script: Interpreter, forced: Sequence[bool] | None) -> None:
        self.script = script
        self.forced = list(forced or ())
        self.choices: list[bool] = []
        self.truths: dict[tuple[str, str | None], bool] = {}
        self.variables: dict[str, Value] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.called: set[str] = set()
        self.aliases: dict[str, str] = {}
        self.used: list[dict[str, Found]] = []
        self.depth = 0

    def next(self) -> list[bool] | None:
        """The choices of the path after this one, or None after the last."""
        choices = list(self.choices)
        while choices and not choices[-1]:
            choices.pop()
        return [*choices[:-1], False] if choices else None

    def follow(self) -> list[Bundle]:
        """Go to the end, and gather the bundles."""
        with contextlib.suppress(_Enough):
            with contextlib.suppress(_Returned):
                self.block(self.script.tree.body)
            for name, function in list(self.functions.items()):
                if name not in self.called:
                    self.use(self.call(function, (), {}))
            for value in self.variables.values():
                self.use(value)
        when = self.when()
        return maximal([Bundle(pins, when) for pins in self.used if DEVICE in pins])

    def when(self) -> str:
        """The path in words: what is so, or, when nothing is, what is not."""
        told: dict[bool, list[str]] = {True: [], False: []}
        for (subject, value), truth in self.truths.items():
            equal = "==" if truth else "!="
            negated = subject if truth else f"not {subject}"
            told[truth].append(negated if value is None else f"{subject} {equal} {value!r}")
        return " and ".join((told[True] or told[False])[:WHEN])

    def use(self, value: Value) -> None:
        """Note the bundles of a value that goes somewhere."""
        self.used += [pins for pins in self.script.pins(value) if pins]

    def decide(self, subject: str, value: str | None = None) -> bool:
        """Whether `subject` is `value`, or is true when value is None: as before, or as this path chooses."""
        known = self.truths.get((subject, value))
        if known is None and value is not None:
            others = (truth for (one, _), truth in self.truths.items() if one == subject)
            known = False if any(others) else None
        if known is None:
            at = len(self.choices)
            known = self.forced[at] if at < len(self.forced) else True
            self.choices.append(known)
            self.truths[subject, value] = known
        return known

    # ---- statements

    def block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.FunctionDef):
                self.functions[statement.name] = statement
            elif self.script.relevant.of(statement):
                self.script.step()
                self.statement(statement)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self.assign(target, value)
            case ast.AnnAssign(value=ast.expr()):
                self.assign(node.target, self.value(node.value))
            case ast.AugAssign():
                self.augment(node)
            case ast.Expr():
                self.use(self.value(node.value))
            case ast.Return():
                raise _Returned(self.value(node.value) if node.value else None)
            case ast.Delete():
                for target in node.targets:
                    self.drop(target)
            case _:
                self.compound(node)

    def compound(self, node: ast.stmt) -> None:
        match node:
            case ast.If():
                self.block(node.body if self.test(node.test) else node.orelse)
            case ast.For():
                self.loop(node)
            case ast.Try() | ast.TryStar():
                self.block([*node.body, *node.orelse, *node.finalbody])
            case ast.With():
                for one in node.items:
                    self.use(self.value(one.context_expr))
                self.block(node.body)
            case ast.While() | ast.ClassDef():
                self.block(node.body)

    def loop(self, node: ast.For) -> None:
        for value in self.turns(node.iter):
            self.assign(node.target, value)
            self.block(node.body)

    def turns(self, iterable: ast.expr) -> list[Value]:
        """What a loop goes over; one unknown turn when that is unknown."""
        over = self.value(iterable)
        if isinstance(over, Items):
            return list(over.values[:MOST_TURNS])
        if isinstance(over, Table):
            return [self.text(key, iterable) for key in list(over.entries)[:MOST_TURNS]]
        return [None]

    def assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name():
                self.variables[target.id] = value
            case ast.Tuple() | ast.List():
                values = value.values if isinstance(value, Items) else []
                for index, one in enumerate(target.elts):
                    self.assign(one, values[index] if index < len(values) else None)
            case ast.Subscript():
                key = _known(self.value(target.slice))
                if key is not None:
                    self.table(target.value).entries[key] = (value, target.lineno)
            case ast.Attribute():
                self.variables[ast.unparse(target)] = value

    def augment(self, node: ast.AugAssign) -> None:
        old = self.value(_loaded(node.target))
        new = self.combined(old, node.op, self.value(node.value), node)
        self.assign(node.target, new)

    def drop(self, target: ast.expr) -> None:
        if isinstance(target, ast.Subscript):
            self.table(target.value).entries.pop(_known(self.value(target.slice)) or "", None)

    def table(self, node: ast.expr) -> Table:
        """The dict that an expression names; an unknown one (`os.environ`) starts out empty."""
        found = self.value(node)
        if isinstance(found, Table):
            return found
        found = self.variables[ast.unparse(node)] = Table()
        return found

    # ---- conditions

    def test(self, node: ast.expr) -> bool:
        self.script.step()
        match node:
            case ast.UnaryOp(op=ast.Not()):
                return not self.test(node.operand)
            case ast.BoolOp():
                results = (self.test(one) for one in node.values)
                return all(results) if isinstance(node.op, ast.And) else any(results)
            case ast.Compare(ops=[op], comparators=[right]):
                return self.compared(node, op, right)
        known = _known(self.value(node))
        return self.decide(self.subject(node)) if known is None else known not in ("", "0", "False")

    def compared(self, node: ast.Compare, op: ast.cmpop, right: ast.expr) -> bool:
        positive = isinstance(op, ast.Eq | ast.In | ast.Is)
        if not positive and not isinstance(op, ast.NotEq | ast.NotIn | ast.IsNot):
            return self.decide(ast.unparse(node))
        others = self.value(right)
        values = others.values if isinstance(others, Items) else [others]
        texts = [_known(one) for one in values]
        if any(text is None for text in texts) or isinstance(others, Table):
            return self.decide(ast.unparse(node))
        if isinstance(op, ast.In | ast.NotIn) and not isinstance(others, Items):
            return self.decide(ast.unparse(node))
        return positive == any(self.equal(node.left, text or "") for text in texts)

    def equal(self, left: ast.expr, text: str) -> bool:
        known = _known(self.value(left))
        return self.decide(self.subject(left), text) if known is None else known == text

    # ---- expressions

    def text(self, text: str, node: ast.AST) -> Text:
        first = getattr(node, "lineno", 1)
        return Text((Piece(text, first, getattr(node, "end_lineno", first) or first),))

    def value(self, node: ast.expr | None) -> Value:
        """What an expression is, as far as it is known."""
        if node is None:
            return None
        self.script.step()
        match node:
            case ast.Constant():
                return self.constant(node)
            case ast.Name():
                return self.variables.get(node.id)
            case ast.JoinedStr():
                return self.joined([self.value(one) for one in node.values], node)
            case ast.FormattedValue():
                return self.value(node.value) if node.format_spec is None else None
            case ast.BinOp():
                return self.combined(self.value(node.left), node.op, self.value(node.right), node)
            case ast.IfExp():
                return self.value(node.body if self.test(node.test) else node.orelse)
            case ast.Dict():
                return self.literal(node)
            case ast.List() | ast.Tuple() | ast.Set():
                return Items([self.value(one) for one in node.elts])
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
                return self.comprehended(node)
            case ast.Call():
                return self.called_value(node)
            case ast.Subscript():
                return self.selected(node)
            case ast.Attribute():
                return self.variables.get(ast.unparse(node))
        return None

    def constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, bool):
            return self.text(str(int(node.value)), node)
        return self.text(str(node.value), node) if isinstance(node.value, str | int | float) else None

    def joined(self, values: Sequence[Value], node: ast.AST) -> Value:
        pieces: list[Piece] = []
        for value in values:
            pieces += value.pieces if isinstance(value, Text) else self.text(HOLE, node).pieces
        whole = len(pieces) <= MOST_PARTS and sum(len(piece.text) for piece in pieces) <= MOST_TEXT
        return Text(tuple(pieces)) if whole else None

    def combined(self, left: Value, op: ast.operator, right: Value, node: ast.AST) -> Value:
        """`+` of texts and lists, `|` of tables, `%` of a text."""
        if isinstance(op, ast.BitOr) and (isinstance(left, Table) or isinstance(right, Table)):
            return Table({**_entries(left), **_entries(right)})
        if isinstance(op, ast.Mod) and isinstance(left, Text):
            return Text(tuple(one._replace(text=re.sub(r"%[sdr]", HOLE, one.text)) for one in left.pieces))
        if not isinstance(op, ast.Add):
            return None
        if isinstance(left, Items) and isinstance(right, Items):
            return Items([*left.values, *right.values][:MOST_PARTS])
        if isinstance(left, Text) or isinstance(right, Text):
            return self.joined([left, right], node)
        return left if isinstance(left, Items) else None

    def literal(self, node: ast.Dict) -> Table:
        entries: dict[str, tuple[Value, int]] = {}
        for key, one in zip(node.keys, node.values, strict=True):
            value = self.value(one)
            if key is None:
                entries |= _entries(value)
            elif (name := _known(self.value(key))) is not None:
                entries[name] = (value, key.lineno)
        return Table(entries)

    def comprehended(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> Value:
        first, *rest = node.generators
        if rest:
            return None
        found = Items()
        for value in self.turns(first.iter):
            self.assign(first.target, value)
            if all(self.test(one) for one in first.ifs):
                found.values.append(self.value(node.elt))
        return found

    def selected(self, node: ast.Subscript) -> Value:
        base = self.value(node.value)
        key = _known(self.value(node.slice))
        if isinstance(base, Table):
            return self.entry(base, node.slice, key, None)
        if isinstance(base, Items) and key is not None and key.lstrip("-").isdigit():
            index = int(key[:9])
            return base.values[index] if -len(base.values) <= index < len(base.values) else None
        return self.variables.get(ast.unparse(node))

    def entry(self, table: Table, by: ast.expr, key: str | None, default: ast.expr | None) -> Value:
        """`table[by]`: by an unknown key, the entry that this path chooses."""
        if key is None:
            table.selected = True
            subject = self.subject(by)
            key = next((one for one in list(table.entries) if self.decide(subject, one)), "")
        return table.entries[key][0] if key in table.entries else self.value(default)

    # ---- calls

    def called_value(self, node: ast.Call) -> Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in self.functions:
            named = {one.arg: one.value for one in node.keywords if one.arg}
            return self.call(self.functions[name], node.args, named)
        if name == "dict":
            return self.made_dict(node)
        if name in ("str", "list", "tuple", "sorted", "Split") and len(node.args) == 1:
            return self.value(node.args[0])
        if isinstance(node.func, ast.Attribute):
            return self.method(node, node.func)
        self.pass_on(node)
        return None

    def pass_on(self, node: ast.Call) -> None:
        """The arguments of a call that is not followed go somewhere."""
        for one in node.args:
            self.use(self.value(one))
        named = [one for one in node.keywords if one.arg in self.script.names]
        self.use(Table({one.arg or "": (self.value(one.value), one.value.lineno) for one in named}))
        for other in node.keywords:
            self.use(self.value(other.value))

    def made_dict(self, node: ast.Call) -> Table:
        entries: dict[str, tuple[Value, int]] = {}
        for one in node.args:
            entries |= _entries(self.value(one))
        for word in node.keywords:
            value = self.value(word.value)
            entries |= {word.arg: (value, word.value.lineno)} if word.arg else _entries(value)
        return Table(entries)

    def call(
        self, function: ast.FunctionDef, arguments: Sequence[ast.expr], named: Mapping[str, ast.expr]
    ) -> Value:
        """What a function of the script returns; its parameters are unknown unless passed."""
        if self.depth >= DEEPEST:
            return None
        self.called.add(function.name)
        outer, called_as = self.variables, self.aliases
        values, self.aliases = self.parameters(function.args, arguments, named)
        self.variables, self.depth = outer | values, self.depth + 1
        try:
            self.block(function.body)
        except _Returned as returned:
            return returned.value
        finally:
            local = self.variables
            self.variables, self.aliases, self.depth = outer, called_as, self.depth - 1
            for name, value in local.items():
                if outer.get(name) is not value:
                    self.use(value)
        return None

    def parameters(
        self, declared: ast.arguments, arguments: Sequence[ast.expr], named: Mapping[str, ast.expr]
    ) -> tuple[dict[str, Value], dict[str, str]]:
        """Values of parameters, and what the unknown ones are called where the call stands."""
        names = [one.arg for one in (*declared.posonlyargs, *declared.args)]
        given = dict(zip(reversed(names), reversed(declared.defaults), strict=False))
        given |= dict(zip(names, arguments, strict=False)) | dict(named)
        values: dict[str, Value] = dict.fromkeys(names + [one.arg for one in declared.kwonlyargs])
        values |= {name: self.value(one) for name, one in given.items()}
        return values, {name: self.subject(one) for name, one in given.items() if values[name] is None}

    def subject(self, node: ast.expr) -> str:
        """What a condition is about: an unknown parameter goes by what was passed."""
        text = ast.unparse(node)
        return self.aliases.get(text, text)

    def method(self, node: ast.Call, function: ast.Attribute) -> Value:
        base = self.value(function.value)
        if function.attr in ("update", "setdefault", "pop") and not isinstance(base, Text | Items):
            return self.changed(node, function)
        match base:
            case Table():
                return self.of_table(node, function.attr, base)
            case Items():
                return self.of_items(node, function.attr, base)
            case Text():
                return self.of_text(node, function.attr, base)
        self.pass_on(node)
        return None

    def changed(self, node: ast.Call, function: ast.Attribute) -> Value:
        """`update`, `setdefault` and `pop` of a dict, known or not (`os.environ`)."""
        if function.attr == "update":
            self.table(function.value).entries |= self.made_dict(node).entries
            return None
        key = _known(self.value(node.args[0])) if node.args else None
        if key is None:
            return None
        table = self.table(function.value)
        if function.attr == "pop":
            return table.entries.pop(key, (None, 0))[0]
        value = self.value(node.args[1]) if len(node.args) > 1 else None
        return table.entries.setdefault(key, (value, node.lineno))[0]

    def of_table(self, node: ast.Call, name: str, table: Table) -> Value:
        if name == "get" and node.args:
            key = _known(self.value(node.args[0]))
            return self.entry(table, node.args[0], key, node.args[1] if len(node.args) > 1 else None)
        if name == "copy":
            return Table(dict(table.entries))
        if name == "items":
            pairs = table.entries.items()
            return Items([Items([Text((Piece(k, line, line),)), v]) for k, (v, line) in pairs])
        if name == "values":
            return Items([value for value, _ in table.entries.values()])
        return None

    def of_items(self, node: ast.Call, name: str, items: Items) -> Value:
        value = self.value(node.args[0]) if node.args else None
        if name == "append":
            items.values.append(value)
        elif name == "extend" and isinstance(value, Items):
            items.values = [*items.values, *value.values][:MOST_PARTS]
        return Items(list(items.values)) if name == "copy" else None

    def of_text(self, node: ast.Call, name: str, text: Text) -> Value:
        if name == "join" and node.args:
            return self.join(text, self.value(node.args[0]), node)
        if name == "split":
            return Items([Text((one,)) for one in self.words(text)])
        if name == "format":
            holed = [one._replace(text=re.sub(r"\{[^{}]*\}", HOLE, one.text)) for one in text.pieces]
            return Text(tuple(holed))
        return text if name in ("strip", "lstrip", "rstrip") else None

    def words(self, text: Text) -> list[Piece]:
        return [piece._replace(text=word) for piece in text.pieces for word in piece.text.split()]

    def join(self, between: Text, over: Value, node: ast.AST) -> Value:
        if not isinstance(over, Items):
            return None
        values: list[Value] = []
        for one in over.values:
            values += [between, one] if values else [one]
        return self.joined(values, node)


def _loaded(target: ast.expr) -> ast.expr:
    """A target as the expression that reads it."""
    return ast.parse(ast.unparse(target), mode="eval").body


def _entries(value: Value) -> "dict[str, tuple[Value, int]]":
    return value.entries if isinstance(value, Table) else {}
