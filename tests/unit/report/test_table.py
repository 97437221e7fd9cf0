"""A table loses nothing on a narrow terminal: figures stay whole, words fold."""

from __future__ import annotations

import io

import pytest
import rich.console

from hp_memory.report.table import Table


@pytest.mark.parametrize("width", [80, 120])
def test_no_cell_is_cut(width):
    words = "another graph writes this buffer while the copy is still under way " * 2
    rows = [[f"layer {i}", "42949672960", "1.25", "-3.5", words] for i in range(2)]
    table = Table("What is held", ["which layer", "bytes", "ratio", "change", "a heading of several words"], rows)
    console = rich.console.Console(file=io.StringIO(), width=width)
    console.print(table.rich())
    shown = console.file.getvalue()
    assert "…" not in shown
    assert shown.count("42949672960") == 2
    assert all(shown.count(figure) == 2 for figure in ("1.25", "-3.5"))
    # folded words are put together again, column by column
    last = "".join(line.split("│")[-2].strip() for line in shown.splitlines() if line.startswith("│"))
    assert last.replace(" ", "") == words.replace(" ", "") * 2


def test_a_verdict_beside_a_long_text_is_seen():
    rows = [["loss 4.901 is below the entropy of a model that knows only how often each word occurs in it", "NO"]]
    console = rich.console.Console(file=io.StringIO(), width=80)
    console.print(Table("Demo", ["what must hold", ""], rows).rich())
    assert "NO" in console.file.getvalue()
