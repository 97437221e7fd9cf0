"""The page about the code's layout tells the truth: every name exists, no walk visits a room twice."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WALKS = re.split(r"\n(?=\*\*A )", PAGE.partition("## Three walks")[2])[1:]


def _stops(walk: str) -> list[str]:
    return re.findall(r"`(hp_memory\.[\w.]+)`", walk)


def test_there_are_three_walks():
    assert len(WALKS) == 3


@pytest.mark.parametrize("stop", sorted({stop for walk in WALKS for stop in _stops(walk)}))
def test_every_stop_exists(stop):
    module, _, name = stop.rpartition(".")
    tree = ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text())
    assert name in {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}


@pytest.mark.parametrize("walk", WALKS, ids=range(len(WALKS)))
def test_no_walk_visits_a_room_twice(walk):
    rooms = [stop.split(".")[1] for stop in _stops(walk)]
    entered = [room for i, room in enumerate(rooms) if i == 0 or rooms[i - 1] != room]
    assert len(entered) == len(set(entered))


def test_every_room_is_on_the_page_and_in_the_contributors_table(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    sys.modules.pop("make_floors", None)
    import make_floors

    rooms = {room for floor in make_floors.floors() for room in floor} - {"__main__", "cli", "errors"}
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert [room for room in rooms if f"| `{room}" not in PAGE or f"| `{room}" not in guide] == []
    assert make_floors.PICTURE.read_text() == make_floors.render(), "run: python docs/make_floors.py"
