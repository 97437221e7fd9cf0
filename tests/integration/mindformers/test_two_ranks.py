"""MindFormers' real ExpertParallel over two processes, and what is refused there without HyperParallel."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

# One script does all the work, in the first test's time.
pytestmark = pytest.mark.timeout(600)

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of the two ranks found."""
    folder = tmp_path_factory.mktemp("two_ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    binaries = Path(sys.executable).parent
    env = {name: value for name, value in os.environ.items() if not name.startswith("MS_")}
    env |= {"PATH": f"{binaries}:{env['PATH']}", "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    msrun = shutil.which("msrun", path=env["PATH"])
    workers = ["--worker_num=2", "--local_worker_num=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
    options = ["--cluster_time_out=60", "--join=True", "--tail_worker_log=0", f"--log_dir={folder / 'logs'}"]
    command = [msrun, *workers, *options, str(HERE / "two_ranks.py"), str(folder)]
    subprocess.run(command, env=env, capture_output=True, timeout=280)
    files = sorted(folder.glob("rank_*.json"))
    logs = "\n".join(log.read_text()[-4000:] for log in sorted((folder / "logs").glob("worker_*.log")))
    assert len(files) == 2, logs
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("layout", ["none", "full", "op_exclude", "region_exclude", "chain_exclude"])
def test_a_plan_changes_no_bit_under_expert_parallelism(ranks, layout):
    for rank in ranks:
        plain, planned = rank["layouts"]["plain"], rank["layouts"][layout]
        assert planned["loss"] == plain["loss"]
        assert planned["grads"] == plain["grads"]
        assert planned["not_applied"] == {}


def test_the_ranks_train_on_their_own_tokens_with_their_own_experts(ranks):
    plain = [rank["layouts"]["plain"] for rank in ranks]
    assert plain[0]["loss"] != plain[1]["loss"]
    assert len(plain[0]["grads"]) > 15


def test_spreading_the_experts_computes_what_one_rank_does(ranks):
    """MindFormers adds a row of weight 0 per expert, so the sums differ in their last bits."""
    for rank in ranks:
        assert rank["layouts"]["plain"]["loss"] == pytest.approx(rank["layouts"]["alone_loss"], rel=1e-5)


def test_collectives_are_replayed_or_not_as_the_layout_says(ranks):
    for rank in ranks:
        full, excluded = (rank["layouts"][name]["runs"] for name in ("full", "op_exclude"))
        assert full["layers.1/all2all.in"] == {"forward": 1, "body": 2, "replays": 1, "spared": 0}
        assert excluded["layers.1/all2all.in"] == {"forward": 1, "body": 1, "replays": 0, "spared": 0}
        assert excluded["layers.1/compute.resort"]["replays"] == 1
        # Four methods count tokens and derive split sizes; none of them runs again, in any layout.
        assert full["layers.1/dispatch.counts"] == {"forward": 4, "body": 4, "replays": 0, "spared": 0}


@pytest.mark.parametrize(
    ("case", "text"),
    [
        ("deredundancy", "is a DeredundancyExpertParallel: alltoall_deredundancy"),
        ("two_plans", "rank 0: plan 0123456789abcde0; rank 1: plan 0123456789abcde1"),
        ("mesh", "init_device_mesh((4,)) needs the real hyper_parallel package, which isn't installed: there are 2"),
    ],
)
def test_refusals_on_both_ranks(ranks, case, text):
    for rank in ranks:
        assert text in rank["refusals"][case]


def test_one_plan_on_all_ranks_is_accepted(ranks):
    assert [rank["refusals"]["one_plan"] for rank in ranks] == ["", ""]


def test_the_overlapped_dispatcher_has_regions(ranks):
    assert [rank["refusals"]["overlap"] for rank in ranks] == ["", ""]
