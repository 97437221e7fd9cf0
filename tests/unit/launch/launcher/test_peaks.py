from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from hp_memory.errors import ConfigError
from hp_memory.launch.launcher.peaks import measured, peaks_table, read_estimate
from hp_memory.launch.launcher.supervise import read_reports
from hp_memory.runs.rank_report import device_memory, device_peaks, write_rank_report

MIB = 2**20


def test_cpu_has_no_device_memory_and_says_so(mindspore):
    assert device_peaks() == {"kind": "not available"}
    assert device_memory() == {}
    assert measured({0: {"peaks": device_peaks()}, 1: {}}, 2, 1) == []


@pytest.fixture
def estimate(tmp_path):
    terms = {"parameters": {"bytes": 5 * MIB}, "reserve": {"bytes": 2 * MIB}, "communicators": {"bytes": MIB}}
    file = tmp_path / "report.json"
    file.write_text(json.dumps({"stages": [{"rank": 1, "peak": 12 * MIB, "terms": terms}]}))
    return str(file)


def test_peaks_stand_beside_the_estimate_of_their_pipeline_rank(tmp_path, estimate):
    for rank in range(4):
        peaks = {"kind": "MEASURED", "allocated": 8 * MIB, "reserved": 10 * MIB}
        write_rank_report(tmp_path, rank, peaks=peaks)
        write_rank_report(tmp_path, rank, other=1)
    reports = read_reports(tmp_path, 4)
    assert reports[1]["other"] == 1
    ranks = measured(reports, world=4, pipeline=2)
    assert [rank["pipeline_rank"] for rank in ranks] == [0, 0, 1, 1]
    console = Console(file=io.StringIO(), width=140)
    console.print(peaks_table(ranks, read_estimate(estimate)))
    rows = [line.split() for line in console.file.getvalue().splitlines() if line.startswith("│")]
    assert [word for word in rows[0] if word != "│"] == ["0", "8", "10", "-", "-"]
    assert [word for word in rows[3] if word != "│"] == ["3", "8", "10", "9", "-10.0%"]


def test_peaks_are_written_as_the_dry_run_reads_them(tmp_path):
    from hp_memory.estimate.compare_run import read_run

    write_rank_report(tmp_path, 0, peaks={"kind": "MEASURED", "allocated": 8 * MIB, "reserved": 10 * MIB})
    file = tmp_path / "memory.json"
    file.write_text(json.dumps({"ranks": measured(read_reports(tmp_path, 1), 1, 1)}))
    assert read_run(str(file))[0]["allocated"] == 8 * MIB


@pytest.mark.parametrize("text", [None, "{}", "[]", "no json", '{"stages": [{"rank": 0}]}'])
def test_estimate_that_is_none(tmp_path, text):
    file = tmp_path / "file"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"launch\.estimate"):
        read_estimate(str(file))
    assert read_estimate(None) == {}
