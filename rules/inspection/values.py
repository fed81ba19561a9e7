"""Light descriptions of what a pickle makes; the machine builds them, the judge looks at them."""

from typing import Any


class Global:
    """What the pickle would import: `name` is `module.name`, `at` the byte of its opcode.

    `effect` says what loading does with it, None where that is not known.
    """

    __slots__ = ("at", "effect", "module", "name", "short")

    def __init__(self, module: str, short: str, at: int, effect: Any = None) -> None:
        self.module, self.short, self.at, self.effect = module, short, at, effect
        self.name = f"{module}.{short}"


class Made:
    """An object: what `of` returned for `arguments`, then `state` set on it and `items` added to it.

    `kind` is its class where the class and the way it was made are known, else empty.
    """

    __slots__ = ("arguments", "items", "kind", "of", "state")

    def __init__(self, of: Any, arguments: Any, kind: str = "") -> None:
        self.of, self.arguments, self.kind = of, arguments, kind
        self.state: Any = None
        self.items: list[Any] | None = None


class Payload:
    """`size` bytes at `at` that were passed over; `buffer` is the index of an out-of-band one.

    `what` is "bytes", "bytearray", "text" or "number".
    """

    __slots__ = ("at", "buffer", "size", "what")

    def __init__(self, size: int, at: int, what: str, buffer: int | None = None) -> None:
        self.size, self.at, self.what, self.buffer = size, at, what, buffer


class Mapping:
    """A dict: keys and values in turn, since a described key need not be hashable."""

    __slots__ = ("_texts", "flat")

    def __init__(self, flat: list[Any]) -> None:
        self.flat = flat
        self._texts: dict[str, Any] | None = None

    @property
    def texts(self) -> dict[str, Any]:
        """What is held under texts; read it only when the pickle is done."""
        # Kept, because thousands of objects can be given one and the same large dict.
        if self._texts is None:
            pairs = zip(self.flat[::2], self.flat[1::2], strict=False)
            self._texts = {key: value for key, value in pairs if isinstance(key, str)}
        return self._texts


class Members(list[Any]):
    """A set: a list, since a described member need not be hashable."""

    __slots__ = ()


class Frozen(tuple[Any, ...]):
    """A frozenset."""

    __slots__ = ()


class Plain(tuple[Any, ...]):
    """A tuple of nothing but data."""

    __slots__ = ()


class Nodes(tuple[Any, ...]):
    """A tuple of nothing but graph nodes. A type of its own, so that it is looked through only once."""

    __slots__ = ()


def name_of(value: Any) -> str:
    """The class of an object, without its module; empty for anything else."""
    return value.of.short if isinstance(value, Made) and isinstance(value.of, Global) else ""


def described(value: Any) -> str:
    """A few words for a value."""
    if isinstance(value, Global):
        return value.name[:200]
    if isinstance(value, Made) and isinstance(value.of, Global):
        return f"what {value.of.name[:200]} returns"
    return _WORDS.get(type(value), f"a {type(value).__name__}")


_WORDS = {
    Made: "a computed object",
    Payload: "bytes",
    Mapping: "a dict",
    Members: "a set",
    Frozen: "a frozenset",
    Plain: "a tuple",
    Nodes: "a tuple",
}
