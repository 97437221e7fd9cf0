"""A calibration corrects the forward region by region and the backward as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hp_memory.errors import ConfigError
from hp_memory.estimate.times.layer import layer_time
from hp_memory.estimate.times.measured import modelled, speeds_of
from hp_memory.runs.region_times import RegionTime, RegionTimes
from tests.unit.estimate.times.test_times import A2A, ACT, DEVICE, UP, layer

# By hand, forward and backward as the model has them, and three, two and five times as long.
ROWS = {A2A: (1.0, 1.0), UP: (2.0, 5.2), ACT: (0.2, 0.3), "": (0.0, 0.0)}


@pytest.fixture
def calibrated(tmp_path):
    def made(**changes):
        factors = {A2A: 3.0, UP: 2.0, ACT: 5.0, "": 0.0}
        rows = {r: RegionTime(f * factors[r], 4 * b, f, b) for r, (f, b) in ROWS.items()}
        rows[""] = RegionTime(0.5, 0.0, 0.0, 0.0)
        kinds = changes.pop("kinds", {"moe": {**rows, **changes.pop("rows", {})}})
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        RegionTimes("a model", "reference", "CPU", changes.pop("speeds", speeds_of(DEVICE)), kinds).write(file)
        return replace(DEVICE, times=str(file))

    return made


def test_what_is_modelled_is_summed_by_region():
    found = modelled(layer(), DEVICE)
    assert found == {region: pytest.approx(seconds) for region, seconds in ROWS.items() if region}


def test_each_part_is_corrected(calibrated):
    found = layer_time(layer(), (UP,), calibrated())
    assert found.forward.experts == pytest.approx(3.0)
    # 0.5 s between regions, where the model finds nothing that takes time; any replay runs that too.
    assert found.forward.compute == pytest.approx(2 * 2.0 + 5 * 0.2 + 0.5)
    assert found.dx.total + found.dw.total == pytest.approx(4 * 6.5)
    assert found.replay.total == pytest.approx(2 * 2.0 + 0.5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kinds": {"dense": {}}}, "no layer of kind moe"),
        ({"kinds": {"moe": {UP: RegionTime(1, 1, 1, 1)}}}, "has no all2all.in in a moe layer"),
        ({"speeds": {**speeds_of(DEVICE), "teraflops": 2.0}}, "compared with teraflops=2, not 1"),
    ],
)
def test_a_calibration_of_something_else_is_refused(calibrated, changes, says):
    with pytest.raises(ConfigError, match=says) as error:
        layer_time(layer(), (), calibrated(**changes))
    assert error.value.path == "estimate.device.times"
