"""Two ranks under msrun: collectives, experts spread over ranks, training and resuming. One launch for all."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from hp_memory.layout import LayoutSettings, build_plan, plan_file
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.settings import ModelSettings, ParallelSettings
from hp_memory.runs.checkpoint import load_rank
from hp_memory.runs.progress import read_progress
from hp_memory.train.settings import DataSettings, TrainSettings
from hp_memory.train.text import TEXT, read_text

MODEL = ModelSettings(
    family="reference",
    num_layers=2,
    hidden_size=16,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    ffn_size=24,
    first_dense_layers=1,
    num_experts=4,
    top_k=2,
    expert_ffn_size=12,
    shared_experts=1,
    vocab_size=1024,
    seq_length=16,
)
CHAIN = LayoutSettings("chain_exclude", "recompute", save=["all2all", "compute", "gmm", "combine.unsort"])


def prepare(run_dir, text, layout, **train):
    run_dir.mkdir()
    config = {
        "model": MODEL,
        "parallel": ParallelSettings(data=2, expert=2),
        "data": DataSettings(text=str(text), validation_fraction=0.1),
        "train": TrainSettings(steps=4, micro_batch_size=2, micro_batches=2, eval_batches=1, save_every=2, **train),
    }
    OmegaConf.save(OmegaConf.create(config), run_dir / "config.yaml")
    (run_dir / plan_file.NAME).write_text(plan_file.text(build_plan(layout, fingerprint(MODEL))))
    return run_dir


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The run directory of the job, after it ended well."""
    folder = tmp_path_factory.mktemp("job")
    text = folder / "verses.txt"
    text.write_text("".join(read_text(TEXT).splitlines(keepends=True)[:60]))
    run_dir = prepare(folder / "run", text, LayoutSettings("none", "save"))
    whole = prepare(run_dir / "whole", text, LayoutSettings("none", "save"))
    prepare(run_dir / "resumed", text, CHAIN, resume_from=str(whole / "checkpoints/step_00000002"))
    result = launch(Path(__file__).with_name("two_ranks.py"), run_dir)
    logs = "\n".join(log.read_text()[-3000:] for log in sorted((run_dir / "logs").glob("worker_*.log")))
    assert result.returncode == 0, logs
    return run_dir


def launch(script, run_dir):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    binaries = Path(sys.executable).parent
    msrun = shutil.which("msrun", path=str(binaries)) or "msrun"
    workers = ["--worker_num=2", "--local_worker_num=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
    options = ["--cluster_time_out=60", "--join=True", "--tail_worker_log=0", f"--log_dir={run_dir / 'logs'}"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("MS_")}
    env |= {"PATH": f"{binaries}:{env['PATH']}", "OMP_NUM_THREADS": "1", "GLOG_v": "3"}
    command = [msrun, *workers, *options, str(script), "--run-dir", str(run_dir)]
    return subprocess.run(command, env=env, capture_output=True, timeout=240)


@pytest.mark.parametrize(
    "part",
    [
        "uneven all-to-all",
        "other collectives",
        "two ranks compute what one does",
        "a rank without rows",
        "disagreement is noticed",
    ],
)
def test_each_part_held_on_both_ranks(job, part):
    assert (job / f"{part} 0").exists()
    assert (job / f"{part} 1").exists()


def test_a_resumed_run_continues_exactly_under_another_layout(job):
    losses = [
        {line["step"]: line["loss"] for line in read_progress(job / name) if "loss" in line}
        for name in ("whole", "resumed")
    ]
    assert losses[1] == {step: loss for step, loss in losses[0].items() if step > 2}
    assert len(losses[1]) == 2
    for rank in range(2):
        final = [load_rank(job / name / "checkpoints/step_00000004", rank) for name in ("whole", "resumed")]
        assert final[0].keys() == final[1].keys()
        assert all(np.array_equal(final[0][name], final[1][name]) for name in final[0])


def test_both_ranks_report_the_same_loss_and_keep_their_own_experts(job):
    ranks = [[line["loss"] for line in read_progress(job / "whole", rank) if "loss" in line] for rank in range(2)]
    assert ranks[0] == ranks[1]
    arrays = [load_rank(job / "whole" / "checkpoints/step_00000004", rank) for rank in range(2)]
    for name in arrays[0]:
        same = np.array_equal(arrays[0][name], arrays[1][name])
        assert same != ("moe.up_weight" in name or "moe.down_weight" in name), name
