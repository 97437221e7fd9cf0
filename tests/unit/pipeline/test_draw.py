from __future__ import annotations

from hp_memory.pipeline.draw import as_picture, as_text
from hp_memory.pipeline.generate import generate
from hp_memory.pipeline.simulate import run


def test_text_lines_up_ranks_and_shows_waiting():
    assert as_text(run(generate("1f1b", 2, 2))).splitlines() == [
        "rank 0 |F0  F1  ........BW0     ....BW1     |",
        "rank 1 |....F0  BW0     F1  BW1     ........|",
    ]


def test_chunks_of_one_rank_have_letters():
    assert "F0a F1a F2a F0b B0b W0b" in as_text(run(generate("zb_v", 2, 4)))


def test_a_rank_may_have_more_chunks_than_letters():
    assert "F0aa" in as_text(run(generate("interleaved_1f1b", 2, 2, interleave=27)))


def test_picture_is_written(tmp_path):
    path = tmp_path / "timeline.png"
    as_picture(run(generate("zb_h1", 2, 3, prefire=True)), path, "ZB-H1")
    assert path.read_bytes().startswith(b"\x89PNG")
