"""``hp-memory train`` over a pipeline: what the launcher sees of each rank, and the report at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hp_memory.runs.progress import read_progress

pytestmark = pytest.mark.timeout(1200)

PIPELINE = ["parallel.pipeline=2", "pipeline=1f1b", "pipeline.stages=2", "pipeline.microbatches=2"]
PIPELINE += ["pipeline.layers_per_stage=[2,1]", "launch.launcher=msrun", "launch.workers_per_node=2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run without replays and one under ``chain_exclude``: folder and output of each."""
    folder, found = tmp_path_factory.mktemp("train"), {}
    for layout in ("none", "chain_exclude"):
        run_dir = folder / layout
        command = [str(Path(sys.executable).parent / "hp-memory"), "train", "recipe=tiny_deepseek_v3", *PIPELINE]
        command += [f"layout={layout}", f"run_dir={run_dir}", "train.steps=3", "launch.stall_after=120"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=folder)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        found[layout] = run_dir, done.stdout
    return found


def test_every_rank_writes_its_steps_and_none_is_called_stalled(runs):
    for run_dir, output in runs.values():
        steps = [[line["step"] for line in read_progress(run_dir, rank)] for rank in (0, 1)]
        assert steps == [[1, 2, 3], [1, 2, 3]]
        assert "2/2 ranks" in output
        assert "stalled" not in output
        for rank in (0, 1):
            assert "peaks" in json.loads((run_dir / "reports" / f"rank_{rank}.json").read_text())
            receipts = json.loads((run_dir / f"mindformers_report_rank_{rank}.json").read_text())["receipts"]
            assert {w["layer"] for w in receipts[0]["wrapped"]} == ({0, 1}, {2})[rank]


def test_the_last_stage_has_the_losses_and_a_plan_changes_none(runs):
    losses = {}
    for layout, (run_dir, output) in runs.items():
        result = json.loads((run_dir / "result.json").read_text())
        assert result["rank"] == 1
        assert "loss of the first step" in output
        assert all("loss" not in line for line in read_progress(run_dir, 0))
        losses[layout] = result["losses"]
    assert len(losses["none"]) == 3
    assert losses["chain_exclude"] == losses["none"]
