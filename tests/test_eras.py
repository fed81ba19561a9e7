"""Every era's formulas, each against an example worked out by hand, and what becomes of late frames."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.layouts import RELEASED
from rules.worker.runtime.action import REST, Action, acceleration_of, curvature_of, next_action, smoothed
from rules.worker.runtime.decode import TIMES
from rules.worker.runtime.eras import (
    ERAS,
    OPENPILOT_JUNE,
    OPENPILOT_MARCH,
    STARPILOT_JULY,
    Late,
    Steer,
    version_of,
)
from rules.worker.runtime.realtime import Drops, era_of

EVERY = (OPENPILOT_MARCH, OPENPILOT_JUNE, STARPILOT_JULY)
LONG = 1 - math.exp(-0.05 / 0.3)  # the share of a new acceleration: 0.1535


def vector(*values):
    return np.array(values, np.float32)


def plan_of(speed=10.0):
    """33 points that drive straight on."""
    plan = np.zeros((33, 15), np.float32)
    plan[:, 0], plan[:, 3] = speed * TIMES, speed
    return plan


def steered(heads, era, version=None, speed=10.0, before=REST):
    return next_action(heads, before, speed, era, version)


# ---- which era


def test_each_layout_has_the_era_of_its_runtime():
    assert ERAS[RELEASED] is STARPILOT_JULY
    assert era_of({"driving_vision_tinygrad.pkl": None}) == (OPENPILOT_MARCH, None)
    assert era_of({"artifact": {"format_version": 1, "behavior_version": "v14"}}) == (STARPILOT_JULY, 14)
    assert era_of({"artifact": {"run_policy": None}}) == (OPENPILOT_JUNE, None)


@pytest.mark.parametrize(
    ("text", "number"), [("v8", 8), ("v15", 15), (None, None), ("", None), ("new", None)]
)
def test_versions_by_their_number(text, number):
    assert version_of(text) == number


@pytest.mark.parametrize(
    ("era", "lateral", "longitudinal"),
    [(OPENPILOT_MARCH, 0.25, 0.55), (OPENPILOT_JUNE, 0.275, 0.575), (STARPILOT_JULY, 0.275, 0.575)],
)
def test_action_times(era, lateral, longitudinal):
    """0.2 s that the car takes, 0 and 0.3 s of smoothing, and one frame, since April one and a half."""
    assert era.lateral_action_time == pytest.approx(lateral)
    assert era.longitudinal_action_time == pytest.approx(longitudinal)
    assert era.lateral_delay == pytest.approx(0.2)


# ---- plans


@pytest.mark.parametrize("era", EVERY)
def test_a_constant_speed_asks_for_no_acceleration(era):
    assert acceleration_of(plan_of(), era)[0] == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("era", EVERY)
def test_a_steady_gain_of_speed_asks_for_that_gain(era):
    plan = plan_of()
    plan[:, 3], plan[:, 6] = 10 + 2 * TIMES, 2
    assert acceleration_of(plan, era)[0] == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("era", EVERY)
def test_curvature_of_a_circle(era):
    """A radius of 50 m is a curvature of 0.02 at any speed."""
    plan = plan_of()
    plan[:, 11], plan[:, 14] = 10 / 50 * TIMES, 10 / 50
    assert curvature_of(plan, 10.0, era) == pytest.approx(0.02, rel=1e-3)


def test_a_linear_start_goes_from_now_to_the_value_after_three_tenths():
    """Yaw 0.09 from 0.2441 s on, 0 before: at 0.275 s interpolation is there already, a line at 0.0825."""
    plan = plan_of()
    plan[5:, 11] = 0.09
    assert curvature_of(plan, 10.0, STARPILOT_JULY) == pytest.approx(2 * 0.09 / (10 * 0.275), rel=1e-5)
    assert curvature_of(plan, 10.0, OPENPILOT_JUNE) == pytest.approx(2 * 0.0825 / (10 * 0.275), rel=1e-5)


def test_a_linear_start_leaves_later_times_alone():
    plan = plan_of()
    plan[:, 3] = TIMES**2
    assert acceleration_of(plan, OPENPILOT_JUNE) == acceleration_of(plan, STARPILOT_JULY)


def test_below_one_metre_a_second_an_angle_counts_as_at_one():
    plan = plan_of()
    plan[:, 11] = 0.1
    for era in (OPENPILOT_MARCH, STARPILOT_JULY):
        assert curvature_of(plan, 0.1, era) == pytest.approx(curvature_of(plan, 1.0, era))


# ---- stopping


def test_before_april_a_plan_stops_that_is_slow_at_the_action_time_and_a_second_later():
    plan = plan_of(0.04)
    assert acceleration_of(plan, OPENPILOT_MARCH)[1] is True
    plan[12:, 3] = 0.06  # from 1.4 s on
    assert acceleration_of(plan, OPENPILOT_MARCH)[1] is False
    assert acceleration_of(plan_of(0.29), OPENPILOT_MARCH)[1] is False


@pytest.mark.parametrize("era", [OPENPILOT_JUNE, STARPILOT_JULY])
def test_since_april_a_plan_stops_that_is_slow_now_and_hardly_accelerates(era):
    assert acceleration_of(plan_of(0.29), era)[1] is True
    assert acceleration_of(plan_of(0.31), era)[1] is False
    starting = plan_of(0.1)
    starting[:, 3], starting[:, 6] = 0.1 + 0.2 * TIMES, 0.2
    assert acceleration_of(starting, era)[1] is False


@pytest.mark.parametrize("era", [OPENPILOT_MARCH, OPENPILOT_JUNE])
def test_an_action_stops_by_the_cars_own_speed(era):
    heads = {"plan": plan_of(), "action": vector(0, 0.05)}
    assert steered(heads, era, speed=0.2).should_stop is True
    assert steered(heads, era, speed=0.4).should_stop is False
    assert steered({"action": vector(0, 0.15)}, era, speed=0.2).should_stop is False


def test_what_decides_stopping_is_not_smoothed():
    """1 m/s² asked before, 0.05 now: the car hears of 0.85 and stops all the same."""
    found = steered(
        {"action": vector(0, 0.05)}, STARPILOT_JULY, 15, speed=0.1, before=Action(0.0, 1.0, False)
    )
    assert found.acceleration == pytest.approx(1 - 0.95 * LONG)
    assert found.should_stop is True


# ---- which head


HEADS = {
    "plan": plan_of(),
    "desired_curvature": vector(0.5),
    "action": vector(2.0, 3.0),
}


@pytest.mark.parametrize(
    ("version", "curvature", "accelerates"),
    [
        (None, 0.0, False),
        (7, 0.5, False),
        (8, 0.0, False),
        (9, 0.5, False),
        (10, 0.0, False),
        (13, 0.0, False),
        (14, 2.0 / 100, True),
        (15, 2.0 / 10**2, True),
        (16, 2.0 / 10**2, True),
    ],
)
def test_what_a_starpilot_steers_by(version, curvature, accelerates):
    found = steered(HEADS, STARPILOT_JULY, version)
    assert found.curvature == pytest.approx(curvature, abs=1e-6)
    assert found.acceleration == pytest.approx(3 * LONG if accelerates else 0, abs=1e-5)


def test_version_nine_holds_its_curvature_rather_than_ask_the_plan():
    bent = plan_of()
    bent[:, 11] = 0.1
    before = Action(0.004, 0.0, False)
    assert steered({"plan": bent}, STARPILOT_JULY, 9, before=before).curvature == 0.004
    assert steered({"plan": bent}, STARPILOT_JULY, 7, before=before).curvature > 0.01


@pytest.mark.parametrize("version", [14, 15, 16])
def test_a_starpilot_that_needs_an_action_makes_none_of_a_plan(version):
    assert steered({"plan": plan_of()}, STARPILOT_JULY, version) is None


@pytest.mark.parametrize("era", [OPENPILOT_MARCH, OPENPILOT_JUNE])
def test_openpilot_steers_by_the_action_if_there_is_one_and_never_by_a_curvature(era):
    assert steered(HEADS, era).curvature == pytest.approx(2 / 10**2)
    assert steered(HEADS, era, speed=0.5).curvature == pytest.approx(2.0)
    without = {name: head for name, head in HEADS.items() if name != "action"}
    assert steered(without, era).curvature == pytest.approx(0, abs=1e-6)
    assert steered({}, era) is None


@pytest.mark.parametrize("era", EVERY)
def test_at_a_standstill_the_steering_is_held(era):
    bent = plan_of()
    bent[:, 11] = 0.1
    before = Action(0.01, 0.0, False)
    assert steered({"plan": bent}, era, speed=0.3, before=before).curvature == 0.01
    assert steered({"plan": bent}, era, speed=0.31, before=before).curvature > 0.01


def test_planplus_is_added_to_the_plan_where_the_runtime_knows_it():
    more = np.zeros((33, 15), np.float32)
    more[:, 11] = 0.1
    heads = {"plan": plan_of(), "planplus": more}
    assert steered(heads, STARPILOT_JULY, 12).curvature == pytest.approx(2 * 0.1 / (10 * 0.275), rel=1e-5)
    assert steered(heads, OPENPILOT_JUNE).curvature == pytest.approx(0, abs=1e-6)


def test_only_versions_below_eight_are_fed_their_curvature_back():
    fed = [v for v in (None, *range(5, 17)) if STARPILOT_JULY.feeds_curvature_back(v)]
    assert fed == [5, 6, 7]
    assert not any(era.feeds_curvature_back(None) for era in EVERY)


# ---- smoothing, and frames that come late


@given(st.floats(-10, 10), st.floats(-10, 10))
def test_without_a_time_constant_nothing_is_smoothed(value, before):
    assert smoothed(value, before, 0.0) == value


def test_one_frame_of_smoothing():
    assert smoothed(1.0, 0.0, 0.3) == pytest.approx(0.15352, abs=1e-5)


def test_which_runtimes_publish_a_late_frame():
    assert {era.name: era.late for era in EVERY} == {
        "openpilot, March 2026": Late.WARPED,
        "openpilot, June 2026": Late.EVALUATED,
        "StarPilot, July 2026": Late.WARPED,
    }
    assert STARPILOT_JULY.steers_by(17) is Steer.PLAN


def test_drops_are_counted_from_the_eleventh_run_on():
    drops = Drops()
    for run in range(10):
        assert drops.take(2 * run) == (1 if run else 0, 0.0)
    dropped, ratio = drops.take(18 + 31)
    level = 0.05 / 10.05 * 10  # of a gap of 30, ten count
    assert (dropped, ratio) == (30, pytest.approx(level / (1 + level)))
    assert drops.take(50)[1] == pytest.approx((level * 10 / 10.05) / (1 + level * 10 / 10.05))
