from __future__ import annotations

from hp_memory.pipeline import show
from hp_memory.pipeline.settings import PipelineSettings


def test_figures_stand_beside_the_published_ones():
    cfg = PipelineSettings(stages=4, microbatches=8, schedule="zb_h1", split_backward=True, prefire_recompute=True)
    table = show.figures(cfg)
    assert table.rows[3] == ("3", "3.00", "0.00", "3.00 (iteration)", "4", "4", "4")
    assert "12.5% of the work" in table.title


def test_text_has_a_line_per_rank():
    assert len(show.text(PipelineSettings(stages=3, microbatches=3)).splitlines()) == 3


def test_picture(tmp_path):
    show.picture(PipelineSettings(stages=2, microbatches=2), tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()
