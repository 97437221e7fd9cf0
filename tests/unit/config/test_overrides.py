"""Entries of dictionaries, and overrides that are refused before Hydra sees them."""

from __future__ import annotations

import pytest

from hp_memory.config import overrides
from hp_memory.config import schema as config
from hp_memory.config.app import compose, to_object
from hp_memory.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "prepared"),
    [
        ("launch.env.X=1", "++launch.env.X=1"),
        ("launch.env={X:1}", "++launch.env={X:1}"),
        ("+launch.env.X=1", "+launch.env.X=1"),
        ("++launch.env.X=1", "++launch.env.X=1"),
        ("~launch.env.X", "~launch.env.X"),
        ("search.times.router=2", "++search.times.router=2"),
        ("search.times.gmm.up=2", "++search.times={gmm.up:2}"),
        ("layout.save=[gmm]", "layout.save=[gmm]"),
        ("layout=full", "layout=full"),
    ],
)
def test_as_hydra_takes_it(typed, prepared):
    assert overrides.prepare("search", [typed]) == [prepared]
    assert overrides.prepare("search", [prepared]) == [prepared]


def test_entries_arrive_beside_those_that_are_there():
    cfg = to_object(
        compose("search", ["budget=1GiB", "search.times.gmm.up=2", "search.times.router=3", "launch.env={A:b}"])
    )
    assert cfg.search.times == {"gmm.up": 2.0, "router": 3.0}
    assert cfg.launch.env == {"A": "b"}


def test_every_dictionary_of_the_schemas_is_known():
    assert set(overrides.dictionaries(config.HPConfig)) == {"launch.env", "launch.hccl.extra"}
    assert set(overrides.dictionaries(config.SearchConfig)) == {
        "launch.env", "launch.hccl.extra", "search.times", "estimate.device.sources",
    }  # fmt: skip


@pytest.mark.parametrize("words", [["~layout"], ["~launch.env"], ["~a.b"], ["=1"], ["["], ["a"]])
def test_refused(words):
    with pytest.raises(ConfigError):
        overrides.prepare("train", words)
