from __future__ import annotations

import pytest

from hp_memory.config.estimate import DeviceSettings, EstimateSettings, SearchSettings, bytes_of
from hp_memory.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "nbytes"), [("58GiB", 58 * 2**30), ("1.5 MiB", 3 * 2**19), ("64GB", 64 * 10**9), (1024, 1024), ("0B", 0)]
)
def test_amounts_of_memory_are_read_with_their_units(text, nbytes):
    assert bytes_of(text, "budget") == nbytes


@pytest.mark.parametrize("text", ["58 gigs", "-1GiB", "", "GiB"])
def test_what_is_no_amount_is_refused_by_its_path(text):
    with pytest.raises(ConfigError, match="budget="):
        bytes_of(text, "budget")


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (EstimateSettings(imbalance=0.9), "estimate.imbalance"),
        (EstimateSettings(dtype="bf16"), "estimate.dtype"),
        (EstimateSettings(shard="zero3"), "estimate.shard"),
        (EstimateSettings(fragmentation=-0.1), "estimate.fragmentation"),
        (EstimateSettings(device=DeviceSettings(memory="much")), "estimate.device.memory"),
        (EstimateSettings(device=DeviceSettings(teraflops=0)), "estimate.device.teraflops"),
        (SearchSettings(cost="speed"), "search.cost"),
        (SearchSettings(times={"gmm.up": 1.0}), "search.times"),
        (SearchSettings(cost="given"), "search.times"),
        (EstimateSettings(device=DeviceSettings(memory="0GiB")), "estimate.device.memory"),
        (SearchSettings(curve=1), "search.curve"),
        (SearchSettings(curve=10**8), "search.curve"),
        (SearchSettings(cost="given", times={"gmm.upp": 1.0}), "search.times.gmm.upp"),
        (SearchSettings(cost="given", times={"gmm.up": -1.0}), "search.times.gmm.up"),
    ],
)
def test_an_assumption_that_cannot_be_used_is_refused(settings, path):
    with pytest.raises(ConfigError, match=f"{path}="):
        settings.validate()
