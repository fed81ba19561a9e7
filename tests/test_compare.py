"""How two artifacts differ is told by opcode, and nothing is unpickled for it."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from rules.inspection.compare import first_difference


class Deadly:
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (99,)


def told(tmp_path: Path, one: object, other: object) -> str | None:
    paths = tmp_path / "one.pkl", tmp_path / "other.pkl"
    for path, value in zip(paths, (one, other), strict=True):
        path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol=4))
    return first_difference(*paths)


@pytest.mark.parametrize(
    ("one", "other", "parts"),
    [
        ({"IMAGE": 1}, {"IMAGE": 2}, ["opcode ", "BININT1 1 at byte ", "against BININT1 2"]),
        ({"a": b"xyyz" * 9}, {"a": b"xyyz" * 8 + b"xyqz"}, ["36 bytes", "1 byte, the first at offset 34"]),
        ([Deadly(), 1], [Deadly(), "1"], ["BININT1 1", "against SHORT_BINUNICODE '1'"]),
        ([1], [1, 2], ["against MARK"]),
    ],
)
def test_the_first_opcode_that_differs_is_named(
    tmp_path: Path, one: object, other: object, parts: list[str]
) -> None:
    difference = told(tmp_path, one, other)
    assert difference is not None
    assert all(part in difference for part in parts), difference


def test_equal_pickles_do_not_differ(tmp_path: Path) -> None:
    assert told(tmp_path, [Deadly(), 1], [Deadly(), 1]) is None


def test_what_is_no_pickle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        told(tmp_path, b"version https://git-lfs", [1])
