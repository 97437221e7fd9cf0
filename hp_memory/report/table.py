"""One table, shown on a terminal, in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import rich.console
import rich.table


@dataclass(frozen=True)
class Table:
    """Rows of text under a title; ``caption`` says where the figures were taken and what kind they are."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def rich(self) -> rich.table.Table:
        """For a terminal; columns of figures are right-aligned."""
        table = rich.table.Table(title=self.title, caption=self.caption or None, title_justify="left")
        for i, column in enumerate(self.columns):
            cells = [str(row[i]) for row in self.rows]
            figures = all(cell[:1] in "-0123456789" for cell in cells)
            # A figure is never cut or broken: words around it fold instead.
            width = max(map(len, cells), default=0) if figures else None
            table.add_column(
                column, justify="right" if figures else "left", no_wrap=figures, min_width=width, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*map(str, row))
        return table

    def markdown(self) -> str:
        """For a README."""
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)], *self.rows]
        return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def mebibytes(nbytes: float) -> str:
    """Bytes in MiB with two decimals; the unit belongs in the column's name or the caption."""
    return f"{nbytes / 2**20:.2f}"


def console() -> rich.console.Console:
    """A console that keeps tables readable where the output goes to a file or a pipe."""
    found = rich.console.Console()
    return found if found.is_terminal else rich.console.Console(width=140)
