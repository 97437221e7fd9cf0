"""Estimated peaks beside measured ones: the benchmark of the peaks, on the reference model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "dryrun.py"
LAYOUTS = ("none", "op_exclude")


@pytest.fixture(scope="module")
def peaks():
    command = [sys.executable, str(BENCHMARK), "peak", "--layouts", *LAYOUTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    return {(row["layout"], row["part"]): (row["estimated"], row["measured"]) for row in rows}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("part", ["dense", "moe", "model"])
def test_the_estimated_peak_is_what_mindspore_allocates(peaks, layout, part):
    estimated, measured = peaks[layout, part]
    assert estimated == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_over_a_whole_step_of_a_model_they_are_equal_but_for_scalars(peaks, layout):
    estimated, measured = peaks[layout, "model"]
    assert abs(estimated - measured) < 2**13
