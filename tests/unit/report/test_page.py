"""Reports: one table in three forms, and one page with everything inside."""

from __future__ import annotations

import io

import rich.console

from hp_memory.report.page import Picture, Text, write_page
from hp_memory.report.table import Table
from hp_memory.runs.environment import environment

TABLE = Table("Layouts", ["layout", "held"], [["none", "2.00 MiB"], ["full <x>", "0.10 MiB"]], "MEASURED")


def test_a_table_shows_the_same_cells_everywhere():
    console = rich.console.Console(width=100, record=True, file=io.StringIO())
    console.print(TABLE.rich())
    for text in (console.export_text(), TABLE.markdown()):
        assert all(cell in text for row in TABLE.rows for cell in row)


def test_a_page_is_one_file_and_escapes_what_it_shows(tmp_path):
    picture = tmp_path / "p.png"
    picture.write_bytes(b"\x89PNG")
    write_page(tmp_path / "r.html", "A <run>", [TABLE, Picture(picture, "bytes"), Text("plan", "a < b")])
    html = (tmp_path / "r.html").read_text()
    assert "full &lt;x&gt;" in html
    assert "A &lt;run&gt;" in html
    assert "data:image/png;base64," in html
    assert "p.png" not in html


def test_the_environment_names_versions():
    found = environment()
    assert found["packages"]["mindspore"] == "2.10.0"
    assert set(found) == {"python", "platform", "cores", "packages", "commit"}
