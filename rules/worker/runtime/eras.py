"""Eras of the runtimes: by which formulas each acts on what a model says, and what it does with a late frame.

Figures are those of openpilot and StarPilot in 2026, as far as each layout's runtime goes by them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

LATERAL_DELAY = 0.2  # seconds that the replay's car takes to steer
ACTUATOR_DELAY = 0.2  # and to accelerate
NEWEST_WITHOUT_VERSION = 7  # StarPilot: below v8, a model's own curvature steers and is fed back


class Steer(Enum):
    """What the curvature is taken from."""

    PLAN = "plan"
    CURVATURE = "desired_curvature"  # held while there is none; never the plan
    CURVATURE_OR_PLAN = "desired_curvature, else plan"
    ACTION_HUNDREDTHS = "action / 100"
    ACTION = "action / max(1, v)²"
    ACTION_OR_PLAN = "action / max(1, v)², else plan"

    @property
    def acts(self) -> bool:
        """Whether the head `action` is read when there is one; it then accelerates, too."""
        return self in (Steer.ACTION_HUNDREDTHS, Steer.ACTION, Steer.ACTION_OR_PLAN)


class Stop(Enum):
    """When a plan asks the car to come to rest."""

    SLOW_SOON = "slow at the action time and a second later"  # openpilot before 2026-04-07
    SLOW_NOW = "slow now, and hardly to accelerate"


class Late(Enum):
    """What becomes of a frame before which others were dropped."""

    WARPED = "warped only, and nothing is published"
    EVALUATED = "evaluated and published"


@dataclass(frozen=True)
class Era:
    """One generation of a runtime; times in seconds."""

    name: str
    lateral_smoothing: float
    longitudinal_smoothing: float
    ahead: float  # from a frame's end to the moment it acts at, beside the car's own delay
    stop: Stop
    linear_start: bool  # below 0.3 s, speed and yaw grow in a line from now
    late: Late
    steer: Steer
    steer_by_version: Mapping[int, Steer]
    adds_planplus: bool

    @property
    def lateral_delay(self) -> float:
        """Seconds from an action to the steering, smoothing included."""
        return LATERAL_DELAY + self.lateral_smoothing

    @property
    def lateral_action_time(self) -> float:
        """Seconds from a frame until the steering it leads to acts."""
        return self.lateral_delay + self.ahead

    @property
    def longitudinal_action_time(self) -> float:
        """Seconds from a frame until the acceleration it leads to acts."""
        return ACTUATOR_DELAY + self.longitudinal_smoothing + self.ahead

    def steers_by(self, version: int | None) -> Steer:
        """What a model of one behaviour version steers by."""
        return self.steer if version is None else self.steer_by_version.get(version, self.steer)

    def feeds_curvature_back(self, version: int | None) -> bool:
        """Whether `prev_desired_curv` holds what the model said before, not zeros."""
        return self.steers_by(version) is Steer.CURVATURE_OR_PLAN


STARPILOT_STEERS = (
    dict.fromkeys(range(NEWEST_WITHOUT_VERSION + 1), Steer.CURVATURE_OR_PLAN)
    | {9: Steer.CURVATURE, 14: Steer.ACTION_HUNDREDTHS}
    | dict.fromkeys((15, 16), Steer.ACTION)
)

OPENPILOT_MARCH = Era(
    name="openpilot, March 2026",
    lateral_smoothing=0.0,
    longitudinal_smoothing=0.3,
    ahead=0.05,
    stop=Stop.SLOW_SOON,
    linear_start=False,
    late=Late.WARPED,
    steer=Steer.ACTION_OR_PLAN,
    steer_by_version={},
    adds_planplus=False,
)
OPENPILOT_JUNE = Era(
    name="openpilot, June 2026",
    lateral_smoothing=0.0,
    longitudinal_smoothing=0.3,
    ahead=0.075,
    stop=Stop.SLOW_NOW,
    linear_start=True,
    late=Late.EVALUATED,
    steer=Steer.ACTION_OR_PLAN,
    steer_by_version={},
    adds_planplus=False,
)
STARPILOT_JULY = Era(
    name="StarPilot, July 2026",
    lateral_smoothing=0.0,
    longitudinal_smoothing=0.3,
    ahead=0.075,
    stop=Stop.SLOW_NOW,
    linear_start=False,
    late=Late.WARPED,
    steer=Steer.PLAN,
    steer_by_version=STARPILOT_STEERS,
    adds_planplus=True,
)

# IQPilot's runtime is not public here: inferred from its contract, which openpilot has had since June.
ERAS: Mapping[str, Era] = {
    "openpilot-split": OPENPILOT_MARCH,
    "iqpilot-supercombo": OPENPILOT_JUNE,
    "starpilot-single": STARPILOT_JULY,
}


def version_of(text: str | None) -> int | None:
    """The number of a behaviour version: "v14" → 14; None when there is none."""
    digits = (text or "").removeprefix("v")
    return int(digits) if digits.isdigit() else None
