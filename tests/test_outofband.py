"""Out-of-band pickles: round trips, the documented form, every cut refused, and what they cost in memory."""

import json
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract import with_tinygrad
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rules.inspection.container import container_of, place_of
from rules.inspection.whole import opened
from rules.worker import artifact, outofband

Content = dict[str, Any]
MIB = 1 << 20

buffers = st.lists(st.binary(max_size=300), max_size=6)
trees = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=3)
files = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def content_of(blocks: list[bytes], tree: Content) -> Content:
    """Arrays, which numpy pickles out of band, beside what has no buffers."""
    return {"tree": tree, "arrays": [np.frombuffer(bytearray(block), np.uint8) for block in blocks]}


def equal(left: Content, right: Content) -> bool:
    """Whether two contents are the same."""
    arrays = [[one.tobytes() for one in content["arrays"]] for content in (left, right)]
    return bool(left["tree"] == right["tree"] and arrays[0] == arrays[1])


@files
@given(buffers, trees)
def test_what_was_written_is_read(tmp_path: Path, blocks: list[bytes], tree: Content) -> None:
    path = tmp_path / "a.pkl"
    outofband.dump(content := content_of(blocks, tree), path)
    assert equal(outofband.load(path), content)
    assert equal(artifact.read(path), content)
    assert [one.name for one in tmp_path.iterdir()] == ["a.pkl"]


@files
@given(buffers, trees)
def test_the_form_is_the_documented_one(tmp_path: Path, blocks: list[bytes], tree: Content) -> None:
    path = tmp_path / "a.pkl"
    outofband.dump(content := content_of(blocks, tree), path)
    raw = path.read_bytes()
    count = int.from_bytes(raw[:8], "little", signed=True)
    at, found = 8 + count, []
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 8], "little", signed=True)
        found.append(bytearray(raw[at + 8 : at + 8 + size]))
        at += 8 + size
    assert at == len(raw)
    assert [bytes(one) for one in found] == blocks
    assert raw[8:10] == b"\x80\x05"
    assert equal(pickle.loads(raw[8 : 8 + count], buffers=found), content)
    with opened(place_of(path).files) as whole:
        container = container_of(whole)
    assert (container.start, container.stop, container.buffers) == (8, 8 + count, [len(b) for b in blocks])


@files
@given(buffers, trees)
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, blocks: list[bytes], tree: Content) -> None:
    path = tmp_path / "a.pkl"
    outofband.dump(content_of(blocks, tree), path)
    raw = path.read_bytes()
    for size in range(len(raw)):
        path.write_bytes(raw[:size])
        with pytest.raises(ValueError, match=f"^a.pkl: truncated at byte {size}: "):
            outofband.load(path)


@files
@given(buffers, st.binary(min_size=1, max_size=40))
def test_bytes_after_the_end_are_refused(tmp_path: Path, blocks: list[bytes], more: bytes) -> None:
    path = tmp_path / "a.pkl"
    outofband.dump(content_of(blocks, {}), path)
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(more)
    with pytest.raises(ValueError, match=f"^a.pkl: {len(more)} trailing bytes from byte {end}$"):
        outofband.load(path)


@pytest.mark.parametrize(
    ("length", "told"),
    [
        (2 << 30, r"truncated at byte \d+: buffer 0 wants 2147483648 bytes from \d+"),
        (2**63 - 1, r"truncated at byte \d+: buffer 0 wants 9223372036854775807 bytes"),
        (-1, r"malformed at byte \d+: buffer 0 of -1 bytes"),
    ],
)
def test_a_length_that_cannot_be_is_refused_before_memory_is_taken(
    tmp_path: Path, length: int, told: str
) -> None:
    path = tmp_path / "a.pkl"
    outofband.dump(content_of([b"weights"], {}), path)
    raw = path.read_bytes()
    at = 8 + int.from_bytes(raw[:8], "little")
    path.write_bytes(raw[:at] + length.to_bytes(8, "little", signed=True) + raw[at + 8 :])
    with pytest.raises(ValueError, match=told):
        outofband.load(path)


def test_opcodes_that_go_on_after_their_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pkl"
    opcodes = pickle.dumps({}, protocol=5) + b"N."
    path.write_bytes(len(opcodes).to_bytes(8, "little") + opcodes)
    with pytest.raises(ValueError, match="opcodes go on after their end"):
        outofband.load(path)


@files
@given(buffers, trees)
def test_in_band_pickles_are_told_apart(tmp_path: Path, blocks: list[bytes], tree: Content) -> None:
    path = tmp_path / "a.pkl"
    artifact.dump(content := content_of(blocks, tree), path)
    assert not outofband.is_out_of_band(path)
    assert equal(artifact.read(path), content)
    assert equal(pickle.loads(path.read_bytes()), content)


def test_metadata_files_stay_in_band(tmp_path: Path) -> None:
    path = tmp_path / "driving_vision_metadata.pkl"
    artifact.dump({"input_shapes": {}}, path, artifact.OUT_OF_BAND)
    assert pickle.loads(path.read_bytes()) == {"input_shapes": {}}


MEMORY = """
import json, resource, sys
from pathlib import Path
from tinygrad import Tensor
sys.path.insert(0, sys.argv[1])
from rules.worker import artifact
path, how, count, size = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
warm = (Tensor.zeros(16, dtype="uint8") + 1).realize().numpy()
if how == "dump":
    weights = [Tensor.full((size,), 1 + i, dtype="uint8").contiguous().realize() for i in range(count)]
    before = peak()
    artifact.dump([one.uop.base.buffer for one in weights], path, "out-of-band")
    print(json.dumps({"above": peak() - before}))
else:
    before = peak()
    found = artifact.read(path)
    told = [int(one.numpy()[-1]) for one in found]
    print(json.dumps({"above": peak() - before, "told": told}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_memory_stays_near_one_buffer_above_the_weights(tmp_path: Path) -> None:
    script, path = tmp_path / "memory.py", tmp_path / "a.pkl"
    script.write_text(MEMORY)
    count, size = 12, 8 * MIB
    root = Path(__file__).resolve().parent.parent

    def run(how: str) -> Content:
        said = with_tinygrad(script, root, path, how, count, size)
        found: Content = json.loads(re.findall(r"\{.*\}", said)[-1])
        return found

    assert run("dump")["above"] < 3 * size
    assert count * size < path.stat().st_size < count * size + MIB
    read = run("load")
    assert read["told"] == [1 + index for index in range(count)]
    assert read["above"] < count * size + 3 * size
