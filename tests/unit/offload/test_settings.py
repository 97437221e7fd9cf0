from __future__ import annotations

import os
import sys
import types

import pytest

from hp_memory.errors import ConfigError
from hp_memory.mindspore import compile_config
from hp_memory.offload import OffloadSettings
from hp_memory.offload.apply import applied, apply
from hp_memory.offload.places import compile_config_of, environment_of, jit_arguments, jit_config_arguments
from hp_memory.offload.settings import OffloadCommandSettings


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("auto_offload", "activaction"),
        ("strategy", "distanse"),
        ("select_distance", -1),
        ("select_num", "3x"),
        ("prefetch_distance", 1.5),
        ("release_distance", True),
        ("max_device_memory", 2**64),
        ("h2d_bandwidth_gbps", 0),
        ("score_weights", [1.0]),
        ("filter_percentage", 101),
        ("adaptive_release", True),
        ("stages", [-1]),
    ],
)
def test_a_bad_value_is_refused_with_its_path(setting, value):
    with pytest.raises(ConfigError) as error:
        OffloadSettings(**{setting: value}).validate("offload")
    assert f"offload.{setting}" in str(error.value)


def test_a_near_miss_is_suggested_and_defaults_are_fine():
    OffloadSettings().validate("offload")
    with pytest.raises(ConfigError, match="did you mean 'activation'"):
        OffloadSettings(auto_offload="activaction").validate("offload")


def test_a_setting_the_strategy_does_not_read_is_refused():
    with pytest.raises(ConfigError, match="no effect with the peak strategy"):
        OffloadSettings(strategy="peak", filter_percentage=50).validate("offload")


ON = OffloadSettings(auto_offload="activation")


def test_the_command_needs_its_files(tmp_path):
    graph = tmp_path / "g.json"
    graph.write_text("{}")
    OffloadCommandSettings(graph=str(graph)).validate("plan", ON)
    with pytest.raises(ConfigError, match="graph=''"):
        OffloadCommandSettings().validate("plan", ON)
    with pytest.raises(ConfigError, match=r"trace='nowhere\.log': no such file"):
        OffloadCommandSettings(graph=str(graph), trace="nowhere.log").validate("verify", ON)


def test_environment_and_compile_configuration_are_what_2_10_reads():
    settings = OffloadSettings(auto_offload="all", strategy="peak", stages=[0, 1], adaptive_prefetch=True, headroom=7)
    environment = environment_of(settings)
    assert environment["MS_DEV_HYPER_OFFLOAD"] == "1"
    assert environment["MS_DEV_HYPER_OFFLOAD_PEAK_STRATEGY"] == "1"
    assert environment["MS_DEV_HYPER_OFFLOAD_FOR_STAGE"] == "0,1"
    assert environment["MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_RELEASE_DISTANCE"] is None
    assert compile_config_of(settings)["HYPER_OFFLOAD_PEAK_MODELED_HEADROOM_BYTES"] == "7"
    assert all(value is None for value in environment_of(OffloadSettings()).values())


def test_jit_takes_the_option_and_a_config_takes_it_as_json():
    settings = OffloadSettings(auto_offload="activation")
    assert jit_arguments(settings) == {"auto_offload": "activation"}
    assert jit_config_arguments(settings) == {"options": '{"auto_offload": "activation"}'}
    assert jit_arguments(OffloadSettings()) == jit_config_arguments(OffloadSettings()) == {}


@pytest.fixture
def fake_mindspore(monkeypatch):
    """MindSpore's module of settings, so that this test doesn't import it, in a process that has made no Cell."""
    config = types.SimpleNamespace(**dict.fromkeys(compile_config_of(OffloadSettings()), "old"))
    monkeypatch.setitem(sys.modules, "mindspore.graph._parse.compile_config", config)
    monkeypatch.setattr(compile_config, "in_force", lambda: None)
    return config


def test_settings_are_set_and_put_back(fake_mindspore, monkeypatch):
    config = fake_mindspore
    monkeypatch.setenv("MS_DEV_HYPER_OFFLOAD", "before")
    with applied(OffloadSettings(auto_offload="activation", select_distance=7)):
        assert (os.environ["MS_DEV_HYPER_OFFLOAD"], config.HYPER_OFFLOAD_SELECT_DISTANCE) == ("1", "7")
    assert (os.environ["MS_DEV_HYPER_OFFLOAD"], config.HYPER_OFFLOAD_SELECT_DISTANCE) == ("before", "old")


def test_settings_are_refused_once_mindspore_has_read_them(fake_mindspore, monkeypatch):
    config = fake_mindspore
    monkeypatch.setattr(compile_config, "in_force", dict)
    with pytest.raises(ConfigError, match=r"when the first nn\.Cell is made"):
        apply(OffloadSettings(auto_offload="activation"))
    assert config.HYPER_OFFLOAD_SELECT_DISTANCE == "old"


def test_a_mindspore_without_a_setting_is_an_error(fake_mindspore):
    config = fake_mindspore
    del config.HYPER_OFFLOAD_SELECT_NUM
    with pytest.raises(ConfigError, match="has no HYPER_OFFLOAD_SELECT_NUM"):
        apply(OffloadSettings(auto_offload="activation"))
