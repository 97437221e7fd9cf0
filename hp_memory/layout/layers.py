"""Layer selectors: ``"5"``, ``"0-3"``, ``"8-"``, ``moe``, ``dense``, ``mtp`` or ``all``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hp_memory.errors import ConfigError
from hp_memory.layout.regions import KINDS, Kind

_RANGE = re.compile(r"([0-9]+)(?:(-)([0-9]*))?")


def select_layers(selector: str | int, kinds: Sequence[Kind], path: str) -> tuple[int, ...]:
    """Global ids of the layers a selector means, ascending.

    Args:
        selector: a layer id, an inclusive range (an open end means the last layer), a kind of layer, or ``all``.
        kinds: the kind of each layer; MTP layers follow the decoder's.
        path: where the selector stands in the config, for the error.

    Raises:
        ConfigError: if the selector can't be read, or selects nothing.
    """
    text = str(selector).strip()
    if text == "all":
        chosen = tuple(range(len(kinds)))
    elif text in KINDS:
        chosen = tuple(i for i, kind in enumerate(kinds) if kind == text)
    else:
        chosen = _range(text, len(kinds), path)
    if not chosen:
        raise ConfigError(path, selector, f"selects no layer of this model ({_describe(kinds)})")
    return chosen


def _range(text: str, count: int, path: str) -> tuple[int, ...]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ConfigError(path, text, "not a layer selector", ("all", *KINDS, "5", "0-3", "8-"))
    first, dash, end = match.groups()
    low = int(first)
    high = int(end) if end else (count - 1 if dash else low)
    if end and high < low:
        raise ConfigError(path, text, "the range runs backwards")
    if max(low, high) >= count:
        raise ConfigError(path, text, f"the model has layers 0-{count - 1}")
    return tuple(range(low, high + 1))


def _describe(kinds: Sequence[Kind]) -> str:
    counts = [f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds]
    return f"layers 0-{len(kinds) - 1}: {', '.join(counts)}"


def format_layers(layers: Sequence[int]) -> str:
    """Ascending layer ids in the shortest words: ``0-2, 5, 7-9``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
