"""Results of several ranks become one verdict, a table, JSON and an exit code."""

from __future__ import annotations

import json

import pytest

from hp_memory.commands import pipeline as command
from hp_memory.layout import LayoutSettings
from hp_memory.layout.settings import LayerOverride
from hp_memory.pipeline.regression import report
from hp_memory.pipeline.regression.cases import MatrixSettings, expand
from hp_memory.pipeline.regression.job import Job, Result, read_job, read_results, write_job, write_results

CASES = expand(MatrixSettings(schedule=["zb_h1"], session=["share", "release"]))
PASSED, REFUSED = (c.name for c in CASES)


def results(tmp_path, *ranks):
    for rank, found in enumerate(ranks):
        write_results(tmp_path, rank, found)
    return {r.case: r for r in read_results(tmp_path)}


def test_a_case_fails_if_it_fails_on_any_rank(tmp_path):
    bad = Result(PASSED, failures={"gradients": "w differs"}, peak_bytes={1: 7}, seconds=2.0)
    found = results(tmp_path, [Result(PASSED, peak_bytes={0: 5}, seconds=3.0)], [bad])[PASSED]
    assert found.failures == {"gradients (rank_1)": "w differs"}
    assert (found.peak_bytes, found.seconds) == ({0: 5, 1: 7}, 3.0)


def test_the_table_counts_and_the_lines_name(tmp_path):
    found = results(tmp_path, [Result(PASSED, peak_bytes={0: 2048, 1: 1024}), Result(REFUSED, refused=True)])
    assert report.summary(CASES, found).rows == [("zb_h1", "p2 m4", "full", "1", "1", "0", "2.0 1.0")]
    assert report.failures(CASES, found) == []


@pytest.mark.parametrize(
    ("last", "code"), [(Result(REFUSED, refused=True), 0), (Result(REFUSED, failures={"a": "b"}), 1), (None, 1)]
)
def test_exit_code_and_json(tmp_path, last, code, capsys):
    write_results(tmp_path, 0, [Result(PASSED), *([last] if last else [])])
    assert command._report(tmp_path, CASES) == code
    totals = json.loads((tmp_path / "pipeline.json").read_text())["totals"]
    assert totals["failed"] + totals["missing"] == code
    assert ("didn't run" in capsys.readouterr().out) is (last is None)


def test_a_job_survives_its_file(tmp_path):
    layout = LayoutSettings("full", "recompute", layers=[LayerOverride("0-1", save=[])])
    job = Job(MatrixSettings(seed=3, layers_per_stage=[1, 3]), {"full": layout})
    write_job(tmp_path, job)
    assert read_job(tmp_path) == job
