"""The main job as a user runs it: train with two workers, resume under another layout, compare layouts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hp_memory.runs.progress import read_progress

COMMAND = str(Path(sys.executable).parent / "hp-memory")
SMALL = ["model.num_layers=2", "model.seq_length=32", "train.micro_batch_size=2", "train.decay_steps=8",
         "train.warmup_steps=2"]  # fmt: skip


def hp_memory(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([COMMAND, *args], capture_output=True, text=True, timeout=280)


def losses(run_dir: Path) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in read_progress(run_dir) if "loss" in r}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("runs") / "train"
    done = hp_memory("train", "recipe=tiny_moe", *SMALL, "train.steps=6", "train.save_every=3", f"run_dir={run_dir}")
    assert done.returncode == 0, done.stdout + done.stderr
    return run_dir


def test_a_run_leaves_everything_in_one_directory(trained):
    present = {str(p.relative_to(trained)) for p in trained.rglob("*")}
    wanted = {
        "config.yaml", "plan.json", "plan.txt", "environment.json", "report.json", "report.html", "loss.png",
        "receipt_rank_0.json", "receipt_rank_1.json", "progress/rank_0.jsonl", "progress/rank_1.jsonl",
        "checkpoints/step_00000003/complete.json", "checkpoints/step_00000006/complete.json",
    }  # fmt: skip
    assert wanted <= present
    assert any(name.endswith("worker_1.log") for name in present)


def test_the_receipt_counts_what_was_wrapped(trained):
    receipt = json.loads((trained / "receipt_rank_1.json").read_text())
    how = [wrapped["how"] for wrapped in receipt["wrapped"]]
    assert how.count("boundary") == 2
    assert how.count("saved") == 9  # router, counts and the seven regions of the expert path, in one MoE layer
    assert receipt["plan_hash"] in (trained / "plan.txt").read_text()


def test_resuming_under_another_layout_repeats_the_losses(trained, tmp_path):
    done = hp_memory(
        "train", "recipe=tiny_moe", "layout=full", *SMALL, "train.steps=6", "train.save_last=false",
        f"train.resume_from={trained}/checkpoints/step_00000003", f"run_dir={tmp_path / 'resumed'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    again, before = losses(tmp_path / "resumed"), losses(trained)
    assert again == {step: before[step] for step in (4, 5, 6)}


def test_a_checkpoint_of_another_model_is_refused_before_a_worker_starts(trained, tmp_path):
    done = hp_memory(
        "train", "recipe=tiny_moe", *SMALL, "model.top_k=1", "train.steps=6", f"train.resume_from={trained}",
        f"run_dir={tmp_path / 'other'}",
    )  # fmt: skip
    assert done.returncode == 2
    assert "another model" in done.stderr
    assert not (tmp_path / "other").exists()


def test_all_layouts_give_the_same_bits_and_hold_what_was_written_by_hand(tmp_path):
    run_dir = tmp_path / "compare"
    done = hp_memory("compare", "recipe=tiny_moe", *SMALL, "steps=2", "timed_steps=2", f"run_dir={run_dir}")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((run_dir / "report.json").read_text())
    assert list(report["differences"].values()) == [None] * 6
    held = {name: sum(by_region.values()) for name, by_region in report["held_per_moe_layer"].items()}
    assert held["full"] < held["chain_exclude"] < held["none"]
    for rank in ("0", "1"):
        layouts = report["ranks"][rank]["layouts"]
        for found in layouts.values():
            assert all(entry["expected"] and entry["found"] for entry in found["table"] or ())
        assert [name for name, found in layouts.items() if found["table"] is None] == ["offload_experts"]
        assert [name for name, found in layouts.items() if found["on_host"]] == ["offload_experts"]
        assert all(runs["replays"] == 0 for runs in layouts["none"]["runs"].values())
        replayed = {name for name, runs in layouts["chain_exclude"]["runs"].items() if runs["replays"]}
        assert "layers.1/attention.core" in replayed
        assert not any(name.split("/")[-1].startswith(("gmm", "all2all", "router.choose")) for name in replayed)
