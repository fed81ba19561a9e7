"""The reference gate, on arrays: what is wrong in one group of numbers is refused, honest rounding is not.

Where a head's numbers lie is written down here once more, from the formats' documents and not from `rules/`.
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from rules import catalog
from rules.catalog import FlagSet, Limits
from rules.gates import numbers
from rules.gates.evidence import Evidence
from rules.networks import groups, reference

FRAMES = 16
HALF_STEP = 2.0**-11  # of a number, when it is rounded to float16
NOISE = 1e-3  # of a group, root mean square: what float16 was measured to do, but for the hidden state
SCALES = {"position": 100.0, "velocity": 20.0, "acceleration": 1.0, "euler": 0.05, "rate": 0.01}

Array = Any
Group = tuple[str, Array]


# ---- which numbers are read together, by the documents


def plan(start: int) -> Iterator[Group]:
    """Means then log-stds of 33 points of 15 columns."""
    cells = start + np.arange(990).reshape(2, 33, 15)
    for half, kind in enumerate(("", "std ")):
        for number, name in enumerate(SCALES):
            for axis in range(3):
                yield f"{kind}{name}.{'xyz'[axis]}", cells[half, :, 3 * number + axis]


def hypotheses(start: int, count: int, points: int, columns: int, weights: int) -> Iterator[Group]:
    """Of each hypothesis: means, log-stds and weights."""
    size = points * columns
    rows = start + np.arange(count * (2 * size + weights)).reshape(count, -1)
    for row in rows:
        for half in row[: 2 * size].reshape(2, points, columns):
            yield from ((f"column {column}", half[:, column]) for column in range(columns))
    yield "weights", rows[:, 2 * size :]


def lines(start: int, count: int) -> Iterator[Group]:
    """Means then log-stds of y and z at 33 points of each line."""
    cells = start + np.arange(count * 132).reshape(2, count, 33, 2)
    for half, line, axis in np.ndindex(2, count, 2):
        yield f"line {line}.{'yz'[axis]} {half}", cells[half, line, :, axis]


def leads(start: int) -> Iterator[Group]:
    """Means then log-stds of x, y, v and a at six times of three leads."""
    cells = start + np.arange(144).reshape(2, 3, 6, 4)
    for half, lead, value in np.ndindex(2, 3, 4):
        yield f"lead {lead}.{'xyva'[value]} {half}", cells[half, lead, :, value]


def triples(start: int, count: int) -> Iterator[Group]:
    """Three numbers at a time."""
    return ((f"triple {n}", start + 3 * n + np.arange(3)) for n in range(count))


def rows(start: int, count: int) -> Iterator[Group]:
    """Eight desires at a time."""
    return ((f"row {n}", start + 8 * n + np.arange(8)) for n in range(count))


def columns(start: int, count: int) -> Iterator[Group]:
    """Each number by itself."""
    return ((f"column {n}", start + np.array([n])) for n in range(count))


def channels(start: int, ends: tuple[int, ...]) -> Iterator[Group]:
    """Sixteen numbers that nothing tells apart, and what is left over with the last of them."""
    return ((f"channels {a}", start + np.arange(a, b)) for a, b in itertools.pairwise(ends))


HEADS: dict[str, tuple[int, Callable[[int], Iterator[Group]]]] = {
    "plan": (990, plan),
    "lane_lines": (528, lambda start: lines(start, 4)),
    "road_edges": (264, lambda start: lines(start, 2)),
    "lead": (144, leads),
    "pose": (12, lambda start: triples(start, 4)),
    "road_transform": (12, lambda start: triples(start, 4)),
    "wide_from_device_euler": (6, lambda start: triples(start, 2)),
    "desire_pred": (32, lambda start: rows(start, 4)),
    "desire_state": (8, lambda start: rows(start, 1)),
    "meta": (55, lambda start: columns(start, 55)),
    "lane_lines_prob": (8, lambda start: columns(start, 8)),
    "lead_prob": (3, lambda start: columns(start, 3)),
    "desired_curvature": (2, lambda start: columns(start, 2)),
    "action": (4, lambda start: columns(start, 4)),
    "hidden_state": (40, lambda start: channels(start, (0, 16, 40))),
}
OLD_HEADS: dict[str, tuple[int, Callable[[int], Iterator[Group]]]] = {
    "plan": (4955, lambda start: hypotheses(start, 5, 33, 15, 1)),
    "lead": (102, lambda start: hypotheses(start, 2, 6, 4, 3)),
    "sim_pose": (12, lambda start: triples(start, 4)),
    "face_descs_lhd": (12, lambda start: triples(start, 4)),
    "left_eye_prob_lhd": (1, lambda start: columns(start, 1)),
    "wheel_on_right": (1, lambda start: columns(start, 1)),
}


class Model:
    """A network that gives back what it is fed, its output cut into heads; and what it should say."""

    def __init__(self, folder: Path, heads: dict[str, tuple[int, Callable[[int], Iterator[Group]]]]) -> None:
        random = np.random.RandomState(5)
        self.groups: list[tuple[str, str, Array]] = []
        slices, start = {}, 0
        for head, (width, read) in heads.items():
            slices[head] = slice(start, start + width)
            self.groups += [(head, name, places.ravel()) for name, places in read(start)]
            start += width
        self.expected = np.zeros((FRAMES, start))
        for _, name, places in self.groups:
            self.expected[:, places] = plausible(random, name, places.size)
        identity(folder / "model.onnx", (1, start))
        cuts = {head: [cut.start, cut.stop] for head, cut in slices.items()}
        self.spec = {"path": str(folder / "model.onnx"), "output_slices": cuts}
        self.network = reference.Network(self.spec)
        self.slices = slices
        self.alone: dict[str, reference.Network] = {}
        for head, (width, _) in heads.items():
            path = folder / f"{head}.onnx"
            identity(path, (1, width))
            self.alone[head] = reference.Network({"path": str(path), "output_slices": {head: [0, width]}})

    def refused(self, found: Array) -> dict[str, str | None]:
        """Subject → group, of what the gate refuses of outputs that should be `expected`."""
        return refused(self.network, self.expected[:, None], found[:, None])

    def refused_of(self, head: str, found: Array) -> dict[str, str | None]:
        """The same, of one head of the outputs."""
        cut = self.slices[head]
        return refused(self.alone[head], self.expected[:, None, cut], found[:, None, cut])


def identity(path: Path, shape: tuple[int, ...]) -> None:
    """An ONNX file whose output is its input."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", ["input"], ["outputs"])],
        "model",
        [value("input", TensorProto.DOUBLE, shape)],
        [value("outputs", TensorProto.DOUBLE, shape)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)


def plausible(random: np.random.RandomState, name: str, size: int) -> Array:
    """A group's numbers in each frame, at the size that a car's have: a curve, and what each frame adds."""
    scale = SCALES.get(name.partition(".")[0], 1.0)
    curve = np.linspace(0.05, 1, size) ** 2 * random.choice([-1, 1])
    walk = np.cumsum(random.normal(0, 0.2, (FRAMES, 1)), axis=0)
    own = random.normal(0, 0.1, (FRAMES, size)).cumsum(axis=0)
    return scale * (random.uniform(0.3, 1) * curve + walk + own)


def steps_of(expected: Array, found: Array) -> reference.Steps:
    """Frames as the worker would have seen them."""
    pairs = enumerate(zip(expected, found, strict=True))
    return {("1928x1208", number, "model"): {"in": [e], "out": [f]} for number, (e, f) in pairs}


def refused(network: reference.Network, expected: Array, found: Array, **tolerance: float) -> Any:
    """Subject → group, of what the gate refuses."""
    told = {**reference.judged({"model": network}, steps_of(expected, found)), "half": True}
    evidence = Evidence({}, {}, {}, FlagSet("some", {}, None, tolerance), Limits(), {}, 0, told)
    return {one.subject: one.group for one in numbers.reference(evidence) if not one.passed}


@pytest.mark.parametrize(("half", "passes"), [(True, True), (False, False)])
def test_iqpilot_holds_a_network_of_float32_to_what_its_guide_does(half: bool, passes: bool) -> None:
    """An error of 1e-3: no news from float16, and ten times what IQPilot admits of float32."""
    flag_set = catalog.load(Path(__file__).parent.parent / "models.toml").flag_sets["qcom-iqpilot"]
    verdict = {"error": 1e-3, "group": "all", "correlation": None, "correlated": None}
    told = {"heads": {"model.plan": verdict}, "half": half}
    findings = list(numbers.reference(Evidence({}, {}, {}, flag_set, Limits(), {}, 0, told)))
    assert [(one.passed, one.limit) for one in findings] == [(passes, 0.02 if half else 1e-4)]


@pytest.fixture(scope="module", params=[HEADS, OLD_HEADS], ids=["new", "old"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The heads of the newest models, and those of old ones and of driver monitoring. Read only."""
    return Model(tmp_path_factory.mktemp("model"), request.param)


# ---- one group wrong


def shifted(numbers: Array) -> Array:
    """Each number where the one before it belongs, as EyeLike's k moves them."""
    moved = np.zeros_like(numbers)
    moved[:, :-1] = numbers[:, 1:]
    return moved


def late(numbers: Array) -> Array:
    """Each frame's numbers one frame late."""
    return np.concatenate([numbers[:1], numbers[:-1]])


MUTATIONS: dict[str, Callable[[Array], Array]] = {
    "zero": np.zeros_like,
    "negated": np.negative,
    "half as large again": lambda numbers: 1.5 * numbers,
    "held": lambda numbers: np.broadcast_to(numbers[:1], numbers.shape),
    "late": late,
    "shifted": shifted,
    "backwards": lambda numbers: numbers[:, ::-1],
}


@pytest.mark.parametrize("how", MUTATIONS)
def test_one_group_wrong_is_refused_and_named(model: Model, how: str) -> None:
    for head, name, places in model.groups:
        found = model.expected.copy()
        found[:, places] = MUTATIONS[how](model.expected[:, places])
        if np.array_equal(found, model.expected):  # a single number cannot be shifted or turned round
            assert places.size == 1
            continue
        refusal = model.refused_of(head, found)
        assert refusal, (head, name)
        assert len(set(refusal.values())) == 1, (head, name, refusal)


def test_two_groups_exchanged_are_refused(model: Model) -> None:
    """Every group with the next one of its head: columns, lines, values, means and log-stds."""
    pairs = zip(model.groups, model.groups[1:], strict=False)
    for (head, name, first), (other, _, second) in pairs:
        if head == other and first.size == second.size:
            found = model.expected.copy()
            found[:, first], found[:, second] = model.expected[:, second], model.expected[:, first]
            assert f"model.{head}" in model.refused_of(head, found), (head, name)


def test_means_and_stds_exchanged_are_refused(model: Model) -> None:
    for head, cut in model.slices.items():
        if head in ("plan", "lane_lines", "road_edges", "lead", "pose", "road_transform"):
            places = np.arange(cut.start, cut.stop)
            found = model.expected.copy()
            found[:, places] = model.expected[:, np.roll(places, places.size // 2)]
            assert f"model.{head}" in model.refused(found)


def rounded(random: np.random.RandomState, model: Model) -> Array:
    """What float16 makes of the expected outputs: each group's noise, then the result's own rounding."""
    found = model.expected.copy()
    for _, _, places in model.groups:
        size = np.sqrt((model.expected[:, places] ** 2).mean())
        found[:, places] += NOISE * size * random.standard_normal((FRAMES, places.size))
    return found * (1 + HALF_STEP * random.uniform(-1, 1, found.shape))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_honest_rounding_passes(model: Model, seed: int) -> None:
    assert model.refused(rounded(np.random.RandomState(seed), model)) == {}


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    at=st.integers(0, 10**6),
    how=st.sampled_from(("zero", "negated", "half as large again", "late")),
)
def test_one_group_wrong_is_refused_beneath_honest_rounding(
    model: Model, seed: int, at: int, how: str
) -> None:
    head, name, places = model.groups[at % len(model.groups)]
    found = rounded(np.random.RandomState(seed), model)
    found[:, places] = MUTATIONS[how](found[:, places])
    refusal = model.refused(found)
    assert {subject.split()[0] for subject in refusal} == {f"model.{head}"}, (head, name, refusal)


def test_the_process_refuses_a_wrong_group(model: Model, tmp_path: Path) -> None:
    head, _, places = model.groups[12]
    found = model.expected.copy()
    found[:, places] *= -1
    observed, arrays = tmp_path / "observed.npz", {}
    for (label, number, role), sides in steps_of(model.expected[:, None], found[:, None]).items():
        arrays |= {f"{label}/{number}/{role}/{side}/0": one for side, (one,) in sides.items()}
    np.savez(observed, **arrays)
    sha256 = hashlib.sha256(observed.read_bytes()).hexdigest()
    with reference.prepared({"model": model.spec}, tmp_path / "log", "pop") as child:
        told = child.compare(observed, sha256)["heads"]
    wrong = [name for name, verdict in told.items() if verdict["error"] > 0]
    assert wrong == [f"model.{head}"]
    assert told[wrong[0]]["error"] > 1
    assert told[wrong[0]]["correlation"] == pytest.approx(-1)


# ---- groups


@given(
    name=st.sampled_from([*HEADS, *OLD_HEADS, "planplus", "something", "face_descs_rhd", "pad"]),
    width=st.integers(0, 1200) | st.sampled_from([4955, 495, 990, 1982, 102, 51, 153]),
)
def test_each_number_of_a_head_is_in_one_group(name: str, width: int) -> None:
    found = groups.of_head(name, width)
    places = np.concatenate([np.zeros(0, int), *(one.places.ravel() for one in found)])
    assert sorted(places.tolist()) == list(range(width))
    labels = [label for one in found for label in one.names]
    assert len(set(labels)) == len(labels)
    assert all(len(one.names) == len(one.places) for one in found)


@given(shape=st.lists(st.integers(1, 5), max_size=4))
def test_an_output_is_grouped_along_each_of_its_axes(shape: list[int]) -> None:
    found = groups.of_output(shape)
    assert len(found) == max(1, sum(size > 1 for size in shape))
    for one in found:
        assert sorted(one.places.ravel().tolist()) == list(range(int(np.prod(shape))))


# ---- outputs that no slice cuts


def output(tmp_path: Path, *shape: int) -> tuple[reference.Network, Array]:
    """A network without slices, and 8 frames of noise."""
    identity(tmp_path / "model.onnx", shape)
    network = reference.Network({"path": str(tmp_path / "model.onnx"), "output_slices": None})
    return network, np.random.RandomState(3).standard_normal((8, *shape))


@pytest.mark.parametrize("place", [(0, 2), (0, slice(None), 1), (0, slice(None), slice(None), 3)])
def test_a_channel_is_judged_by_itself_on_whatever_axis(tmp_path: Path, place: tuple[Any, ...]) -> None:
    """All else is a thousand times larger."""
    network, expected = output(tmp_path, 1, 5, 6, 7)
    expected *= 1000
    small = (slice(None), *place)
    expected[small] /= 1000
    found = expected.copy()
    found[small] = expected[small][::-1]
    axis = len(place) - 1
    assert refused(network, expected, expected) == {}
    assert refused(network, expected, found)["model.output 0"] == f"index {place[-1]} of axis {axis}"


def test_each_number_of_a_vector_is_judged_by_itself(tmp_path: Path) -> None:
    """Half of them are ten thousand times larger."""
    network, expected = output(tmp_path, 1, 24)
    expected[..., :12] *= 10000
    found = expected.copy()
    found[..., 12:] = softmax(expected[..., 12:])
    assert refused(network, expected, found)


def softmax(values: Array) -> Array:
    """Along the last axis."""
    raised = np.exp(values - values.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def test_probabilities_of_half_precision_pass_and_those_of_another_axis_do_not(tmp_path: Path) -> None:
    """Rare classes are as small as 1e-8; a score is off by a thousandth of the scores' size."""
    network, scores = output(tmp_path, 1, 6, 40)
    scores = 4 * scores + np.linspace(-6, 6, 40)
    noise = 4e-3 * np.random.RandomState(4).standard_normal(scores.shape)
    expected, found = softmax(scores), softmax(scores + noise).astype(np.float16).astype(np.float64)
    assert refused(network, expected, found) == {}
    other = np.swapaxes(softmax(np.swapaxes(scores, -1, -2)), -1, -2)
    assert refused(network, expected, other)


# ---- groups that hardly vary


def test_a_constant_group_may_be_off_by_its_rounding_and_no_more(tmp_path: Path) -> None:
    network, expected = output(tmp_path, 1, 3, 8)
    expected[:, :, 1] = 30.0
    for off, good in ((30 * HALF_STEP, True), (0.05, True), (0.1, False)):
        found = expected.copy()
        found[:, :, 1] += off
        assert (refused(network, expected, found) == {}) == good, off


def test_a_group_that_is_zero_stays_near_zero(tmp_path: Path) -> None:
    network, expected = output(tmp_path, 1, 3, 8)
    expected[:, :, 1] = 0
    for off, good in ((1e-5, True), (1e-3, False)):
        found = expected.copy()
        found[:, :, 1] = off
        assert (refused(network, expected, found) == {}) == good, off


def test_what_varies_little_must_still_follow(tmp_path: Path) -> None:
    """A profile of metres that moves by centimetres: that is lost, well within the tolerance of metres."""
    network, expected = output(tmp_path, 1, 3, 33)
    curve = np.linspace(-2, 2, 33)
    expected[:, 0, 1] = curve + 0.05 * expected[:, 0, 1, :1]
    found = expected.copy()
    found[:, 0, 1] = expected[:, 0, 1].mean(axis=0)
    assert refused(network, expected, found, default=0.05)
    found[:, 0, 1] = expected[:, 0, 1].mean(axis=0) - (expected[:, 0, 1] - expected[:, 0, 1].mean(axis=0)) / 4
    assert "model.output 0 correlation" in refused(network, expected, found, default=0.05)


def test_numbers_that_are_none_on_both_sides_are_left_out(tmp_path: Path) -> None:
    network, expected = output(tmp_path, 1, 3, 8)
    expected[:, 0, 1, 2:5] = [np.inf, -np.inf, np.nan]
    assert refused(network, expected, expected) == {}
    for place in (2, 3, 4):
        found = expected.copy()
        found[3, 0, 1, place] = -found[3, 0, 1, place] if place < 4 else np.inf
        assert refused(network, expected, found) == {"model.output 0": None}
    assert refused(network, expected, np.nan_to_num(expected)) == {"model.output 0": None}
