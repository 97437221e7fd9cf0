"""A calibration's file: what is written is read, and what can't be trusted is refused by the setting's path."""

from __future__ import annotations

import json

import pytest

from hp_memory.errors import ConfigError
from hp_memory.runs.region_times import RegionTime, RegionTimes, read_times

PATH = "estimate.device.times"


def times(spread=0.1):
    rows = {"gmm.up": RegionTime(2.0, 4.0, 1.0, 1.0, spread), "compute.act": RegionTime(1.0, 2.0, 0.0, 1.0, spread)}
    return RegionTimes("a model", "reference", "CPU", {"teraflops": 1.0}, {"moe": rows})


def test_what_is_written_is_read(tmp_path):
    times().write(tmp_path / "times.json")
    assert read_times(str(tmp_path / "times.json"), PATH) == times()


def test_factors():
    assert times().forward_factor("moe", "gmm.up") == 2.0
    assert times().forward_factor("moe", "compute.act") == 1.0  # nothing modelled to correct
    assert times().backward_factor("moe") == 3.0


def test_the_spread_is_weighted_by_seconds():
    rows = {"gmm.up": RegionTime(3.0, 0.0, 1.0, 1.0, 0.1), "compute.act": RegionTime(1.0, 0.0, 1.0, 1.0, 0.5)}
    assert RegionTimes("", "", "", {}, {"moe": rows}).spread == pytest.approx(0.2)


def edited(file, edit):
    times().write(file)
    data = json.loads(file.read_text())
    edit(data)
    file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda data: data.update(format=9), "has format 9"),
        (lambda data: data.pop("kinds"), "not a file of `hp-memory calibrate`"),
        (lambda data: data["kinds"]["moe"]["gmm.up"].update(forward=float("nan")), "must be finite"),
        (lambda data: data["kinds"]["moe"]["gmm.up"].update(forward=-1), "not negative"),
        (lambda data: data["kinds"]["moe"]["gmm.up"].update(spread=2.0), "busy machine"),
    ],
)
def test_other_files_are_refused(tmp_path, edit, says):
    file = tmp_path / "times.json"
    edited(file, edit)
    with pytest.raises(ConfigError, match=says) as error:
        read_times(str(file), PATH)
    assert error.value.path == PATH


def test_no_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_times(str(tmp_path / "none.json"), PATH)
