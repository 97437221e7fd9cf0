from __future__ import annotations

import io
import json

from rich.console import Console

from hp_memory.launch.peaks import device_peaks, peaks_table, write_rank_report
from hp_memory.launch.supervise import read_reports


def test_cpu_has_no_device_memory_and_says_so(mindspore):
    assert device_peaks() == {"kind": "not available"}


def test_peaks_stand_beside_the_estimate(tmp_path):
    (tmp_path / "estimate.json").write_text(json.dumps({"kind": "MODELLED", "peak_bytes": {"0": 9 * 2**20}}))
    for rank in (0, 1):
        peaks = {"kind": "MEASURED", "allocated_bytes": 10 * 2**20, "reserved_bytes": 12 * 2**20}
        write_rank_report(tmp_path, rank, peaks=peaks)
        write_rank_report(tmp_path, rank, other=1)
    reports = read_reports(tmp_path, 2)
    assert reports[1]["other"] == 1
    console = Console(file=io.StringIO(), width=120)
    console.print(peaks_table(reports, tmp_path))
    text = console.file.getvalue()
    assert "MODELLED" in text
    assert "-10.0%" in text


def test_nothing_measured_is_no_table(tmp_path):
    assert peaks_table({0: {"peaks": {"kind": "not available"}}, 1: {}}, tmp_path) is None
