"""A report as one HTML file that can be sent to a colleague: tables, texts, and pictures inlined."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2

from hp_memory.report.table import Table


@dataclass(frozen=True)
class Picture:
    """A PNG file and what it shows."""

    path: Path
    caption: str

    @property
    def data_uri(self) -> str:
        """The picture inside the page, so that the page is one file."""
        return "data:image/png;base64," + base64.b64encode(self.path.read_bytes()).decode()


@dataclass(frozen=True)
class Text:
    """A titled block of preformatted text."""

    title: str
    body: str


Part = Table | Picture | Text


def write_page(path: Path, title: str, parts: Sequence[Part]) -> None:
    """Writes ``parts`` in their order as one HTML file."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hp_memory.report", "templates"), autoescape=True, undefined=jinja2.StrictUndefined
    )
    kinds = [(type(part).__name__, part) for part in parts]
    path.write_text(environment.get_template("page.html").render(title=title, parts=kinds), encoding="utf-8")
