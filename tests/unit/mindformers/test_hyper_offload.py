"""Where HyperOffload's settings have to stand, and why they would not be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from hp_memory.errors import ConfigError
from hp_memory.mindformers import hyper_offload
from hp_memory.offload.settings import OffloadSettings


def test_environment_of_each_setting():
    assert hyper_offload.environment(OffloadSettings()) == {}
    assert hyper_offload.environment(
        OffloadSettings(auto_offload="activation", stages=[0, 2], filter_percentage=30)
    ) == {
        "MS_DEV_HYPER_OFFLOAD": "1",
        "MS_DEV_HYPER_OFFLOAD_FOR_STAGE": "0,2",
        "MS_DEV_HYPER_OFFLOAD_FILTER_PERCENTAGE": "30",
    }
    peak = OffloadSettings(auto_offload="all", strategy="peak", adaptive_release=True, adaptive_prefetch=True)
    assert set(hyper_offload.environment(peak)) == {
        "MS_DEV_HYPER_OFFLOAD",
        "MS_DEV_HYPER_OFFLOAD_PEAK_STRATEGY",
        "MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_RELEASE_DISTANCE",
        "MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_PREFETCH_DISTANCE",
    }


def test_every_attribute_exists_in_mindspore(mindspore):
    from mindspore.graph._parse import compile_config

    names = hyper_offload.attributes(OffloadSettings())
    assert [name for name in names if not hasattr(compile_config, name)] == []
    # The defaults are MindSpore's own.
    assert {name: getattr(compile_config, name) for name in names} == names


def test_jit_options_are_what_the_backend_reads(mindspore):
    config = mindspore.JitConfig(jit_level="O0", options=hyper_offload.jit_options(OffloadSettings("weight")))
    assert json.loads(config.jit_config_dict["options"]) == {"auto_offload": "weight"}


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"auto_offload": "activaction"}, "did you mean 'activation'"),
        ({"select_num": -1}, "0 or more"),
        ({"selectnum": 3}, "did you mean 'select_num'"),
    ],
)
def test_bad_values_are_named(data, text):
    with pytest.raises(ConfigError, match=text):
        hyper_offload.settings(data, "offload")


class TestRefusals:
    OFFLOAD = OffloadSettings("activation", select_num=7)

    def network(self, mindspore):
        return mindspore.nn.Dense(2, 2)

    def test_not_ascend(self, mindspore):
        with pytest.raises(ConfigError, match="Ascend only, this is CPU"):
            hyper_offload.configure(self.network(mindspore), self.OFFLOAD)

    def test_moves_nothing(self, mindspore):
        with pytest.raises(ConfigError, match="moves nothing"):
            hyper_offload.refuse(self.network(mindspore), OffloadSettings(), "offload")

    def test_a_plan_that_replays(self, mindspore):
        with pytest.raises(ConfigError, match="never both"):
            hyper_offload.refuse_pynative(self.network(mindspore), True, self.OFFLOAD)

    def test_a_pynative_model_without_a_graph(self, mindspore):
        network = self.network(mindspore)
        with pytest.raises(ConfigError, match="no jitted graph"):
            hyper_offload.refuse_pynative(network, False, self.OFFLOAD)
        network.construct = mindspore.jit(network.construct)
        with pytest.raises(ConfigError, match="Ascend only"):
            hyper_offload.refuse_pynative(network, False, self.OFFLOAD)

    def test_compiled_already(self, mindspore, monkeypatch):
        network = self.network(mindspore)
        network.compile_cache.add("phase")
        monkeypatch.setattr(mindspore, "get_context", lambda name: "Ascend")
        with pytest.raises(ConfigError, match="compiled already"):
            hyper_offload.configure(network, self.OFFLOAD)

    def test_out_of_force_then_in_force(self, mindspore, monkeypatch):
        """The environment first, then the compile configuration, then the network is configured."""
        from mindspore.graph._parse import compile_config

        monkeypatch.setattr(mindspore, "get_context", lambda name: "Ascend")
        monkeypatch.delenv("MS_DEV_HYPER_OFFLOAD", raising=False)
        with pytest.raises(ConfigError, match="MS_DEV_HYPER_OFFLOAD=1 before the process starts; it is None"):
            hyper_offload.configure(self.network(mindspore), self.OFFLOAD)
        monkeypatch.setenv("MS_DEV_HYPER_OFFLOAD", "1")
        with pytest.raises(ConfigError, match="HYPER_OFFLOAD_SELECT_NUM=100, not 7"):
            hyper_offload.configure(self.network(mindspore), self.OFFLOAD)
        monkeypatch.setattr(compile_config, "HYPER_OFFLOAD_SELECT_NUM", "7")
        network = self.network(mindspore)
        hyper_offload.configure(network, self.OFFLOAD)
        assert json.loads(network.jit_config_dict["options"]) == {"auto_offload": "activation"}

    def test_remote_parameters_are_marked(self, mindspore):
        parameters = self.network(mindspore).trainable_params()
        assert hyper_offload.mark_remote(parameters) == 2
        assert all(p._get_user_data("parameter_device") == "Remote" for p in parameters)


def test_put_in_force_is_what_refuse_looks_for():
    code = (
        "from hp_memory.mindformers import hyper_offload as h\n"
        "from hp_memory.offload.settings import OffloadSettings\n"
        "s = OffloadSettings('all', strategy='peak', headroom=5)\n"
        "h.put_in_force(s)\nh.refuse_out_of_force(s, 'offload')\nprint('in force')\n"
    )
    env = {name: value for name, value in os.environ.items() if "HYPER_OFFLOAD" not in name}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=env)
    assert done.stdout.strip().endswith("in force"), done.stderr
