from __future__ import annotations

import copy
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hp_memory.errors import ConfigError
from hp_memory.launch import checks
from hp_memory.launch.checks import Answer, judge, refuse
from hp_memory.launch.launcher import preflight
from hp_memory.launch.node import probe, processes
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.settings import LaunchSettings

FACTS = {
    "host": "n", "python": "3.11.7", "mindspore": "2.10.0", "mindformers": None, "hyper-parallel": None,
    "cann": "8.0.RC3", "driver": "24.1", "package": "abc", "msrun": "/bin/msrun", "devices": list(range(8)),
    "inherited": {}, "leftovers": [], "port_free": None, "master_address": "10.9.0.1", "token": "t",
    "files": {"config.yaml": "1", "plan.json": "2"}, "writable": True, "disk_gib": 500.0, "memory_gib": 900.0,
    "time": 0.0,
}  # fmt: skip


def plan(**settings):
    wanted = {"nodes": ["10.9.0.1", "10.9.0.2"], "workers_per_node": 8, "master_port": 8118} | settings
    return plan_launch(LaunchSettings(**wanted), ("train.py",), Path("/runs/1"), {})


def lines(changed: dict, **settings) -> dict[str, checks.Check]:
    """The table's lines when the second of two nodes says something else."""
    made, facts = plan(**settings), [copy.deepcopy(FACTS), copy.deepcopy(FACTS) | changed]
    answers = [Answer(rank, f"10.9.0.{rank + 1}", facts[rank], 0.0, 1.0) for rank in range(2)]
    return {line.name: line for line in judge(made, answers, "t")}


def test_equal_nodes_pass():
    assert {line.status for line in lines({}).values()} == {"ok"}


OWN = [{"pid": 7, "run_id": plan().run_id, "node": "1", "role": "MS_WORKER"}]
OTHER = [{"pid": 7, "run_id": "", "node": "", "role": "MS_WORKER"}]


@pytest.mark.parametrize(
    ("changed", "name", "text"),
    [
        ({"python": "3.10.1"}, "python", "differs: 3.11.7 on 10.9.0.1; 3.10.1 on 10.9.0.2"),
        ({"mindformers": "2.0.0"}, "mindformers", "differs: none on 10.9.0.1; 2.0.0 on 10.9.0.2"),
        ({"cann": None}, "cann", "differs"),
        ({"package": "xyz"}, "hp-memory", "differs"),
        ({"files": {"config.yaml": "1", "plan.json": "9"}}, "plan.json", "differs"),
        ({"devices": [0, 1, 2, 3]}, "devices", "10.9.0.2: 8 workers, visible devices [0, 1, 2, 3]"),
        ({"inherited": {"RANK_TABLE_FILE": "/x"}}, "environment", "10.9.0.2: RANK_TABLE_FILE=/x"),
        ({"leftovers": OWN}, "other jobs", "10.9.0.2: this run's processes [7] are still there"),
        ({"leftovers": OTHER}, "other jobs", "10.9.0.2: MindSpore processes [7]"),
        ({"port_free": False}, "port", "10.9.0.2: port 8118 is in use"),
        ({"master_address": None}, "scheduler's address", "10.9.0.2 can't resolve 10.9.0.1"),
        ({"master_address": "127.0.1.1"}, "scheduler's address", "resolves 10.9.0.1 to its own 127.0.1.1"),
        ({"time": 100.0}, "clock", "10.9.0.2: 99 s off"),
        ({"token": None}, "run directory", "doesn't see it"),
        ({"writable": False}, "run directory", "10.9.0.2: can't write it"),
        ({"disk_gib": 0.2}, "disk", "10.9.0.2: 0.20 GiB free, 1 needed"),
        ({"memory_gib": 0.2}, "host memory", "10.9.0.2: 0.20 GiB free, 1 needed"),
        ({"msrun": None}, "msrun", "10.9.0.2: not found beside"),
    ],
)
def test_one_node_that_differs_is_named_and_refused(changed, name, text):
    found = lines(changed)
    assert [line.name for line in found.values() if line.status != "ok"] == [name]
    assert text in found[name].text
    with pytest.raises(ConfigError, match=re.escape(text)):
        refuse(list(found.values()), plan())


def test_other_jobs_on_cpus_only_share_the_cores():
    found = lines({"leftovers": OTHER, "devices": []} | {"devices": []}, device="CPU")
    assert found["devices"].text == "CPU"


def test_nodes_without_devices_are_refused_where_ascend_is_wanted():
    assert lines({"devices": []}, device="Ascend")["devices"].status == "bad"


def test_unreachable_node_is_the_only_line():
    answers = [Answer(0, "a", dict(FACTS), 0, 1), Answer(1, "b", None, 0, 1, "No route to host")]
    (line,) = judge(plan(), answers, "t")
    assert (line.status, line.text) == ("bad", "b: No route to host")


@pytest.mark.parametrize(("there", "skew"), [(5.0, 0.0), (0.0, 0.0), (10.0, 0.0), (13.0, 3.0), (-2.0, 2.0)])
def test_clock_counts_only_what_question_and_answer_cannot_explain(there, skew):
    assert Answer(0, "a", {"time": there}, 0.0, 10.0).skew == skew


def test_this_machine_answers(tmp_path):
    made = plan_launch(LaunchSettings(device="CPU"), ("train.py",), tmp_path, {})
    found = {line.name: line for line in preflight.preflight(made)}
    assert {line.status for line in found.values()} <= {"ok", "warn"}
    assert found["python"].text == ".".join(map(str, sys.version_info[:3]))
    assert found["mindspore"].text == "2.10.0"


def test_port_in_use_by_anyone_or_promised_to_another_launch():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert not probe.port_is_free(port)
    assert probe.port_is_free(port)
    with socket.socket(socket.AF_UNIX) as lock:
        lock.bind(processes.port_lock(port))
        assert not probe.port_is_free(port)


def test_unwritable_run_directory(tmp_path):
    file = tmp_path / "file"
    file.touch()
    made = plan_launch(LaunchSettings(), ("train.py",), file / "run", {})
    with pytest.raises(ConfigError, match="run_dir"):
        preflight.preflight(made)


def test_leftovers_of_other_jobs_are_seen():
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(words, env={"MS_ROLE": "MS_WORKER"}) as other:
        try:
            time.sleep(0.2)
            assert other.pid in [found["pid"] for found in probe.leftovers()]
        finally:
            other.kill()
