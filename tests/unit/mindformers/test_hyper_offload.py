"""Networks that can't have HyperOffload, and settings that aren't in force."""

from __future__ import annotations

import json

import pytest

from hp_memory.errors import ConfigError
from hp_memory.mindformers import hyper_offload
from hp_memory.mindspore import compile_config
from hp_memory.offload.settings import OffloadSettings


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
        """The environment first, then what MindSpore has read, then the network is configured."""
        monkeypatch.setattr(mindspore, "get_context", lambda name: "Ascend")
        monkeypatch.delenv("MS_DEV_HYPER_OFFLOAD", raising=False)
        network = self.network(mindspore)
        with pytest.raises(ConfigError, match="reads MS_DEV_HYPER_OFFLOAD=None from the environment, not '1'"):
            hyper_offload.configure(network, self.OFFLOAD)
        monkeypatch.setenv("MS_DEV_HYPER_OFFLOAD", "1")
        with pytest.raises(ConfigError, match=r"offload\.select_num=7: MindSpore reads HYPER_OFFLOAD_SELECT_NUM=100"):
            hyper_offload.configure(network, self.OFFLOAD)
        read = compile_config.in_force() | {"HYPER_OFFLOAD_SELECT_NUM": "7"}
        monkeypatch.setattr(compile_config, "in_force", lambda: read)
        hyper_offload.configure(network, self.OFFLOAD)
        assert json.loads(network.jit_config_dict["options"]) == {"auto_offload": "activation"}

    def test_remote_parameters_are_marked(self, mindspore):
        parameters = self.network(mindspore).trainable_params()
        assert hyper_offload.mark_remote(parameters) == 2
        assert all(p._get_user_data("parameter_device") == "Remote" for p in parameters)
