from __future__ import annotations

import json
from pathlib import Path

import pytest

from hp_memory.errors import ConfigError
from hp_memory.launch import checks
from hp_memory.launch.command import process_argv
from hp_memory.launch.launcher.channel import node_command
from hp_memory.launch.plan import plan_launch, world_size
from hp_memory.launch.settings import LaunchSettings

TASK = ("python", "-m", "package.worker", "--text", "two words; $HOME")


def planned(env=None, **settings):
    return plan_launch(LaunchSettings(**settings), TASK, Path("/runs/1"), env or {})


def test_one_node():
    (node,) = planned(workers_per_node=2, master_port=8118).nodes
    assert node.argv == (
        "msrun", "--worker_num=2", "--local_worker_num=2", "--master_addr=127.0.0.1", "--master_port=8118",
        "--node_rank=0", "--log_dir=/runs/1/logs/node_0", "--join=True", "--cluster_time_out=60",
        "--tail_worker_log=-2", *TASK,
    )  # fmt: skip
    assert node.env["ASCEND_PROCESS_LOG_PATH"] == "/runs/1/logs/node_0/ascend"


def test_many_nodes_differ_in_rank_log_and_how_they_are_reached_only():
    plan = planned(nodes=["10.9.0.1", "10.9.0.2"], workers_per_node=8, master_port=8118)
    first, second = plan.nodes
    assert (plan.world_size, plan.master_addr) == (16, "10.9.0.1")
    assert (first.ranks, second.ranks) == (tuple(range(8)), tuple(range(8, 16)))
    assert [a for a in second.argv if a not in first.argv] == ["--node_rank=1", "--log_dir=/runs/1/logs/node_1"]
    assert node_command(plan, second)[-2] == "10.9.0.2"
    assert "hp_memory.launch.node.program" in node_command(plan, second)[-1]


def test_second_node_on_this_machine_starts_no_second_scheduler():
    first, second = planned(nodes=["127.0.0.1", "127.0.0.2"]).nodes
    assert first.argv[0] == "msrun"
    assert second.argv[:3] == ("python", "-m", "hp_memory.launch.node.same_machine")


def test_by_hand_starts_its_own_node_only():
    plan = planned(num_nodes=4, node_rank=2, master_addr="10.9.0.1", master_port=8118, workers_per_node=8)
    (node,) = plan.nodes
    assert (plan.world_size, node.ranks, node.here) == (32, tuple(range(16, 24)), True)


def test_port_zero_is_replaced_by_a_free_one_that_is_shown():
    plan = planned(master_port=0)
    assert plan.master_port >= 1024
    assert f"scheduler at 127.0.0.1:{plan.master_port}" in plan.in_words()


def test_words_show_command_and_environment_as_a_shell_would_take_them():
    words = planned(env={"HCCL_BUFFSIZE": "120"}).in_words()
    assert "'two words; $HOME'" in words
    assert "HCCL_BUFFSIZE=120" in words


def test_plan_is_plain_data():
    assert json.loads(json.dumps(planned().to_dict()))["world_size"] == 2


def test_run_is_recognised_by_its_directory():
    assert planned().run_id == planned().run_id
    assert planned().run_id != plan_launch(LaunchSettings(), TASK, Path("/runs/2"), {}).run_id


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        (("python", "-m", "a"), ["/p", "-m", "a"]),
        (("run.py", "--x"), ["/p", "run.py", "--x"]),
        (("pytest", "t.py"), ["/p", "-m", "pytest", "t.py"]),
    ],
)
def test_process_without_msrun(task, expected):
    assert process_argv(task, "/p") == expected


def test_empty_task():
    with pytest.raises(ConfigError):
        plan_launch(LaunchSettings(), (), Path("/runs/1"), {})


def test_world_size():
    assert world_size(LaunchSettings(nodes=["a slots=8", "b slots=8"], workers_per_node=0)) == 16


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("MS_ROLE", "clean shell"),
        ("MS_SCHED_PORT", "clean shell"),
        ("RANK_TABLE_FILE", "rank table"),
        ("MS_SIMULATION_LEVEL", "clean shell"),
    ],
)
def test_variables_of_another_job_are_refused_with_advice(variable, advice):
    with pytest.raises(ConfigError, match=advice) as error:
        checks.check(planned(env={variable: "1", "MS_DEV_RUNTIME_CONF": "fine"}))
    assert error.value.path == f"environment.{variable}"


def test_launcher_started_once_per_task_by_slurm():
    checks.check(planned(env={"SLURM_LOCALID": "0"}))
    with pytest.raises(ConfigError, match="once per task"):
        checks.check(planned(env={"SLURM_LOCALID": "3"}))


@pytest.mark.parametrize("sizes", [{"data": 4}, {"data": 1, "tensor": 1}, {"tensor": 3}, {"pipeline": 2, "tensor": 2}])
def test_parallel_sizes_that_do_not_fit_the_workers(sizes):
    with pytest.raises(ConfigError) as error:
        checks.check(planned(), sizes)
    assert error.value.path.startswith("parallel.")


@pytest.mark.parametrize("sizes", [{"data": 2}, {"data": 1, "tensor": 2}, {"tensor": 1}, {"pipeline": 2}, {}])
def test_parallel_sizes_that_fit(sizes):
    checks.check(planned(), sizes)


def test_loopback_scheduler_cannot_serve_another_machine():
    with pytest.raises(ConfigError, match="loopback"):
        checks.check_addresses(planned(nodes=["127.0.0.1", "192.0.2.1"]))


def test_master_that_does_not_resolve():
    with pytest.raises(ConfigError, match="doesn't resolve"):
        checks.check_addresses(planned(nodes=["no-such-host.invalid", "192.0.2.1"]))
