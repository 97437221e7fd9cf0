"""``hp-memory calibrate`` under msrun, and a dry run that reads what it wrote."""

from __future__ import annotations

import json
import re

import pytest

from hp_memory.cli import main

ALONE = ("recipe=tiny_moe", "parallel.data=1", "parallel.expert=1", "model.num_layers=2")


def run(*argv):
    with pytest.raises(SystemExit) as end:
        main(argv)
    return end.value.code


def step_seconds(capsys, *argv):
    assert run("dryrun", *ALONE, "estimate=cpu", "installed=false", *argv) == 0
    return float(re.search(r"a step takes ([\d.]+) s", capsys.readouterr().out)[1])


def test_a_dry_run_takes_the_times_of_a_calibration(tmp_path, capsys):
    code = run("calibrate", *ALONE, "launch.workers_per_node=1", "repeats=3", f"run_dir={tmp_path / 'run'}")
    assert code in (0, 1), capsys.readouterr()  # 1: the machine was busy
    file = tmp_path / "run" / "times.json"
    data = json.loads(file.read_text())
    assert set(data["kinds"]) == {"dense", "moe", "head"}
    assert data["device"] == "CPU"
    slow = tmp_path / "slow.json"
    for row in (row for rows in data["kinds"].values() for row in rows.values()):
        row["spread"] = 0.0
        # An hour for what took a millisecond: the dry run must show it.
        row["forward"] *= 3.6e6
    slow.write_text(json.dumps(data))
    root = f"run_root={tmp_path}"
    assert step_seconds(capsys, root, f"estimate.device.times={slow}") > 1000 * step_seconds(capsys, root)
