from __future__ import annotations

import pytest

from hp_memory.errors import ConfigError
from hp_memory.launch.hccl import HcclSettings, variables
from hp_memory.launch.settings import LaunchSettings, VolcanoSettings


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"launcher": "torchrun"}, "launch.launcher"),
        ({"action": "pbs"}, "launch.action"),
        ({"device": "GPU"}, "launch.device"),
        ({"workers_per_node": -1}, "launch.workers_per_node"),
        ({"master_port": 80}, "launch.master_port"),
        ({"lost_after": 1.0}, "launch.lost_after"),
        ({"nodes": ["a"], "hostfile": "hosts"}, "launch.hostfile"),
        ({"nodes": ["a"], "node_rank": 0}, "launch.node_rank"),
        ({"num_nodes": 2, "node_rank": 2}, "launch.node_rank"),
        ({"num_nodes": 2, "node_rank": 1}, "launch.master_addr"),
        ({"num_nodes": 2}, "launch.num_nodes"),
        ({"num_nodes": 2, "action": "scripts"}, "launch.num_nodes"),
        ({"launcher": "process"}, "launch.launcher"),
        ({"action": "volcano"}, "launch.volcano.image"),
        ({"action": "slurm", "launcher": "process", "workers_per_node": 1}, "launch.launcher"),
        ({"action": "slurm", "hccl": HcclSettings(if_ip="node")}, "launch.hccl.if_ip"),
        ({"action": "slurm", "max_restarts": 1}, "launch.max_restarts"),
        ({"action": "slurm", "nodes": ["a"]}, "launch.nodes"),
        ({"action": "slurm", "hostfile": "hosts"}, "launch.hostfile"),
        ({"action": "slurm", "stall_ends": True}, "launch.stall_ends"),
        ({"connect": ["ssh"]}, "launch.connect"),
        ({"hccl": HcclSettings(connect_timeout=10)}, "launch.hccl.connect_timeout"),
        ({"hccl": HcclSettings(deterministic="yes")}, "launch.hccl.deterministic"),
        ({"hccl": HcclSettings(extra={"HCCL_BUFFSIZE": "1"})}, "launch.hccl.extra"),
    ],
)
def test_what_cannot_work_is_refused_with_its_config_path(settings, key):
    with pytest.raises(ConfigError) as error:
        LaunchSettings(**settings).validate()
    assert error.value.path == key


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"launcher": "process", "workers_per_node": 1},
        {"num_nodes": 2, "node_rank": 1, "master_addr": "10.0.0.1", "master_port": 8118},
        {"action": "slurm", "num_nodes": 32},
        {"action": "volcano", "num_nodes": 32, "volcano": VolcanoSettings(image="image")},
    ],
)
def test_every_way_to_launch_is_accepted(settings):
    LaunchSettings(**settings).validate()


def test_restarts_need_a_launcher_that_sees_all_nodes():
    by_hand = {"num_nodes": 2, "node_rank": 0, "master_addr": "a", "master_port": 8118}
    with pytest.raises(ConfigError, match="sees all nodes"):
        LaunchSettings(**by_hand, max_restarts=1).validate()


def test_hccl_settings_win_over_the_shell_and_the_rest_is_passed_on():
    shell = {"HCCL_BUFFSIZE": "100", "HCCL_ALGO": "level0:ring", "PATH": "/bin"}
    found = variables(HcclSettings(buffsize=300, if_ip="node", extra={"HCCL_X": "1"}), shell, "10.0.0.7")
    assert found == {"HCCL_BUFFSIZE": "300", "HCCL_ALGO": "level0:ring", "HCCL_IF_IP": "10.0.0.7", "HCCL_X": "1"}
