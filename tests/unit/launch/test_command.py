"""``hp-memory launch`` from its words to its exit code, without starting a worker."""

from __future__ import annotations

import socket

import pytest

from hp_memory.cli import main

TINY = ["launch", "recipe=tiny_moe"]
BY_HAND = ["launch=by_hand", "launch.workers_per_node=1", "launch.master_addr=127.0.0.1"]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs it in an empty folder; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([*TINY, *words])
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    return run


def test_dry_run_starts_and_writes_nothing(command, tmp_path):
    code, out, _ = command("launch.dry_run=true", "launch/hccl=deterministic")
    assert code == 0
    assert "msrun --worker_num=2" in out
    assert f"--run-dir {tmp_path}/runs/tiny_moe/2" in out
    assert "HCCL_DETERMINISTIC=true" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["launch=clster"], "did you mean 'cluster'"),
        (["launch.workers_per_node=3"], "need 2"),
        ([*BY_HAND, "launch.node_rank=0"], "the same one to every node"),
        ([*BY_HAND, "launch.node_rank=1", "run_dir=none"], "start node 0 first"),
        (["launch.master_port=80"], "must be 0 or between"),
        (["launch.estimate=none.json"], "isn't the report.json"),
        (["launch=cluster", "launch.hostfile=none"], "can't read it"),
        (["recipe=tiny_deepseek_v3", "launch=local", "train.resume_from=none"], "there is no such folder"),
    ],
)
def test_bad_input_is_refused_with_code_2_before_anything_is_printed_or_written(command, tmp_path, words, message):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "data.text=0: has too few tokens"),
        (b"In the beginning", "has too few tokens for one sequence of"),
        (b"\xff\xfe", "can't be read"),
    ],
)
def test_text_without_one_sequence_is_refused_before_a_worker_starts(command, tmp_path, content, message):
    (tmp_path / "text").write_bytes(content)
    code, out, err = command("data.text=text")
    assert (code, out) == (2, "")
    assert message in err


def test_refusal_by_the_preflight_shows_the_settings_value(command):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        code, _, err = command(f"launch.master_port={port}")
    assert code == 2
    assert f"launch.master_port={port}: port: localhost: port {port} is in use" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["layout=full"], "layout.name='full': node 0 has 'chain_exclude'"),
        (["train.steps=70"], "train.steps=70: node 0 has"),
        (["launch.min_disk_gib=1e9"], "launch.min_disk_gib=1000000000.0: disk: "),
    ],
)
def test_refused_further_node_leaves_node_0s_run_as_it_is(command, tmp_path, words, message):
    code, _, err = command("launch=slurm", "launch.num_nodes=2", "launch.workers_per_node=1", "run_dir=run")
    assert code == 0, err
    before = (tmp_path / "run" / "config.yaml").read_text()
    code, _, err = command(*BY_HAND, "launch.node_rank=1", "run_dir=run", *words)
    assert code == 2
    assert message in err
    assert (tmp_path / "run" / "config.yaml").read_text() == before


def test_inherited_job_is_refused(command, monkeypatch):
    monkeypatch.setenv("MS_SCHED_PORT", "8118")
    code, _, err = command("launch.dry_run=true")
    assert (code, "environment.MS_SCHED_PORT='8118'" in err) == (2, True)


def test_slurm_files_find_their_config_in_the_run_directory(command, tmp_path):
    code, _, _ = command(
        "launch=slurm", "launch.num_nodes=2", "launch.workers_per_node=2", "parallel.data=4", "run_dir=run"
    )
    assert code == 0
    assert {"config.yaml", "plan.json", "launch"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert f"--run-dir {tmp_path}/run" in (tmp_path / "run/launch/node.sh").read_text()


def test_mindformers_entry_can_be_the_task(command):
    code, out, _ = command("launch.task=[run_mindformer.py,--config,exported.yaml]", "launch.dry_run=true")
    assert code == 0
    assert out.rstrip().endswith("run_mindformer.py --config exported.yaml")


@pytest.mark.parametrize("group", ["local", "cluster", "by_hand"])
def test_every_group_composes_and_shows(command, group, tmp_path):
    words = {
        "local": ["parallel.data=1", "parallel.expert=1"],
        "cluster": ["launch.nodes=[10.9.0.1:2,10.9.0.2:2]", "parallel.data=4"],
        "by_hand": ["launch.workers_per_node=1", "launch.node_rank=1", "launch.master_addr=10.9.0.1"],
    }[group]
    code, out, err = command(f"launch={group}", "launch.dry_run=true", *words)
    assert code == 0, err
    assert "hp_memory.train.worker" in out
