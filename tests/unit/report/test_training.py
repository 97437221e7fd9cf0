from __future__ import annotations

import json

import pytest

from hp_memory.report.training import write_report

RESULT = {"unigram_entropy": 5.0, "steps": 2}


@pytest.mark.parametrize("steps", [{"mean_of_last_10": 6.5}, {}], ids=["trained", "restarted at its end"])
def test_table_shows_what_the_result_has(tmp_path, steps):
    (tmp_path / "progress").mkdir()
    lines = [{"step": step, "loss": 7.0 - step, "seconds": 0.5} for step in (1, 2)]
    (tmp_path / "progress" / "rank_0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "environment.json").write_text("{}")
    (tmp_path / "plan.txt").write_text("plan")
    table = write_report(tmp_path, RESULT | steps)
    rows = dict(table.rows)
    assert rows["loss of the first step"] == "6.000"
    assert rows.get("mean loss of the last 10 steps") == ("6.500" if steps else None)
    assert json.loads((tmp_path / "report.json").read_text())["losses"] == [[1, 6.0], [2, 5.0]]


def test_the_report_is_of_the_rank_that_has_the_losses(tmp_path):
    (tmp_path / "progress").mkdir()
    (tmp_path / "progress" / "rank_0.jsonl").write_text('{"step": 1, "seconds": 0.5}\n')
    (tmp_path / "progress" / "rank_1.jsonl").write_text('{"step": 1, "seconds": 0.5, "loss": 4.0}\n')
    (tmp_path / "environment.json").write_text("{}")
    (tmp_path / "plan.txt").write_text("plan")
    assert dict(write_report(tmp_path, RESULT | {"rank": 1}).rows)["loss of the first step"] == "4.000"
    # Another rank's result has no losses, and is no reason to fail.
    assert "loss of the first step" not in dict(write_report(tmp_path, RESULT).rows)
