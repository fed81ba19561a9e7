"""Memory and devices for work that runs side by side."""

import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from rules.builders.room import Lanes, Room


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 120), min_size=1, max_size=12), st.integers(50, 100))
def test_no_more_memory_is_taken_than_there_is_unless_one_runs_alone(needs: list[int], total: int) -> None:
    room, lock = Room(total), threading.Lock()
    running: list[int] = []
    peaks: list[list[int]] = []

    def work(need: int) -> None:
        with room.reserved(need):
            with lock:
                running.append(need)
                peaks.append(list(running))
            time.sleep(0.001)
            with lock:
                running.remove(need)

    threads = [threading.Thread(target=work, args=(need,)) for need in needs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
    assert len(peaks) == len(needs)
    assert all(sum(peak) <= total or len(peak) == 1 for peak in peaks)


def test_a_device_has_one_lane_and_processors_have_none() -> None:
    lanes, seen = Lanes(), {"CPU": 0, "QCOM": 0}
    most = dict(seen)
    lock = threading.Lock()
    barrier = threading.Barrier(2)

    def work(device: str) -> None:
        with lanes.held((device, device)):
            with lock:
                seen[device] += 1
                most[device] = max(most[device], seen[device])
            if device == "CPU":
                barrier.wait(timeout=20)  # both are in at once, or this fails
            time.sleep(0.01)
            with lock:
                seen[device] -= 1

    threads = [
        threading.Thread(target=work, args=(device,)) for device in ("CPU", "CPU", "QCOM", "QCOM", "QCOM")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert most == {"CPU": 2, "QCOM": 1}


def test_lanes_taken_in_any_order_do_not_block_each_other() -> None:
    lanes = Lanes()

    def work(*devices: str) -> None:
        for _ in range(200):
            with lanes.held(devices):
                pass

    threads = [threading.Thread(target=work, args=order) for order in (("AMD", "QCOM"), ("QCOM", "AMD"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert not any(thread.is_alive() for thread in threads)
