"""What this machine offers to compile for."""

from pathlib import Path

import pytest

from rules.builders.local import offers


def plugged(folder, **devices):
    """A folder that lists USB devices as Linux does: idVendor and idProduct of each, hubs without any."""
    for name, (vendor, product) in devices.items():
        (folder / name).mkdir()
        (folder / name / "idVendor").write_text(f"{vendor}\n")
        (folder / name / "idProduct").write_text(f"{product}\n")
    (folder / "usb1").mkdir()
    return folder


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="this machine has an AMD GPU of its own")
def test_an_amd_gpu_is_one_behind_its_bridge_and_no_other_usb_device(tmp_path):
    mouse = plugged(tmp_path, mouse=("046d", "c52b"), other=("add1", "0002"))
    assert not offers("device:AMD", usb=mouse)
    assert not offers("device:AMD", usb=tmp_path / "nowhere")
    (mouse / "other" / "idProduct").write_text("0001\n")
    assert offers("device:AMD", usb=mouse)
    assert not offers("device:QCOM", usb=mouse)


def test_a_set_that_requires_nothing_is_met_anywhere():
    assert offers(None)
