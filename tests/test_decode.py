"""Decoding outputs, against values worked out by hand, and the messages filled from them."""

import json
import math
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.worker.runtime import messages
from rules.worker.runtime.decode import TIMES, cut, decode, exponential, sigmoid, softmax
from rules.worker.runtime.eras import STARPILOT_JULY
from rules.worker.runtime.messages import Publisher, Shot

E = math.e


def vector(*values):
    return np.array(values, np.float32)


def alone(name, values):
    """One head that fills the whole output."""
    return decode(np.asarray(values, np.float32), {name: slice(None)})


def flat_plan():
    """33 points that drive straight on at 10 m/s."""
    plan = np.zeros((33, 15), np.float32)
    plan[:, 0], plan[:, 3] = 10 * TIMES, 10
    return plan


# ---- cutting


def test_slices_may_be_open_negative_and_overlapping():
    output = np.arange(6, dtype=np.float32)
    slices = {"all": slice(0, None), "tail": slice(-2, None), "inner": slice(3, -1), "head": slice(None, 2)}
    parts = {name: values.tolist() for name, values in cut(output, slices).items()}
    assert parts == {"all": [0, 1, 2, 3, 4, 5], "tail": [4, 5], "inner": [3, 4], "head": [0, 1]}


@pytest.mark.parametrize("span", [slice(4, 9), slice(-9, 2), slice(3, 3), slice(5, 2), slice(6, None)])
def test_a_slice_that_numpy_would_shorten_is_refused(span):
    with pytest.raises(ValueError, match=r"lead: slice .* expected columns of the 6 there are"):
        cut(np.zeros(6, np.float32), {"lead": span})


def test_absent_heads_stay_absent_and_pad_is_dropped():
    output = vector(0, 7, 8)
    heads = decode(output, {"desired": slice(1, 3), "pad": slice(0, None)})
    assert list(heads) == ["desired"]
    assert heads["desired"].tolist() == [7, 8]


# ---- the three ways of reading numbers


def test_exponent_is_clipped_at_eleven_and_nan_is_kept():
    values = exponential(vector(0, 1, 11, 12, 1000, np.nan))
    assert values[:5] == pytest.approx([1, E, E**11, E**11, E**11])
    assert np.isnan(values[5])


def test_sigmoid():
    assert sigmoid(vector(0, math.log(3), -1e30)) == pytest.approx([0.5, 0.75, 1 / (1 + E**11)])


def test_softmax_of_large_values():
    assert softmax(vector(1000, 1000 + math.log(3))) == pytest.approx([0.25, 0.75], abs=1e-4)


@given(st.lists(st.floats(-50, 50, width=32), min_size=8, max_size=8))
def test_desire_state_is_a_distribution(values):
    shares = alone("desire_state", values)["desire_state"]
    assert shares.shape == (8,)
    assert shares.sum() == pytest.approx(1, abs=1e-5)
    assert shares[np.argmax(values)] == shares.max()


# ---- heads


def test_pose_is_six_means_and_six_deviations():
    heads = alone("pose", [1, 2, 3, 4, 5, 6, 0, 1, 2, -1, 20, 0])
    assert heads["pose"].tolist() == [1, 2, 3, 4, 5, 6]
    assert heads["pose_stds"] == pytest.approx([1, E, E**2, 1 / E, E**11, 1])


def test_lane_lines_are_lines_of_points_of_two_columns():
    half = np.arange(4 * 33 * 2)
    heads = alone("lane_lines", np.concatenate([half, np.zeros_like(half)]))
    assert heads["lane_lines"].shape == heads["lane_lines_stds"].shape == (4, 33, 2)
    assert heads["lane_lines"][2, 5].tolist() == [2 * 66 + 10, 2 * 66 + 11]
    assert (heads["lane_lines_stds"] == 1).all()


def test_road_edges_are_two():
    assert alone("road_edges", np.zeros(264))["road_edges"].shape == (2, 33, 2)


def test_plan_of_one_hypothesis():
    heads = alone("plan", np.concatenate([np.arange(495), np.full(495, 2)]))
    assert heads["plan"].shape == (33, 15)
    assert heads["plan"][1, 3] == 18
    assert heads["plan_stds"] == pytest.approx(np.full((33, 15), E**2))
    assert "plan_weights" not in heads


def test_plan_of_five_hypotheses_is_the_one_that_weighs_most():
    rows = [[k] * 495 + [k / 10] * 495 + [weight] for k, weight in enumerate([0, 1, 3, 2, 1])]
    heads = alone("plan", np.ravel(rows))
    assert (heads["plan"] == 2).all()
    assert heads["plan_stds"] == pytest.approx(np.full((33, 15), math.exp(0.2)))
    total = 1 + E + E**3 + E**2 + E
    assert heads["plan_weights"][:, 0] == pytest.approx(np.array([E**3, E**2, E, E, 1]) / total)
    assert heads["plan_hypotheses"][:, 0, 0].tolist() == [2, 3, 4, 1, 0], "all three by falling weight"
    assert heads["plan_stds_hypotheses"][:, 0, 0] == pytest.approx(np.exp([0.2, 0.3, 0.4, 0.1, 0]))


def test_leads_of_two_hypotheses_each_choose_their_own():
    first = [1] * 24 + [0] * 24 + [5, 0, 0]
    second = [2] * 24 + [1] * 24 + [0, 0.1, 9]
    heads = alone("lead", first + second)
    assert heads["lead"].shape == (3, 6, 4)
    assert heads["lead"][:, 0, 0].tolist() == [1, 2, 2]
    assert heads["lead_stds"][:, 0, 0] == pytest.approx([1, E, E])
    assert heads["lead_weights"].sum(axis=0) == pytest.approx([1, 1, 1])
    assert heads["lead_hypotheses"][:, 0, 0].tolist() == [1, 2], "in the model's own order"


def test_an_action_of_two_columns_is_raw_and_of_four_a_mixture():
    assert alone("action", [3, -1])["action"].tolist() == [3, -1]
    assert "action_stds" not in alone("action", [3, -1])
    mixed = alone("action", [3, -1, 0, 1])
    assert mixed["action"].tolist() == [3, -1]
    assert mixed["action_stds"] == pytest.approx([1, E])


def test_a_curvature_may_come_without_its_deviation():
    assert alone("desired_curvature", [0.5])["desired_curvature"].tolist() == [0.5]
    assert alone("desired_curvature", [0.5, 0])["desired_curvature_stds"].tolist() == [1]


def test_planplus_is_decoded_as_a_plan():
    assert alone("planplus", np.arange(990))["planplus"][1, 0] == 15


def test_leads_of_one_hypothesis():
    heads = alone("lead", np.concatenate([np.arange(72), np.zeros(72)]))
    assert heads["lead"][2, 1].tolist() == [52, 53, 54, 55]


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        ("plan", 989, "plan: 989 columns, expected 990, or a multiple of 991"),
        ("lead", 143, "lead: 143 columns, expected 144, or a multiple of 51"),
        ("pose", 11, "pose: 11 columns, expected a multiple of 2"),
        ("lane_lines", 130, "lane_lines: 130 columns, expected a multiple of 132"),
        ("desire_pred", 12, "desire_pred: 12 columns, expected a multiple of 8"),
    ],
)
def test_an_impossible_width_is_named(name, width, expected):
    with pytest.raises(ValueError, match=expected):
        alone(name, np.zeros(width))


def test_driver_monitoring_heads_of_one_seat():
    slices = {
        "face_descs_rhd": slice(0, 12),
        "sleep_prob_rhd": slice(12, 13),
        "wheel_on_right": slice(13, 14),
    }
    output = vector(1, 2, 3, 4, 5, 6, 0, 0, 0, 1, 1, 1, 0, math.log(3))
    state = messages.driver_state(decode(output, slices), shot())
    assert "leftDriverData" not in state
    seat = state["rightDriverData"]
    assert (seat["faceOrientation"], seat["facePosition"]) == ([1, 2, 3], [4, 5])
    assert seat["facePositionStd"] == pytest.approx([E, E])
    assert (seat["sleepProb"], state["wheelOnRightProb"]) == (0.5, pytest.approx(0.75))
    assert "faceProb" not in seat


# ---- real models' slices


class SlicesOnly(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) == ("builtins", "slice"):
            return slice
        raise pickle.UnpicklingError(f"{module}.{name}")


@pytest.fixture
def metadata():
    data = os.environ.get("MODELYARD_DATA")
    if not data:
        pytest.skip("MODELYARD_DATA does not name the folder of real metadata")

    def read(name):
        with (Path(data) / "metadata" / name).open("rb") as file:
            return SlicesOnly(file).load()

    return read


@pytest.mark.parametrize(
    "name", ["supercombo_metadata_v2", "supercombo_metadata_v4", "supercombo_metadata_v7"]
)
def test_old_supercombos_decode_by_their_own_slices(metadata, name):
    about = metadata(f"{name}.pkl")
    width = about["output_shapes"]["outputs"][1]
    output = np.zeros(width, np.float32)
    output[991 * 4 - 1] = 1  # the last column of the fourth hypothesis: its weight
    output[991 * 3 + 15] = 42
    heads = decode(output, about["output_slices"])
    assert heads["hidden_state"].shape == (512,)
    assert heads["plan"][1, 0] == 42
    assert heads["plan_weights"].shape == (5, 1)
    assert heads["lead"].shape == (3, 6, 4)
    assert heads["desired_curvature"].shape == (1,)
    filled = published(heads)["modelV2"]
    meta = about["output_slices"]["meta"]
    assert ("disengagePredictions" in filled["meta"]) == (meta.stop - meta.start in (48, 53, 55))
    assert filled["meta"]["engagedProb"] == 0.5


def test_split_models_decode_by_their_own_slices(metadata):
    vision, policy = (metadata(f"driving_{one}_metadata.pkl") for one in ("vision", "policy"))
    heads = {}
    for about in (vision, policy):
        heads |= decode(np.zeros(about["output_shapes"]["outputs"][1], np.float32), about["output_slices"])
    filled = published(heads, frame_id=7, drop_ratio=0.5)
    model = filled["modelV2"]
    assert model["frameId"] == 7
    assert model["frameDropPerc"] == 50
    assert len(model["laneLines"]) == len(model["laneLineProbs"]) == len(model["laneLineStds"]) == 4
    assert len(model["roadEdges"]) == 2
    assert [lead["probTime"] for lead in model["leadsV3"]] == [0, 2, 4]
    assert model["leadsV3"][0]["prob"] == 0.5
    assert len(model["meta"]["desirePrediction"]) == 32
    assert filled["cameraOdometry"]["transStd"] == [1, 1, 1]
    json.dumps(filled, allow_nan=False)


def test_driver_monitoring_decodes_by_its_own_slices(metadata):
    about = metadata("dmonitoring_model_metadata.pkl")
    heads = decode(np.zeros(553, np.float32), about["output_slices"])
    state = messages.driver_state(heads, shot(seconds=0.01))
    assert state["leftDriverData"].keys() == state["rightDriverData"].keys()
    assert state["leftDriverData"]["phoneProb"] == state["wheelOnRightProb"] == 0.5
    assert (state["gpuExecutionTime"], state["rawPredictions"]) == (0.01, "")


# ---- messages


def test_points_in_time_and_space():
    assert (TIMES[0], TIMES[16], TIMES[32]) == (0, 2.5, 10)
    assert messages.DISTANCES[[0, 16, 32]].tolist() == [0, 48, 192]


def shot(**known):
    """A frame after which nothing was dropped."""
    plain = {"frame_id": 0, "seconds": 0.01, "age": 0, "dropped": 0, "drop_ratio": 0.0, "desire": np.zeros(8)}
    return Shot(**{**plain, **known})


def published(heads, **known):
    """The messages of one frame."""
    return Publisher(15.0, STARPILOT_JULY, None).messages(heads, shot(**known))


CURVES = ("position", "velocity", "acceleration", "orientation", "orientationRate")


def test_plan_columns_by_the_runtimes_names():
    plan = np.tile(np.arange(15, dtype=np.float32), (33, 1))
    model = published({"plan": plan, "plan_stds": plan + 100})["modelV2"]
    firsts = {name: [model[name][axis][0] for axis in ("x", "y", "z")] for name in CURVES}
    assert firsts == {name: [3 * n, 3 * n + 1, 3 * n + 2] for n, name in enumerate(CURVES)}
    assert model["position"]["t"][16] == 2.5
    assert not model.keys() & {"laneLines", "roadEdges", "leadsV3", "confidence"}


def test_of_the_plan_only_positions_have_deviations():
    plan = np.tile(np.arange(15, dtype=np.float32), (33, 1))
    model = published({"plan": plan, "plan_stds": plan + 100})["modelV2"]
    assert [model["position"][axis][0] for axis in ("xStd", "yStd", "zStd")] == [100, 101, 102]
    assert all(not {"xStd", "yStd", "zStd"} & model[name].keys() for name in CURVES[1:])


def test_what_a_message_says_of_its_frame():
    desire = np.eye(8)[4]
    filled = published(alone("pose", np.zeros(12)), frame_id=30, age=2, drop_ratio=0.25, desire=desire)
    model, driving, odometry = (filled[name] for name in ("modelV2", "drivingModelData", "cameraOdometry"))
    assert (model["frameId"], model["frameIdExtra"], model["frameAge"]) == (30, 30, 2)
    assert model["frameDropPerc"] == driving["frameDropPerc"] == 25
    assert model["timestampEof"] == odometry["timestampEof"] == 1_500_000_000
    assert model["meta"]["laneChangeState"] == driving["meta"]["laneChangeState"] == "laneChangeStarting"
    assert driving["meta"]["laneChangeDirection"] == "right"
    assert "frameAge" not in driving and driving["modelExecutionTime"] == 0.01
    assert (model["valid"], odometry["valid"]) == (True, True)
    assert published(alone("pose", np.zeros(12)), dropped=1)["cameraOdometry"]["valid"] is False


def test_the_path_is_a_polynomial_of_the_fourth_degree_in_time():
    plan = np.zeros((33, 15))
    plan[:, 0], plan[:, 1] = 1 + 2 * TIMES - 0.1 * TIMES**4, TIMES**2
    path = published({"plan": plan, "plan_stds": plan})["drivingModelData"]["path"]
    assert path["xCoefficients"] == pytest.approx([1, 2, 0, 0, -0.1], abs=1e-6)
    assert path["yCoefficients"] == pytest.approx([0, 0, 1, 0, 0], abs=1e-6)
    assert path["zCoefficients"] == pytest.approx([0] * 5, abs=1e-6)


def test_lane_line_meta_is_of_the_two_lines_that_the_car_is_between():
    lines = np.zeros((4, 33, 2), np.float32)
    lines[:, 0, 0] = (-5, -1.5, 1.75, 5)
    heads = {"lane_lines": lines, "lane_lines_stds": lines, "lane_lines_prob": np.arange(8) / 10}
    about = published(heads)["drivingModelData"]["laneLineMeta"]
    assert about == {"leftY": -1.5, "rightY": 1.75, "leftProb": 0.3, "rightProb": 0.5}


def test_what_is_not_finite_becomes_null():
    filled = messages.camera_odometry(alone("pose", [np.nan, np.inf, *[0] * 10]))
    assert filled["trans"] == [None, None, 0]


def test_meta_columns_of_the_real_width():
    names = messages.disengagements(np.arange(55))
    assert names["gasDisengageProbs"].tolist() == [1, 7, 13, 19, 25]
    assert names["brakeDisengageProbs"].tolist() == [2, 8, 14, 20, 26]
    assert names["brake5MetersPerSecondSquaredProbs"].tolist() == [6, 12, 18, 24, 30]
    assert names["brakePressProbs"].tolist() == [32, 36, 40, 44, 48, 52]
    assert messages.disengagements(np.arange(48))["gasPressProbs"].tolist() == [7, 14, 21, 28, 35]
    between = messages.disengagements(np.arange(53))
    assert between["steerOverrideProbs"].tolist() == [3, 11, 19, 27, 35]
    assert between["gasPressProbs"].tolist() == [7, 15, 23, 31, 39]
    assert between["brakePressProbs"].tolist() == [8, 16, 24, 32, 40]
    assert "brakePressProbs" not in messages.disengagements(np.arange(48))
    assert messages.disengagements(np.arange(54)) is None


def test_hard_braking_must_be_foreseen_five_times_on_end():
    brakes = messages.Brakes()
    assert [brakes.foreseen(0.9, 0.9) for _ in range(6)] == [False] * 4 + [True] * 2
    assert not brakes.foreseen(0.9, 0.1)


@pytest.mark.parametrize(("probability", "colour"), [(0.001, "green"), (0.03, "yellow"), (0.5, "red")])
def test_confidence_after_ten_seconds(probability, colour):
    """All three ways of taking over equally likely in each slice of two seconds."""
    over = 1 - (1 - probability) ** np.arange(1, 6)
    each = 1 - (1 - over) ** (1 / 3)
    found = {f"{who}Probs": each for who in ("gasDisengage", "brakeDisengage", "steerOverride")}
    confidence = messages.Confidence()
    assert [confidence.colour(frame, found) for frame in range(0, 201, 40)][-1] == colour
