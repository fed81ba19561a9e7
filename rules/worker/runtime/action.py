"""The action that decoded outputs ask of the car, by the formulas of its runtime's era."""

import math
from dataclasses import dataclass

import numpy as np

from .decode import ACCELERATION, EULER, RATE, TIMES, VELOCITY, Array, Heads
from .eras import Era, Steer, Stop
from .scene import RATE as FRAME_RATE

STEERING_SPEED = 0.3  # m/s up to which the curvature is held
SLOWEST = 1.0  # m/s below which an angle says nothing about curvature
STOPPING_SPEED = 0.3  # m/s
STOPPING_ACCELERATION = 0.1  # m/s²
SLOW = 0.05  # m/s: at rest, before the rule by speed and acceleration
LINEAR_UNTIL = 0.3  # seconds
ACTION_SCALE = 100.0


@dataclass(frozen=True)
class Action:
    """What a model asks of the car now: 1/m, m/s², and whether to come to rest."""

    curvature: float
    acceleration: float
    should_stop: bool


REST = Action(0.0, 0.0, False)


def at(seconds: float, values: Array, start: float, era: Era) -> float:
    """A plan's `values` (33,) at `seconds`; a linear start goes from `start` to the value at 0.3 s."""
    if era.linear_start and seconds < LINEAR_UNTIL:
        return start + seconds / LINEAR_UNTIL * (float(np.interp(LINEAR_UNTIL, TIMES, values)) - start)
    return float(np.interp(seconds, TIMES, values))


def curvature_of(plan: Array, speed: float, era: Era) -> float:
    """The curvature (1/m) that reaches the plan's heading at the lateral action time; plan is (33, 15).

    κ = 2ψ(t) / (v t) - ψ'(0) / v, with v of at least 1 m/s.
    """
    seconds, speed = era.lateral_action_time, max(speed, SLOWEST)
    yaws, rate = plan[:, EULER][:, 2], float(plan[0, RATE][2])
    return 2 * at(seconds, yaws, 0.0, era) / (speed * seconds) - rate / speed


def acceleration_of(plan: Array, era: Era) -> tuple[float, bool]:
    """The acceleration (m/s²) that reaches the plan's speed at the longitudinal action time; plan (33, 15).

    a = 2(v(t) - v(0)) / t - a(0). The second value says whether the car should come to rest.
    """
    seconds = era.longitudinal_action_time
    speeds, now = plan[:, VELOCITY][:, 0], float(plan[0, ACCELERATION][0])
    start = float(speeds[0])
    reached = at(seconds, speeds, start, era)
    wanted = 2 * (reached - start) / seconds - now
    if era.stop is Stop.SLOW_SOON:
        return wanted, max(reached, at(seconds + 1, speeds, start, era)) < SLOW
    return wanted, start < STOPPING_SPEED and wanted < STOPPING_ACCELERATION


def smoothed(value: float, before: float, seconds: float) -> float:
    """A first-order filter, one frame on; without a time constant it lets everything through."""
    share = 1 - math.exp(-1 / (FRAME_RATE * seconds)) if seconds > 0 else 1.0
    return share * value + (1 - share) * before


def next_action(heads: Heads, before: Action, speed: float, era: Era, version: int | None) -> Action | None:
    """The action after `before`, at `speed` in m/s; None when no head that this era reads says anything."""
    steer, speed = era.steers_by(version), max(speed, 0.0)
    direct = heads.get("action") if steer.acts else None
    if direct is not None:
        acceleration = float(direct[1])
        stop = speed < STOPPING_SPEED and acceleration < STOPPING_ACCELERATION
        curvature: float | None = _direct(float(direct[0]), speed, steer)
    elif "plan" in heads and steer not in (Steer.ACTION, Steer.ACTION_HUNDREDTHS):
        plan = planned(heads, era)
        acceleration, stop = acceleration_of(plan, era)
        curvature = _indirect(heads, plan, speed, era, steer)
    else:
        return None
    held = curvature is None or speed <= STEERING_SPEED
    return Action(
        before.curvature if held else smoothed(curvature or 0.0, before.curvature, era.lateral_smoothing),
        smoothed(acceleration, before.acceleration, era.longitudinal_smoothing),
        stop,
    )


def planned(heads: Heads, era: Era) -> Array:
    """The plan that acts, (33, 15): with what `planplus` adds, where the era adds it with full power."""
    plan = heads["plan"]
    return plan + heads["planplus"] if era.adds_planplus and "planplus" in heads else plan


def _direct(value: float, speed: float, steer: Steer) -> float:
    """A curvature from the action head, which speaks in lateral acceleration (m/s²) or hundredths of 1/m."""
    return value / ACTION_SCALE if steer is Steer.ACTION_HUNDREDTHS else value / max(SLOWEST, speed) ** 2


def _indirect(heads: Heads, plan: Array, speed: float, era: Era, steer: Steer) -> float | None:
    own = heads.get("desired_curvature")
    if steer in (Steer.CURVATURE, Steer.CURVATURE_OR_PLAN) and own is not None:
        return float(own[0])
    return None if steer is Steer.CURVATURE else curvature_of(plan, speed, era)
