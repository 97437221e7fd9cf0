"""Someone's own YAML with other sections in it. Lines that say something else stay as they are, byte for byte.

The file is cut by lines: YAML's own marks say where a section begins and ends, so that comments, quotes, anchors and
spacing elsewhere can't change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from hp_memory.errors import ConfigError
from hp_memory.mindformers.trainer_yaml.callbacks import OURS
from hp_memory.mindformers.trainer_yaml.document import Document


def with_sections(document: Document, sections: Mapping[str, Any], callback: Mapping[str, Any] | None) -> str:
    """The file's text with top-level sections replaced or added, and our callback in its list or taken out of it.

    Args:
        document: the file.
        sections: new contents of sections that the file has, or that are added at its end; None leaves one out that
            the file doesn't have, and empties it where it does.
        callback: our callback's entry; None takes it out.

    Raises:
        ConfigError: for a file that isn't written in lines.
    """
    lines = document.text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    root: Any = yaml.compose(document.text, yaml.SafeLoader)
    if root.flow_style:
        raise ConfigError("yaml", document.file, "is written as one {...}: sections can't be put into it")
    changed = {name: value for name, value in sections.items() if document.data.get(name) != value}
    edits = [_section(root, lines, name, value) for name, value in changed.items()]
    edits.append(_callbacks(document, root, lines, callback))
    for first, last, text in sorted((edit for edit in edits if edit is not None), reverse=True, key=lambda e: e[:2]):
        lines[first:last] = text
    return _checked(document, "".join(lines), sections)


Edit = tuple[int, int, list[str]]


def _section(root: Any, lines: list[str], name: str, value: Any) -> Edit | None:
    """The lines of one top-level section, and what stands there instead."""
    span = _span(root, lines, name)
    if span is None:
        return None if value is None else (len(lines), len(lines), _dumped({name: value}))
    return (*span, _dumped({name: value}))


def _dumped(data: Any, indent: int = 0) -> list[str]:
    # Innermost lists and mappings in one line each, but never the section itself.
    inner = None if isinstance(data, list) or any(isinstance(value, (dict, list)) for value in data.values()) else False
    text = yaml.safe_dump(data, sort_keys=False, width=10_000, default_flow_style=inner)
    return [f"{' ' * indent}{line}" for line in text.splitlines(keepends=True)]


def _span(root: Any, lines: list[str], name: str) -> tuple[int, int] | None:
    """First line of a top-level key and the line after its value, without the comments that follow."""
    starts = [key.start_mark.line for key, _ in root.value]
    for i, (key, value) in enumerate(root.value):
        if key.value == name:
            end = starts[i + 1] if i + 1 < len(starts) else len(lines)
            end = max(min(end, value.end_mark.line + (value.end_mark.column > 0)), starts[i] + 1)
            while end > starts[i] + 1 and _outside(lines[end - 1]):
                end -= 1
            return starts[i], end
    return None


def _outside(line: str) -> bool:
    """Blank lines and comments at the margin belong to what comes next."""
    return not line.strip() or line.startswith("#")


def _callbacks(document: Document, root: Any, lines: list[str], callback: Mapping[str, Any] | None) -> Edit | None:
    """Our entry in the list: put in the place of an earlier one, after the last one, or taken out."""
    ours = OURS[document.trainer]
    node = next((value for key, value in root.value if key.value == "callbacks"), None)
    entries = document.get("callbacks", [])
    mine = [i for i, entry in enumerate(entries) if isinstance(entry, Mapping) and entry.get("type") == ours]
    if callback is None and not mine:
        return None
    if node is None or not entries or node.flow_style:
        others = [entry for i, entry in enumerate(entries) if i not in mine]
        return _section(root, lines, "callbacks", [*others, *([dict(callback)] if callback else [])])
    _, end = _span(root, lines, "callbacks") or (0, 0)
    starts = [item.start_mark.line for item in node.value]
    dash = lines[starts[0]].index("-")
    text = _dumped([dict(callback)], dash) if callback is not None else []
    if not mine:
        return end, end, text
    after = starts[mine[0] + 1] if mine[0] + 1 < len(starts) else end
    while after > starts[mine[0]] + 1 and not lines[after - 1].split("#")[0].strip():
        after -= 1
    return starts[mine[0]], after, text if len(entries) > 1 or callback is not None else [f"{' ' * dash}[]\n"]


def _checked(document: Document, text: str, sections: Mapping[str, Any]) -> str:
    """The text, once YAML reads in it what was put there and nothing else changed."""
    found = yaml.safe_load(text)
    for name, value in document.data.items():
        if name not in sections and name != "callbacks" and found.get(name) != value:
            raise ConfigError(f"yaml:{name}", document.file, "shares an anchor with a section that would be replaced")
    return text
