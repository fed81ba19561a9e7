"""tinygrad's `args mismatch in JIT` message, read back: what was captured against what the runtime passed.

The message holds two Python reprs, often cut off, escaped or interrupted by a logger's prefix, so it is read
word by word, not parsed as a whole.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from rules.worker.nv12 import Nv12

MARK: Final = "args mismatch in JIT"
LONGEST: Final = 1 << 20  # characters of one message that are looked at
IMAGE_PLANES: Final = 6
IMAGE_FRAMES: Final = 2  # the model sees two frames, of six planes each
DESIRE_WIDTH: Final = 8
DESIRE_STEPS: Final = (25, 100)
FEATURE_STEPS: Final = (24, 25, 99)
FRAME_SKIPS: Final = range(1, 11)
CAMERAS: Final = ((1928, 1208), (1344, 760))

WARP_TENSORS: Final = frozenset(("tfm", "big_tfm", "frame", "big_frame"))
STACKS: Final = frozenset(("img_q", "big_img_q"))
POLICY_QUEUES: Final = frozenset(("feat_q", "desire_q", "packed_npy_inputs"))
# What each capture of each contract is called with: (the capture, the contract) by its tensors' names.
CALLS: Final = {
    WARP_TENSORS | STACKS: ("the warp", "warp"),
    WARP_TENSORS: ("the warp", "policy"),
    POLICY_QUEUES | {"img", "big_img"}: ("run_policy", "warp"),
    POLICY_QUEUES | STACKS | {"warped"}: ("run_policy", "policy"),
}

# Constants may be named where they first stand (`x4:=UOp(…)`) and be meant by that name (`x4`) later on.
WORDS: Final = re.compile(
    r"(?:\bx(?P<name>\d{1,6}):=)?UOp\(Ops\.(?P<op>[A-Z_]{1,40})"
    r"(?:, dtypes\.[\w.()]{1,40}, arg=(?P<value>-?\d{1,18}))?"
    r"|\bx(?P<use>\d{1,6})\b"
    r"|\bshape=\((?P<shape>[\d, ]{1,200})\)"
    r"|dtypes\.(?P<dtype>[\w.]{1,40}(?:\([\d, ()]{1,60}\))?), '(?P<device>[A-Za-z0-9:+]{1,40})'\)"
)
PLAIN: Final = frozenset(("CONST", "NOOP", "RESHAPE", "STACK", "VECTORIZE", "VCONST", "VIEW"))
NAMES: Final = re.compile(r"'([^'\n]{1,80})'|\b(\d{1,3})\b")


class Tensor(NamedTuple):
    """One argument as the message shows it; `shape` is () when the message gives none.

    `whole` is False for a view, of which `shape` lists every number in it, offsets included.
    """

    shape: tuple[int, ...]
    dtype: str
    device: str
    whole: bool


@dataclass(frozen=True)
class Mismatch:
    """One message: where its mark stands in the text; the captured side, then the passed one.

    `names` are given when the names differ, else `tensors`. Both are empty when the message is cut short.
    """

    start: int
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    tensors: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] = ((), ())


def mismatches(text: str) -> Iterator[Mismatch]:
    """Every such message in `text`, in order; a traceback's own source line is none."""
    marks = [found.start() for found in re.finditer(MARK, text)]
    for start, stop in itertools.pairwise([*marks, len(text)]):
        if text.startswith(": {self.", start + len(MARK)):
            continue
        body = text[start : min(stop, start + LONGEST)].replace("\\n", "\n").replace("\\'", "'")
        yield _read(start, body)


def _read(start: int, body: str) -> Mismatch:
    left, middle, right = body.partition(" != ")
    if not middle:
        return Mismatch(start)
    if "expected_names" in left:
        return Mismatch(start, names=(_names(left), _names(right)))
    return Mismatch(start, tensors=(_tensors(left), _tensors(_own(right))))


def _own(right: str) -> str:
    """The passed side without what the log says after it: the list ends its line, or the text."""
    end = re.search(r"\)\](?=\s|$|\")", right)
    return right[: end.end()] if end else right


def _names(side: str) -> tuple[str, ...]:
    listed = re.search(r"\[([^\]]{0,4000})\]", side)
    return tuple(word or place for word, place in NAMES.findall(listed[1])) if listed else ()


def _tensors(side: str) -> tuple[Tensor, ...]:
    found: list[Tensor] = []
    known: dict[str, int] = {}
    numbers: list[int] = []
    whole = True
    for word in WORDS.finditer(side):
        if word["device"]:
            found.append(Tensor(tuple(numbers), word["dtype"], word["device"], whole))
            numbers, whole = [], True
        elif word["shape"]:
            numbers = [int(size) for size in re.findall(r"\d{1,18}", word["shape"])]
        elif word["use"]:
            numbers += [known[word["use"]]] if word["use"] in known else []
        elif word["op"] == "CONST" and word["value"]:
            numbers.append(int(word["value"]))
            known |= {word["name"]: int(word["value"])} if word["name"] else {}
        else:
            whole = whole and word["op"] in PLAIN
    return tuple(found)


def call(names: tuple[str, ...]) -> tuple[str, str] | None:
    """Which capture is called with tensors of these names, and by which contract; None if neither's."""
    return CALLS.get(frozenset(names))


def camera(size: int) -> str | None:
    """The camera whose NV12 frames have `size` bytes."""
    return next((f"{w}x{h}" for w, h in CAMERAS if Nv12.of(w, h).size == size), None)


def queue(shape: tuple[int, ...]) -> str | None:
    """Which history queue a tensor of this shape is: "image", "desire", "feature", or None."""
    if len(shape) == 4 and shape[1] == IMAGE_PLANES:
        return "image"
    if len(shape) == 3 and shape[1] == 1:
        return "desire" if shape[2] == DESIRE_WIDTH else "feature"
    return None


def frame_skips(kind: str, depth: int) -> frozenset[int]:
    """The frame skips that give a queue of this depth, over every number of steps that models have.

    Image: skip*(frames - 1) + 1. Desire: skip*steps. Feature: skip*(steps - 1) + 1, or skip*steps in a
    supercombo.
    """
    if kind == "image":
        depths = {skip: {skip * (IMAGE_FRAMES - 1) + 1} for skip in FRAME_SKIPS}
    elif kind == "desire":
        depths = {skip: {skip * steps for steps in DESIRE_STEPS} for skip in FRAME_SKIPS}
    else:
        depths = {
            skip: {d for steps in FEATURE_STEPS for d in (skip * (steps - 1) + 1, skip * steps)}
            for skip in FRAME_SKIPS
        }
    return frozenset(skip for skip, fitting in depths.items() if depth in fitting)
