"""Draws ``docs/images/floors.svg`` from the layers contract, and is run by hand; a test keeps the picture in step."""

from __future__ import annotations

import ast
import sys
from html import escape
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it there
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PICTURE = Path(__file__).parent / "images" / "floors.svg"
WIDTH, HEIGHT, GAP = 760, 34, 6
_COLOURS = ("#dbe9f6", "#e8f3e4", "#fdf0d9", "#f6e0e4", "#e9e4f5")


def floors() -> list[list[str]]:
    """The rooms of each floor, highest first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    whole = next(c for c in contracts if c["type"] == "layers" and c["containers"] == ["hp_memory"])
    return [[room.strip() for room in floor.split("|")] for floor in whole["layers"]]


def purpose(room: str) -> str:
    """The first line of a room's own docstring."""
    package = ROOT / "hp_memory" / room / "__init__.py"
    file = package if package.exists() else ROOT / "hp_memory" / f"{room}.py"
    return (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n")[0].rstrip(".")


def render() -> str:
    """The picture: a row for each floor, rooms of one floor side by side."""
    rows = floors()
    height = len(rows) * (HEIGHT + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for i, rooms in enumerate(rows):
        parts += _floor(rooms, GAP + i * (HEIGHT + GAP), _COLOURS[i % len(_COLOURS)])
    return "\n".join([*parts, "</svg>", ""])


def _floor(rooms: list[str], top: int, colour: str) -> list[str]:
    width = (WIDTH - GAP * (len(rooms) + 1)) / len(rooms)
    parts = []
    for i, room in enumerate(rooms):
        left = GAP + i * (width + GAP)
        says = purpose(room) if len(rooms) == 1 else ""
        parts.append(f'<rect x="{left:g}" y="{top}" width="{width:g}" height="{HEIGHT}" rx="4" fill="{colour}"/>')
        parts.append(f'<text x="{left + 8:g}" y="{top + 21}" font-size="13" font-weight="bold">{room}</text>')
        if says:
            short = says if len(says) <= 88 else says[:87].rsplit(" ", 1)[0] + " …"
            parts.append(f'<text x="{left + 110:g}" y="{top + 21}" font-size="12">{escape(short)}</text>')
    return parts


if __name__ == "__main__":
    PICTURE.write_text(render())
