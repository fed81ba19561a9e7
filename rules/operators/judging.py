"""Whether what tinygrad gave is what the reference gave, within what rounding can do and no more.

How far rounding carries is measured, not guessed: the reference runs again on operands that are each off by a
known fraction, and what its outputs then move by says how an output answers to a rounding of what it is made
of (backward error analysis). An operator may round so many times (`ROUNDINGS`) on its way, at the unit
roundoff of the coarsest type it works in, and sums in float32 may lose their square root of terms more.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

UNITS: Final = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8}
SMALLEST: Final = {"float16": 2.0**-24, "float32": 2.0**-126, "float64": 2.0**-1022, "bfloat16": 2.0**-126}
LARGEST: Final = {"float16": 6.0e4, "float32": 3.0e38, "float64": 1.5e308, "bfloat16": 3.0e38}
# Roundings on the way to one number. Of 800 right nodes of onnx's own tests the worst used 0.7 of it (cubic
# Resize), of the generated networks 0.4; nearly all that are wrong are a thousand times over it.
ROUNDINGS: Final = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 32}
SUM_ROUNDINGS: Final = 4
# Functions written with a 1 in them (tinygrad's tanh is 2·sigmoid(2x) - 1) lose what is below its last place.
AROUND_ONE: Final = frozenset(
    """Tanh Erf Gelu FastGelu BiasGelu Sigmoid Elu Selu Celu Softplus Mish HardSwish HardSigmoid Swish Atanh
    Asinh Acosh Sinh Asin Acos Atan Cos Softsign QuickGelu""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class Scale:
    """How a node rounds: the coarsest float type it works in, terms of a sum, whether it holds a 1, and
    whether what it gives is a quotient rounded to a whole number."""

    dtype: str
    terms: int
    around_one: bool = False
    quantizes: bool = False

    @property
    def step(self) -> float:
        """The relative change of operands that the reference is asked about."""
        return max(UNITS[self.dtype], 2.0**-14)

    @property
    def share(self) -> float:
        """What of its size and of its answer to a change an output may be off by."""
        unit, sums = UNITS[self.dtype], min(UNITS[self.dtype], UNITS["float32"])
        return ROUNDINGS[self.dtype] * unit + SUM_ROUNDINGS * float(np.sqrt(self.terms)) * sums


@dataclass(frozen=True)
class Worst:
    """The number that is furthest off: how far of what it may be, and both values."""

    ratio: float
    expected: Any
    found: Any


def moved(operand: Any, step: float, random: np.random.Generator) -> Any:
    """A float operand, each number off by `step` of itself, up or down."""
    if operand.dtype.kind != "f":
        return operand
    signs = random.integers(0, 2, operand.shape) * 2 - 1
    return (operand * (1 + step * signs)).astype(operand.dtype)


def worst(scale: Scale, found: Any, expected: Any, answers: list[Any]) -> Worst:
    """The number of one output that is furthest off; `answers` are the reference's to moved operands."""
    if found.shape != expected.shape:
        return Worst(float("inf"), f"shape {expected.shape}", f"{found.shape}")
    if not expected.size:
        return Worst(0.0, None, None)
    limit = LARGEST[scale.dtype]
    wide = [np.clip(one.astype(np.float64), -limit, limit) for one in (found, expected, *answers)]
    (given, wanted, *others), told = wide, ~np.isnan(expected.astype(np.float64))
    off = np.where(told, np.abs(given - wanted), 0.0)
    off = np.where(np.isnan(off), np.inf, off)
    ratio = off / _allowed(scale, expected.dtype.kind, wanted, others)
    at = np.unravel_index(int(ratio.argmax()), ratio.shape)
    return Worst(float(ratio[at]), expected[at].item(), found[at].item())


def _allowed(scale: Scale, kind: str, expected: Any, others: list[Any]) -> Any:
    answer = (
        np.nan_to_num(np.max([np.abs(one - expected) for one in others], axis=0)) if others else 0 * expected
    )
    if kind != "f":  # a whole number is right, or where a rounding decides it, one of its neighbours
        return answer + 0.5 + scale.quantizes
    answer = answer / scale.step
    common = np.sqrt(np.mean(np.square(answer))) / 8  # four signs drawn at random may all cancel in one place
    size = np.abs(np.nan_to_num(expected)) + np.maximum(answer, common) + scale.around_one
    return scale.share * size + ROUNDINGS[scale.dtype] * SMALLEST[scale.dtype]
