"""What a publisher fills from decoded outputs, by the field names of openpilot's messages.

Layouts of `meta` and thresholds are those of openpilot's modeld; a field whose head a model lacks is absent.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .action import REST, Action, next_action
from .decode import (
    ACCELERATION,
    DISTANCES,
    EULER,
    LEAD_COLUMNS,
    POSITION,
    RATE,
    SEATS,
    TIMES,
    VELOCITY,
    Array,
    Heads,
)
from .eras import Era
from .scene import LEFT, RIGHT
from .scene import RATE as FRAME_RATE

Fields = dict[str, Any]

CHANGES = {"left": LEFT, "right": RIGHT}
PATH_DEGREE = 4
OWN_LINES = {"left": 1, "right": 2}  # of the four lane lines, the two that the car drives between
LEAD_TIMES = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
LEAD_OFFSETS = (0.0, 2.0, 4.0)
HORIZONS = (2.0, 4.0, 6.0, 8.0, 10.0)
LINE_STRIDE = 2  # two probabilities for each lane line; the second is the line's

# From the first column after `engaged`: so many columns for each of the horizons, in this order.
SOON = {
    "gasDisengageProbs": 0,
    "brakeDisengageProbs": 1,
    "steerOverrideProbs": 2,
    "brake3MetersPerSecondSquaredProbs": 3,
    "brake4MetersPerSecondSquaredProbs": 4,
    "brake5MetersPerSecondSquaredProbs": 5,
}
META_LAYOUTS: dict[int, dict[str, slice]] = {
    55: {name: slice(1 + first, 31, 6) for name, first in SOON.items()}
    | {"gasPressProbs": slice(31, 55, 4), "brakePressProbs": slice(32, 55, 4)},
    53: {name: slice(1 + first, 41, 8) for name, first in SOON.items()}
    | {"gasPressProbs": slice(7, 41, 8), "brakePressProbs": slice(8, 41, 8)},
    48: {name: slice(1 + first, 36, 7) for name, first in SOON.items()} | {"gasPressProbs": slice(7, 36, 7)},
}

BRAKE_5_THRESHOLDS = np.array([0.05, 0.05, 0.15, 0.15, 0.15])
BRAKE_3_THRESHOLDS = np.array([0.7, 0.7])
CONFIDENCE_SECONDS = 2
GREEN, YELLOW = 0.01165, 0.06157


def numbers(array: Array) -> Any:
    """Nested lists of floats; what is not finite becomes None, since JSON has no word for it."""
    if array.ndim > 1:
        return [numbers(row) for row in array]
    return [value if math.isfinite(value) else None for value in array.tolist()]


def number(value: Any) -> float | None:
    """One float, or None when it is not finite."""
    return float(value) if math.isfinite(value) else None


@dataclass(frozen=True)
class Shot:
    """One frame that was run, as the runtime around the model knows it."""

    frame_id: int
    seconds: float  # that the model took
    age: int  # how many frames the camera had gone on when it began
    dropped: int  # frames between the one run before and this one
    drop_ratio: float  # share of frames dropped of late
    desire: Array  # what the driver wants, float32 (8,)

    @property
    def fields(self) -> Fields:
        """What a driving model's messages say of the frame itself."""
        return {
            "frameId": self.frame_id,
            "frameIdExtra": self.frame_id,
            "frameDropPerc": 100 * self.drop_ratio,
            "modelExecutionTime": self.seconds,
        }

    @property
    def end(self) -> int:
        """When the frame's exposure ended, in nanoseconds of the replay's own clock."""
        return self.frame_id * 1_000_000_000 // FRAME_RATE

    @property
    def lane_change(self) -> Fields:
        """A lane change that the driver asks for; what follows it further is no part of a model."""
        wanted = [side for side, flag in CHANGES.items() if self.desire[flag]]
        state = "laneChangeStarting" if wanted else "off"
        return {"laneChangeState": state, "laneChangeDirection": wanted[0] if wanted else "none"}


def action_fields(action: Action) -> Fields:
    """An action by the runtime's names."""
    return {
        "desiredCurvature": number(action.curvature),
        "desiredAcceleration": number(action.acceleration),
        "shouldStop": action.should_stop,
    }


def _curve(columns: Array, stds: Array | None = None, t: Any = ()) -> Fields:
    """x, y, z over the points of `columns` (33, 3), each with its std when there are any."""
    fields: Fields = {"t": list(t)} | {name: numbers(columns[:, at]) for at, name in enumerate("xyz")}
    if stds is not None:
        fields |= {f"{name}Std": numbers(stds[:, at]) for at, name in enumerate("xyz")}
    return fields


def _plan(heads: Heads) -> Fields:
    if "plan" not in heads:
        return {}
    plan, stds, t = heads["plan"], heads["plan_stds"], numbers(TIMES)
    named = {
        "position": POSITION,
        "velocity": VELOCITY,
        "acceleration": ACCELERATION,
        "orientation": EULER,
        "orientationRate": RATE,
    }
    fields = {name: _curve(plan[:, part], None, t) for name, part in named.items()}
    return fields | {"position": _curve(plan[:, POSITION], stds[:, POSITION], t)}


def _lines(heads: Heads, head: str, name: str) -> Fields:
    """`head` (n, 33, 2) holds y and z over fixed distances; the first std of y stands for a whole line."""
    if head not in heads:
        return {}
    lines = [_curve(np.column_stack([DISTANCES, line])) for line in heads[head]]
    return {f"{name}s": lines, f"{name}Stds": numbers(heads[f"{head}_stds"][:, 0, 0])}


def _line_probabilities(heads: Heads) -> Fields:
    if "lane_lines_prob" not in heads:
        return {}
    return {"laneLineProbs": numbers(heads["lane_lines_prob"][1::LINE_STRIDE])}


def _leads(heads: Heads) -> Fields:
    if "lead" not in heads:
        return {}
    return {"leadsV3": [_lead(heads, index) for index in range(len(heads["lead"]))]}


def _lead(heads: Heads, index: int) -> Fields:
    columns = list(zip("xyva", range(LEAD_COLUMNS), strict=True))
    fields: Fields = {"t": list(LEAD_TIMES), "probTime": LEAD_OFFSETS[index]}
    fields |= {name: numbers(heads["lead"][index][:, at]) for name, at in columns}
    fields |= {f"{name}Std": numbers(heads["lead_stds"][index][:, at]) for name, at in columns}
    if "lead_prob" in heads:
        fields["prob"] = number(heads["lead_prob"][index])
    return fields


def camera_odometry(heads: Heads) -> Fields:
    """cameraOdometry: how the camera moved (m/s, rad/s), how the wide one is turned, where the road is."""
    fields: Fields = {}
    if "pose" in heads:
        pose, stds = heads["pose"], heads["pose_stds"]
        fields |= {"trans": numbers(pose[:3]), "rot": numbers(pose[3:])}
        fields |= {"transStd": numbers(stds[:3]), "rotStd": numbers(stds[3:])}
    if "wide_from_device_euler" in heads:
        fields["wideFromDeviceEuler"] = numbers(heads["wide_from_device_euler"])
        fields["wideFromDeviceEulerStd"] = numbers(heads["wide_from_device_euler_stds"])
    if "road_transform" in heads:
        fields["roadTransformTrans"] = numbers(heads["road_transform"][:3])
        fields["roadTransformTransStd"] = numbers(heads["road_transform_stds"][:3])
    return fields


def driver_state(heads: Heads, shot: Shot) -> Fields:
    """driverStateV2: each seat's face (radians, and its place in the picture) and probabilities."""
    fields: Fields = {
        "frameId": shot.frame_id,
        "modelExecutionTime": shot.seconds,
        "gpuExecutionTime": shot.seconds,  # a replay has no clock of the device's own
        "rawPredictions": "",  # empty on the road too, unless asked for
    }
    sides = zip(("leftDriverData", "rightDriverData"), SEATS, strict=True)
    fields |= {name: seat for name, side in sides if (seat := _seat(heads, side))}
    if "wheel_on_right" in heads:
        fields["wheelOnRightProb"] = number(heads["wheel_on_right"][0])
    return fields


DRIVER_PROBABILITIES = {
    "face_prob": "faceProb",
    "left_eye_prob": "leftEyeProb",
    "right_eye_prob": "rightEyeProb",
    "left_blink_prob": "leftBlinkProb",
    "right_blink_prob": "rightBlinkProb",
    "sunglasses_prob": "sunglassesProb",
    "using_phone_prob": "phoneProb",
    "sleep_prob": "sleepProb",
}


def _seat(heads: Heads, side: str) -> Fields:
    fields: Fields = {}
    if (face := heads.get(f"face_descs{side}")) is not None:
        stds = heads[f"face_descs{side}_stds"]
        fields |= {"faceOrientation": numbers(face[:3]), "faceOrientationStd": numbers(stds[:3])}
        fields |= {"facePosition": numbers(face[3:5]), "facePositionStd": numbers(stds[3:5])}
    for head, name in DRIVER_PROBABILITIES.items():
        if head + side in heads:
            fields[name] = number(heads[head + side][0])
    return fields


def driving_data(model: Fields, shot: Shot) -> Fields:
    """drivingModelData: what is kept of a modelV2 for every drive."""
    fields: Fields = {"valid": model["valid"], **shot.fields, "meta": shot.lane_change}
    if "action" in model:
        fields["action"] = model["action"]
    if len(model.get("laneLines", ())) > max(OWN_LINES.values()) and "laneLineProbs" in model:
        sides = OWN_LINES.items()
        fields["laneLineMeta"] = {f"{side}Y": model["laneLines"][line]["y"][0] for side, line in sides}
        fields["laneLineMeta"] |= {f"{side}Prob": model["laneLineProbs"][line] for side, line in sides}
    if "position" in model:
        fields["path"] = path_of(np.array([model["position"][axis] for axis in "xyz"], np.float64).T)
    return fields


def path_of(position: Array) -> Fields:
    """Coefficients, lowest power first, of the polynomials in time nearest to `position` (33, 3), metres."""
    if not np.isfinite(position).all():
        return {f"{axis}Coefficients": [None] * (PATH_DEGREE + 1) for axis in "xyz"}
    powers = np.vander(TIMES, PATH_DEGREE + 1, increasing=True)
    columns, *_ = np.linalg.lstsq(powers, position, rcond=None)
    return {f"{axis}Coefficients": numbers(columns[:, at]) for at, axis in enumerate("xyz")}


class Brakes:
    """Whether hard braking has been foreseen for several frames on end."""

    def __init__(self) -> None:
        self.strong = np.zeros(len(BRAKE_5_THRESHOLDS))
        self.medium = np.zeros(len(BRAKE_3_THRESHOLDS))

    def foreseen(self, strong: float, medium: float) -> bool:
        """One frame's probabilities of braking with 5 and with 3 m/s² within two seconds."""
        self.strong = np.append(self.strong[1:], strong)
        self.medium = np.append(self.medium[1:], medium)
        return bool((self.strong > BRAKE_5_THRESHOLDS).all() and (self.medium > BRAKE_3_THRESHOLDS).all())


class Confidence:
    """How sure the model has been that nobody would take over: green, yellow or red."""

    def __init__(self) -> None:
        count = len(HORIZONS)
        self.buffer = np.zeros((count, count))

    def colour(self, frame_id: int, probabilities: Fields) -> str:
        """The colour at this frame; every two seconds the frame's own probabilities are taken in.

        A prediction made 2k seconds ago is held against the slice of time that has come since.
        """
        if frame_id % (CONFIDENCE_SECONDS * FRAME_RATE) == 0:
            kept = [
                1 - probabilities[f"{who}Probs"]
                for who in ("brakeDisengage", "gasDisengage", "steerOverride")
            ]
            taken = 1 - kept[0] * kept[1] * kept[2]
            slices = np.append(taken[0], np.diff(taken) / (1 - taken[:-1]))
            self.buffer = np.vstack([self.buffer[1:], slices])
        score = float(np.fliplr(self.buffer).trace()) / len(HORIZONS)
        return "green" if score < GREEN else "yellow" if score < YELLOW else "red"


class Publisher:
    """Fills a driving model's messages, frame by frame."""

    def __init__(self, speed: float, era: Era, version: int | None) -> None:
        self.speed, self.era, self.version = speed, era, version
        self.action = REST
        self.brakes = Brakes()
        self.confidence = Confidence()

    def messages(self, heads: Heads, shot: Shot) -> Fields:
        """modelV2, drivingModelData and cameraOdometry of one frame, of which the last may be missing."""
        model: Fields = {
            "valid": True,  # a replay's calibration is known from the first frame on
            **shot.fields,
            "frameAge": shot.age,
            "timestampEof": shot.end,
            **_plan(heads),
            **_lines(heads, "lane_lines", "laneLine"),
            **_line_probabilities(heads),
            **_lines(heads, "road_edges", "roadEdge"),
            **_leads(heads),
        }
        model["meta"] = {**self._meta(heads), **shot.lane_change}
        model |= self._from_meta(heads, shot.frame_id, model["meta"])
        action = next_action(heads, self.action, self.speed, self.era, self.version)
        if action is not None:
            self.action = action
            model["action"] = action_fields(action)
        driving = driving_data(model, shot)
        if (odometry := camera_odometry(heads)) == {}:
            return {"modelV2": model, "drivingModelData": driving}
        known = {"valid": not shot.dropped, "frameId": shot.frame_id, "timestampEof": shot.end}
        return {"modelV2": model, "drivingModelData": driving, "cameraOdometry": known | odometry}

    def _meta(self, heads: Heads) -> Fields:
        fields: Fields = {}
        if "desire_state" in heads:
            fields["desireState"] = numbers(heads["desire_state"])
        if "desire_pred" in heads:
            fields["desirePrediction"] = numbers(heads["desire_pred"].reshape(-1))
        if "meta" in heads:
            fields["engagedProb"] = number(heads["meta"][0])
            if (found := disengagements(heads["meta"])) is not None:
                named = {name: numbers(values) for name, values in found.items()}
                fields["disengagePredictions"] = {"t": list(HORIZONS), **named}
        return fields

    def _from_meta(self, heads: Heads, frame_id: int, meta: Fields) -> Fields:
        """What is known only over several frames: confidence, and hard braking (which joins `meta`)."""
        found = disengagements(heads["meta"]) if "meta" in heads else None
        if found is None:
            return {}
        strong, medium = (found[f"brake{one}MetersPerSecondSquaredProbs"][0] for one in (5, 3))
        meta["hardBrakePredicted"] = self.brakes.foreseen(strong, medium)
        return {"confidence": self.confidence.colour(frame_id, found)}


def disengagements(meta: Array) -> dict[str, Array] | None:
    """Probabilities by field name, from `meta` (n,); None when n is a width whose layout is not known."""
    layout = META_LAYOUTS.get(meta.size)
    return {name: meta[part] for name, part in layout.items()} if layout else None
