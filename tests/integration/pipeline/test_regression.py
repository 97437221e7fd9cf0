"""The fixed slice of the regression matrix, as a user runs it: in one process, on 2 and on 4 msrun workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "hp-memory"


def run(tmp_path, *overrides):
    done = subprocess.run(
        [COMMAND, "pipeline", *overrides, f"run_dir={tmp_path / 'run'}"], capture_output=True, text=True, timeout=280
    )
    return done, tmp_path / "run" / "pipeline.json"


@pytest.mark.parametrize(
    ("recipe", "schedules", "ranks", "refused"),
    [("quick", "zb_h1", 1, 2), ("workers_2", "zb_v", 2, 0), ("workers_4", "zb_h1", 4, 0)],
)
def test_the_slice_passes(tmp_path, recipe, schedules, ranks, refused):
    done, file = run(tmp_path, f"recipe=pp_regression/{recipe}", f"matrix.schedule=[{schedules}]")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    found = json.loads(file.read_text())
    totals = found["totals"]
    assert (totals["failed"], totals["missing"], totals["refused"]) == (0, 0, refused)
    assert totals["passed"] == totals["cases"] - refused
    assert len(list((tmp_path / "run" / "results").glob("rank_*.json"))) == ranks
    checks = {check for case in found["cases"] if not case["refused"] for check in case["checks"]}
    assert checks == {
        "loss", "gradients", "whole batch", "excluded bodies", "replays", "bindings", "random numbers",
        "counted once", "nothing alive", "memory",
    }  # fmt: skip
