"""The shipped text and its tokenizer; ``CREDITS.md`` says where they come from."""

from __future__ import annotations

import lzma
from pathlib import Path

TEXT = Path(__file__).with_name("king_james_bible.txt.xz")
TOKENIZER = Path(__file__).with_name("tokenizer.json")


def read_text(path: Path) -> str:
    """A text file's content, UTF-8, unpacked if its name ends in ``.xz``."""
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
