from __future__ import annotations

import io

from rich.console import Console

from hp_memory.launch.launcher.view import Watcher, progress_line, progress_table, slowest_of_each_node
from hp_memory.launch.progress import Follower, RankView, newly_stalled, progress_file


def append(run_dir, rank, text):
    file = progress_file(run_dir, rank)
    file.parent.mkdir(exist_ok=True)
    with open(file, "a") as stream:
        stream.write(text)


def test_follower_reads_whole_new_lines_only(tmp_path):
    append(tmp_path, 0, '{"step": 1}\n')
    follower = Follower(str(tmp_path), (0, 1))
    assert follower.news() == {}, "lines of an earlier attempt are not news"
    append(tmp_path, 0, '{"step": 2, "loss": 3.5}\n{"phase": "backward"}\n{"step": ')
    assert follower.news() == {0: {"step": 2, "loss": 3.5, "phase": "backward"}}
    assert follower.news() == {}
    append(tmp_path, 0, "3}\nnot json\n[1]\n")
    append(tmp_path, 1, '{"step": 7}\n')
    assert follower.news() == {0: {"step": 3}, 1: {"step": 7}}


def views(*steps):
    return {
        rank: RankView(rank, rank // 2, {"step": step, "loss": 2.5, "seconds": 0.5}, state="running")
        for rank, step in enumerate(steps)
    }


def test_rank_without_a_step_for_too_long_is_stalled_once_until_it_moves():
    ranks = views(3, 3)
    ranks[1].heard -= 100
    assert [view.rank for view in newly_stalled(ranks, 60)] == [1]
    assert newly_stalled(ranks, 60) == []
    ranks[1].update({"step": 4})
    assert not ranks[1].stalled
    ranks[1].heard -= 100
    assert newly_stalled(ranks, 0) == [], "0 means never"


def test_line_names_the_slowest_rank_and_stalled_ones():
    ranks = views(7, 5)
    ranks[1].stalled = True
    assert progress_line(ranks) == "step 5  loss 2.5000  0.50 s/step  2/2 ranks  stalled: 1"
    assert progress_line({0: RankView(0, 0)}) == "1 ranks starting"


def test_line_shows_the_last_stages_loss():
    ranks = views(5, 7)
    del ranks[0].record["loss"]
    assert progress_line(ranks) == "step 5  loss 2.5000  0.50 s/step  2/2 ranks"


def test_many_ranks_are_shown_by_node():
    ranks = views(*([9, 8] * 32))
    assert [view.rank for view in slowest_of_each_node(ranks)][:3] == [1, 3, 5]
    assert progress_table(ranks).row_count == 32


def test_memory_is_shown_with_its_kind_and_absent_on_cpu():
    ranks = views(1)
    ranks[0].record |= {"memory_bytes": 3 * 2**20, "memory_kind": "MEASURED"}
    console = Console(file=io.StringIO(), width=120)
    console.print(progress_table(ranks))
    assert "3 MiB MEASURED" in console.file.getvalue()


def test_without_a_terminal_a_line_is_printed_now_and_then():
    console = Console(file=io.StringIO(), width=120)
    with Watcher(console) as watcher:
        watcher.shown -= 1000
        watcher(views(1))
        watcher(views(2))
    assert console.file.getvalue().count("step") == 2  # "step 1" and "s/step", once.
