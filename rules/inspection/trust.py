"""Whether loading has no effect but data: what may be imported, called, built and added to, and how.

A pickle runs whatever it can name, so names, arguments, fields and what is added to are judged by what they
do (`effects`); what is not known there is suspicious. Trust ends at loading: an artifact holds machine code,
which whoever replays it runs.
"""

from collections.abc import Iterable
from typing import Any

from rules.counting import counted
from rules.inspection.effects import EFFECTS, ELSEWHERE, FIELDS, NAMED, Check, Effect, anything, device
from rules.inspection.values import Frozen, Global, Made, Mapping, Members, described

SHOWN = 60  # characters of a value in a verdict


def import_fault(name: str) -> str | None:
    """Why importing `name` is suspicious; None when it is not."""
    return None if name in EFFECTS or name in NAMED else f"suspicious global {name[:200]}"


def call_fault(function: Any, arguments: Any) -> str | None:
    """Why REDUCE of `function` with `arguments` is suspicious; None when it is not."""
    effect = function.effect if type(function) is Global else None
    return _fault(function, effect, effect and effect.call, arguments)


def new_fault(function: Any, arguments: Any) -> str | None:
    """Why NEWOBJ of `function` with `arguments` is suspicious; None when it is not."""
    effect = function.effect if type(function) is Global else None
    return _fault(function, effect, effect and effect.new, arguments)


def _fault(
    function: Any, effect: Effect | None, checks: tuple[Check, ...] | None, arguments: Any
) -> str | None:
    if effect is None or checks is None or not isinstance(arguments, tuple) or type(arguments) is Frozen:
        return f"suspicious call of {described(function)}"
    least = effect.least if effect.least is not None else len(checks)
    if not least <= len(arguments) <= len(checks):
        return f"suspicious call of {described(function)} with {counted(len(arguments), 'argument')}"
    for check, value in zip(checks, arguments, strict=False):
        if not check(value):
            return f"suspicious call of {described(function)} with {_shown(value, check)}"
    if effect.whole is not None and not effect.whole(arguments):
        return f"suspicious call of {described(function)} with {_shown(arguments[-1], None)}"
    return None


def _shown(value: Any, check: Check | None) -> str:
    shown = repr(value)[:SHOWN] if type(value) in (str, int, float, bool, type(None)) else described(value)
    return f"device {shown}" if check is device else shown


def state_fault(target: Any, state: Any) -> str | None:
    """Why BUILD of `target` with `state` is suspicious; None when it is not."""
    effect = target.of.effect if type(target) is Made and type(target.of) is Global else None
    if effect is None or (effect.fields is None and effect.state is None):
        return f"suspicious state set on {described(target)}"
    if effect.state is not None:
        return None if effect.state(state) else f"suspicious state set on {described(target)}"
    parts = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    for part in parts:
        if part is not None and (fault := _fields_fault(target, effect.fields or {}, part)):
            return fault
    return None


def _fields_fault(target: Made, known: dict[str, Check], part: Any) -> str | None:
    if type(part) is not Mapping or len(part.flat) > 2 * FIELDS:
        return f"suspicious state set on {described(target)}"
    for key, value in zip(part.flat[::2], part.flat[1::2], strict=False):
        check = known.get(key) if type(key) is str else None
        if check is None:
            return f"suspicious field {_shown(key, None)} set on {described(target)}"
        if not check(value):
            return f"suspicious {key} {_shown(value, None)} set on {described(target)}"
    return None


def text_fault(value: str) -> str | None:
    """Why a text may not stand anywhere in an artifact; None when it may."""
    return f"suspicious device {value[:80]!r}" if ELSEWHERE.match(value) else None


def items_fault(target: Any, values: list[Any]) -> str | None:
    """Why setting `values` (keys and values in turn) on `target` is suspicious; None when it is not."""
    if type(target) is not Mapping and _holds(target) != "items":
        return f"suspicious items set on {described(target)}"
    return _unhashable(values[::2], "key")


def members_fault(target: Any) -> str | None:
    """Why appending to `target` is suspicious; None when it is not."""
    if type(target) is list or _holds(target) == "members":
        return None
    return f"suspicious items added to {described(target)}"


def set_fault(target: Any, values: list[Any]) -> str | None:
    """Why adding `values` to the set `target` is suspicious; None when it is not."""
    if type(target) is not Members:
        return f"suspicious items added to {described(target)}"
    return _unhashable(values, "member")


def _unhashable(values: Iterable[Any], what: str) -> str | None:
    # A key is hashed and compared by code of its class.
    strange = next((value for value in values if not anything(value)), None)
    return None if strange is None else f"suspicious {what}: {described(strange)}"


def _holds(target: Any) -> str:
    known = type(target) is Made and type(target.of) is Global and target.of.effect is not None
    return target.of.effect.holds if known else ""
