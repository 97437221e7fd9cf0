"""The generated rows against the papers' own small examples, and the shape every schedule must have."""

from __future__ import annotations

import pytest

from hp_memory.pipeline.generate import generate
from hp_memory.pipeline.validate import validate

CASES = [
    (name, ranks, micros, interleave)
    for ranks in (1, 2, 3, 4, 8)
    for micros in (1, 2, 5, 8, 16)
    for name, interleave in (("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("zb_h1", 1), ("zb_v", 1))
    if name != "interleaved_1f1b" or micros % ranks == 0
]


def row(schedule, rank):
    letters = {c: "ab"[i] for i, c in enumerate(schedule.chunks_of(rank))} if schedule.chunks > schedule.ranks else {}
    return " ".join(f"{s.op}{s.micro}{letters.get(s.chunk, '')}" for s in schedule.rows[rank])


@pytest.mark.parametrize(("name", "ranks", "micros", "interleave"), CASES)
@pytest.mark.parametrize("prefire", [False, True])
def test_every_size_is_complete_ordered_and_free_of_deadlock(name, ranks, micros, interleave, prefire):
    split = name.startswith("zb")
    for each in {split, True}:
        validate(generate(name, ranks, micros, interleave=interleave, split=each, prefire=prefire))


def test_gpipe_runs_all_forwards_first():
    assert row(generate("gpipe", 2, 3), 0) == "F0 F1 F2 BW0 BW1 BW2"


def test_1f1b_warms_up_by_the_ranks_behind():
    schedule = generate("1f1b", 3, 4)
    assert row(schedule, 0) == "F0 F1 F2 BW0 F3 BW1 BW2 BW3"
    assert row(schedule, 2) == "F0 BW0 F1 BW1 F2 BW2 F3 BW3"


def test_split_1f1b_runs_dw_right_after_dx():
    assert row(generate("1f1b", 2, 2, split=True), 1) == "F0 B0 W0 F1 B1 W1"


def test_interleaved_takes_micro_batches_in_groups_of_the_ranks():
    # arXiv 2104.04473, figure 4: rank 1 of 2 forwards 0, 1 on its first chunk, then 0, 1 on its second.
    assert row(generate("interleaved_1f1b", 2, 4, interleave=2), 1) == (
        "F0a F1a F0b BW0b F1b BW1b F2a BW0a F3a BW1a F2b BW2b F3b BW3b BW2a BW3a"
    )


def test_zb_h1_puts_dw_off_by_the_rank():
    schedule = generate("zb_h1", 3, 4)
    assert row(schedule, 0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert row(schedule, 2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


def test_zb_v_starts_and_ends_on_rank_0():
    schedule = generate("zb_v", 2, 4)
    assert schedule.placement == (0, 1, 1, 0)
    assert row(schedule, 0).startswith("F0a F1a F2a F0b B0b W0b")


def test_prefire_stands_right_before_the_backward():
    assert row(generate("1f1b", 2, 2, prefire=True), 0) == "F0 F1 R0 BW0 R1 BW1"


def test_the_order_of_accumulation_is_read_from_the_rows():
    schedule = generate("zb_v", 2, 5)
    for chunk in range(schedule.chunks):
        assert sorted(schedule.accumulation_order(chunk)) == list(range(5))


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="dualpipe"):
        generate("dualpipe", 2, 2)
