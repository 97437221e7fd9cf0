"""What a rendered script checks on its node before it starts msrun."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys

import pytest
from rich.console import Console

from hp_memory.errors import ConfigError
from hp_memory.launch import checks as rules
from hp_memory.launch.launcher.job import launch
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.script import check_node
from hp_memory.launch.settings import LaunchSettings


@pytest.fixture
def written(python, run_dir):
    """Writes the scripts of two nodes that run ``task``; returns the folder they are in."""

    def write(*task: str, **settings):
        wanted = {"python": python, "nodes": ["127.0.0.1", "127.0.0.2"], "device": "CPU", "min_disk_gib": 0.01}
        console = Console(file=io.StringIO())
        launch(LaunchSettings(action="scripts", **wanted | settings), lambda world: task, run_dir, {}, {}, console)
        return run_dir / "launch"

    return write


def started(folder, node: int = 0, **env: str) -> subprocess.CompletedProcess:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HP_MEMORY", "MS_"))}
    return subprocess.run([folder / f"node_{node}.sh"], env=clean | env, capture_output=True, text=True, timeout=60)


def lines(folder, rank: int = 0, port: int = 0, **changes) -> dict[str, rules.Check]:
    """The node's own lines, after ``changes`` to what the writer's machine has."""
    expected = json.loads((folder / "expected.json").read_text())
    expected["facts"] |= changes
    plan, checks = check_node.check(expected, rank, "127.0.0.1", port)
    assert (plan.nodes[0].rank, plan.nodes[0].host) == (rank, socket.gethostname())
    return {check.name: check for check in checks}


def test_script_shows_the_checks_and_starts_the_workers(written, run_dir):
    worker = "import os; print('rank', os.environ['RANK_ID'])"
    (run_dir / "task.py").write_text(worker)
    done = started(written(str(run_dir / "task.py")), node=1)
    assert done.returncode == 0, done.stderr
    assert "shared and writable" in done.stderr
    assert (run_dir / "logs/node_1/worker_3.log").read_text() == "rank 3\n"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RANK_TABLE_FILE": "/x"}, "environment.RANK_TABLE_FILE='/x': environment: "),
        ({"MS_SCHED_PORT": "8118"}, "start from a clean shell"),
    ],
)
def test_script_stops_with_the_message_where_something_is_bad(written, run_dir, env, message):
    done = started(written("train.py"), **env)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"hp-memory: node 0 ({socket.gethostname()}): ")
    assert message in done.stderr
    assert not (run_dir / "logs" / "node_0" / "worker_0.log").exists()


def test_run_directory_that_this_node_does_not_see(written):
    folder = written("train.py")
    (folder / "expected.json").unlink()
    done = started(folder)
    assert done.returncode == 2
    assert "must be on a file system all nodes share" in done.stderr


def test_what_the_writer_has_not_is_not_asked_of_the_node(written):
    found = lines(written("train.py"), cann=None)
    assert {check.status for check in found.values()} <= {"ok", "warn"}
    assert "cann" not in found


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"python": "3.10.0"}, "python"),
        ({"mindspore": "2.9.0"}, "mindspore"),
        ({"package": "other"}, "hp-memory"),
        ({"files": {"config.yaml": None, "plan.json": "other"}}, "plan.json"),
    ],
)
def test_node_that_differs_from_the_writers_machine_is_bad(written, changes, name):
    found = lines(written("train.py"), **changes)
    assert [check.name for check in found.values() if check.status == "bad"] == [name]
    assert f"on {socket.gethostname()}, where the job was laid out" in found[name].text


def test_node_0_needs_the_port_and_the_others_do_not(written):
    folder = written("train.py")
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert lines(folder, rank=0, port=port)["port"].status == "bad"
        assert lines(folder, rank=1, port=port)["port"].status == "ok"


def test_missing_devices_and_little_room_are_bad(written):
    found = lines(written("train.py", device="Ascend", devices="99", min_disk_gib=10**9, min_host_memory_gib=10**9))
    assert [found[name].status for name in ("devices", "disk", "host memory")] == ["bad"] * 3


def test_this_runs_leftovers_on_this_node_are_bad_those_of_its_other_nodes_are_not(written, run_dir):
    folder = written("train.py")
    run_id = json.loads((folder / "expected.json").read_text())["plan"]["run_id"]
    env = {"HP_MEMORY_RUN_ID": run_id, "HP_MEMORY_NODE": "1", "MS_ROLE": "MS_WORKER"}
    with subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], env=env,
                          stdout=subprocess.PIPE) as left:  # fmt: skip
        try:
            left.stdout.readline()
            assert lines(folder, rank=1)["other jobs"].status == "bad"
            assert lines(folder, rank=0)["other jobs"].status == "warn"
        finally:
            left.kill()


@pytest.mark.parametrize(("changes", "name"), [({}, None), ({"mindspore": "2.9.0"}, "mindspore")])
def test_node_started_by_hand_is_compared_with_node_0(run_dir, changes, name):
    by_hand = {"num_nodes": 2, "workers_per_node": 1, "master_addr": "127.0.0.1", "master_port": 29115}
    node_0, node_1 = (
        plan_launch(LaunchSettings(node_rank=rank, **by_hand), ("train.py",), run_dir, {}) for rank in (0, 1)
    )
    file = check_node.write_expectation(node_0)
    expected = json.loads(file.read_text())
    file.write_text(json.dumps(expected | {"facts": expected["facts"] | changes}))
    assert [check.name for check in check_node.compare_with_node_0(node_1) if check.status == "bad"] == [
        *filter(None, [name])
    ]


def test_refusal_shows_the_settings_own_value(written):
    expected = json.loads((written("train.py", min_disk_gib=10**9) / "expected.json").read_text())
    plan, checks = check_node.check(expected, 0, "127.0.0.1", 0)
    with pytest.raises(ConfigError, match=r"launch.min_disk_gib=1000000000.0: disk: .* GiB free"):
        rules.refuse(checks, plan)
