from __future__ import annotations

import pytest

from hp_memory.errors import ConfigError
from hp_memory.launch.hosts import Host, is_this_machine, listed_hosts, read_hostfile, workers_on_each
from hp_memory.launch.settings import LaunchSettings


def test_hostfile_in_order_without_comments(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# rack 1\nnode1 slots=8\n\nnode2:8  # new\n10.0.0.3\n")
    assert read_hostfile(str(file), "k") == [Host("node1", 8), Host("node2", 8), Host("10.0.0.3", 0)]


@pytest.mark.parametrize("line", ["node1 slots=", "node1 slots=0", "node1 slots=x", "node1 8", "node1 slots=8 max=9"])
def test_malformed_line_is_named_with_its_number(tmp_path, line):
    file = tmp_path / "hosts"
    file.write_text(f"node0 slots=8\n{line}\n")
    with pytest.raises(ConfigError) as error:
        read_hostfile(str(file), "launch.hostfile")
    assert error.value.path == "launch.hostfile:2"


@pytest.mark.parametrize("content", [None, "", "# nothing\n"])
def test_missing_or_empty_hostfile(tmp_path, content):
    file = tmp_path / "hosts"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError):
        listed_hosts(LaunchSettings(hostfile=str(file)))


def test_node_listed_twice():
    with pytest.raises(ConfigError, match="twice"):
        listed_hosts(LaunchSettings(nodes=["a", "b", "a slots=8"]))


def test_spare_nodes_stay_out_until_one_is_taken_out():
    assert [h.name for h in listed_hosts(LaunchSettings(nodes=["a", "b", "c"], num_nodes=2))] == ["a", "b"]
    assert [h.name for h in listed_hosts(LaunchSettings(nodes=["a", "c"], num_nodes=2))] == ["a", "c"]
    with pytest.raises(ConfigError, match="only 1 nodes"):
        listed_hosts(LaunchSettings(nodes=["a"], num_nodes=2))


@pytest.mark.parametrize(
    ("slots", "wanted", "expected"), [([8, 8], 0, 8), ([8, 8], 4, 4), ([0, 0], 2, 2), ([8, 0], 8, 8), ([8, 4], 4, 4)]
)
def test_workers_of_every_node(slots, wanted, expected):
    hosts = [Host(f"n{i}", count) for i, count in enumerate(slots)]
    assert workers_on_each(hosts, LaunchSettings(workers_per_node=wanted)) == expected


@pytest.mark.parametrize(("slots", "wanted"), [([8, 4], 0), ([8, 0], 0), ([8, 4], 8), ([], 0)])
def test_nodes_that_cannot_hold_the_same_number_of_workers(slots, wanted):
    hosts = [Host(f"n{i}", count) for i, count in enumerate(slots)]
    with pytest.raises(ConfigError):
        workers_on_each(hosts, LaunchSettings(workers_per_node=wanted))


def test_which_host_is_this_machine():
    assert is_this_machine("127.0.0.1")
    assert is_this_machine("127.0.0.9")
    assert is_this_machine("localhost")
    assert not is_this_machine("192.0.2.1")
    assert not is_this_machine("no-such-host.invalid")
