"""Build keys: canonical, and every difference told in words."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.keys import MISSING, differences, flat, key_of, shown

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=8)
LEAVES = st.one_of(st.text(max_size=8), st.integers(), st.lists(st.integers(), max_size=3))
CONTENT = st.dictionaries(
    NAMES,
    st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=8),
    max_size=5,
)


def turned(content: Any) -> Any:
    """The same content, its dicts filled in the opposite order."""
    if not isinstance(content, dict):
        return content
    return {name: turned(content[name]) for name in reversed(content)}


@given(CONTENT)
def test_order_never_decides(content: dict[str, Any]) -> None:
    assert key_of(turned(content)) == key_of(content)
    assert re.fullmatch(r"[0-9a-f]{64}", key_of(content))


@given(CONTENT, CONTENT)
def test_keys_differ_when_something_is_told_to_differ(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert bool(differences(old, new)) == (key_of(old) != key_of(new))


@given(CONTENT)
def test_a_key_survives_its_record(content: dict[str, Any]) -> None:
    """Records are JSON: a key's content must come back as it was."""
    assert key_of(json.loads(json.dumps(content))) == key_of(content)


@given(CONTENT, NAMES)
def test_a_new_name_is_told(content: dict[str, Any], name: str) -> None:
    told = differences({k: v for k, v in content.items() if k != name}, {**content, name: "value"})
    assert (name, MISSING, "value") in told


def test_differences_are_in_words_sorted_and_cut_digests() -> None:
    old = {"flags": {"IMAGE": "2", "FLOAT16": "1"}, "toolchain": {"tinygrad": "a" * 64}, "gone": 1}
    new = {"flags": {"IMAGE": "1", "FLOAT16": "1"}, "toolchain": {"tinygrad": "b" * 64}}
    assert differences(old, new) == [
        ("flags.IMAGE", "2", "1"),
        ("gone", "1", MISSING),
        ("toolchain.tinygrad", "a" * 12 + "…", "b" * 12 + "…"),
    ]


def test_flat_names_are_dotted() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": [2]}}) == {"a.b.c": 1, "a.d": [2]}


def test_shown_keeps_plain_words() -> None:
    assert [shown("warp"), shown([1, 2]), shown(None)] == ["warp", "[1, 2]", "null"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_hold_is_no_key(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        key_of({"value": value})
