"""Flags: the table against the tinygrad that is installed, kinds of value, and what a set comes to."""

import importlib.util
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules import flags

NAMES = sorted(flags.known(["0.14.0"]))


def tinygrad_sources():
    spec = importlib.util.find_spec("tinygrad")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("tinygrad is not installed")
    return Path(spec.submodule_search_locations[0])


def test_every_context_variable_of_tinygrad_is_known():
    helpers = (tinygrad_sources() / "helpers.py").read_text("utf-8")
    read = set(re.findall(r'ContextVar\("([A-Z0-9_]+)"', helpers)) | {"DEV"}
    assert len(read) > 40
    assert read <= set(flags.known(["0.14.0"]))


def test_every_flag_of_the_table_is_read_by_tinygrad():
    sources = "\n".join(file.read_text("utf-8") for file in sorted(tinygrad_sources().rglob("*.py")))
    # a few names are joined from parts in the source, so quoted words are enough
    unread = [name for name in flags.TINYGRAD["0.14.0"] if not re.search(rf"[\"']{name}[\"']", sources)]
    assert unread == []


def test_flags_of_compile_scripts_are_known_to_every_toolchain():
    for pins in ([], [None], ["0.14.0"], ["9.0.0"]):
        assert {"WARP_DEV", "FRAME_DEV", "TC_MIN_GLOBALS", "QCOM_PRIORITY"} <= set(flags.known(pins))


@pytest.mark.parametrize(
    ("name", "value", "expected", "near"),
    [
        ("FLOAT16", 2, "0 or 1", None),
        ("FLOAT16", "1", "0 or 1", "1"),
        ("IMAGE", True, "a whole number", "1"),
        ("IMAGE", "2", "a whole number", "2"),
        ("IMAGE", 2.0, "a whole number", None),
        ("DEV", "qcom", "a device target", "QCOM"),
        ("DEV", "QCM", "a device target", "QCOM"),
        ("DEV", "usb+amd:llvm", "a device target", "USB+AMD:LLVM"),
        ("DEV", 1, "a device target", None),
        ("DEV", "", "a device target", None),
        ("WARP_DEV", "CPU;", "a device target", "CPU"),
        ("DEFAULT_FLOAT", "float 32", "one word", None),
        ("EMULATED_DTYPES", "half,,bfloat16", "a list of words", None),
        ("BEAM_MIN_PROGRESS", float("nan"), "a number", None),
    ],
)
def test_a_value_of_the_wrong_kind(name, value, expected, near):
    (fault,) = flags.check({name: value}, flags.known(["0.14.0"]), [])
    assert (fault.name, fault.near) == (name, near)
    assert fault.expected.startswith(expected)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("FLOAT16", True, "1"),
        ("FLOAT16", 0, "0"),
        ("IMAGE", 2, "2"),
        ("TC_SELECT", -1, "-1"),
        ("DEV", "CPU:X86", "CPU:X86"),
        ("DEV", "CPU:LLVM:x86_64,znver4", "CPU:LLVM:x86_64,znver4"),
        ("DEV", "USB:0+AMD:LLVM;CPU", "USB:0+AMD:LLVM;CPU"),
        ("EMULATED_DTYPES", ["half", "bfloat16"], "half,bfloat16"),
        ("BEAM_MIN_PROGRESS", 0.25, "0.25"),
    ],
)
def test_a_good_value_and_its_text(name, value, text):
    assert flags.check({name: value}, flags.known(["0.14.0"]), []) == []
    assert flags.resolve({"set": {name: value}}, "set") == ({name: text}, None)


def test_unknown_names_get_the_nearest_known_one():
    (fault,) = flags.check({"OPENPILOT_HACK": 1}, flags.known(["0.14.0"]), [])
    assert fault.near == "OPENPILOT_HACKS"
    assert 'unchecked = ["OPENPILOT_HACK"]' in fault.expected


def test_an_unchecked_name_takes_anything_an_environment_can_hold():
    table = flags.known(["0.14.0"])
    for value in (1, True, 0.5, "a b", ["a", "b"]):
        assert flags.check({"NEW": value}, table, ["NEW"]) == []
    assert flags.check({"NEW": "a\x00b"}, table, ["NEW"]) != []


@given(
    st.dictionaries(st.sampled_from(NAMES), st.one_of(st.integers(), st.text(), st.booleans(), st.floats()))
)
def test_a_set_without_faults_resolves_to_text_without_control_characters(values):
    faulty = {fault.name for fault in flags.check(values, flags.known(["0.14.0"]), [])}
    resolved, _ = flags.resolve({"set": {k: v for k, v in values.items() if k not in faulty}}, "set")
    assert set(resolved) == set(values) - faulty
    assert not any(flags.CONTROL.search(text) for text in resolved.values())


SETS = {
    "root": {"DEV": "QCOM", "IMAGE": 2, "QCOM_PRIORITY": 8, "requires": "device:QCOM"},
    "middle": {"extends": "root", "IMAGE": 1, "unchecked": ["NEW"], "absent": ["QCOM_PRIORITY"]},
    "leaf": {"extends": "middle", "FLOAT16": True, "NEW": "x"},
}


def test_the_nearest_set_wins_and_absent_flags_are_taken_out():
    values = {"DEV": "QCOM", "FLOAT16": "1", "IMAGE": "1", "NEW": "x"}
    assert flags.resolve(SETS, "leaf") == (values, "device:QCOM")
    assert list(flags.resolve(SETS, "leaf")[0]) == sorted(values)
    assert flags.gathered(SETS, "leaf", "unchecked") == {"NEW"}


def test_lineage_stops_at_a_cycle_and_at_an_unknown_name():
    tables = {"a": {"extends": "b"}, "b": {"extends": "a"}, "c": {"extends": "nowhere"}}
    assert flags.lineage(tables, "a", "extends") == ["a", "b", "a"]
    assert flags.lineage(tables, "c", "extends") == ["c"]
    assert flags.lineage(SETS, "leaf", "extends") == ["leaf", "middle", "root"]


@pytest.mark.parametrize(
    ("target", "device"),
    [("CPU:X86", "CPU"), ("USB+AMD:LLVM", "AMD"), ("QCOM", "QCOM"), ("CUDA;CPU", "CUDA"), ("PCI:0+NV", "NV")],
)
def test_the_device_of_a_target(target, device):
    assert flags.device(target) == device


def test_only_sets_that_compile_for_the_cpu_need_pins():
    assert flags.missing_pins({"DEV": "CPU:X86"}) == ["NUM_CPU_THREADS", "PARALLEL"]
    assert flags.missing_pins({"DEV": "QCOM", "WARP_DEV": "CPU", "PARALLEL": 0}) == ["NUM_CPU_THREADS"]
    assert flags.missing_pins({"DEV": "QCOM"}) == []
