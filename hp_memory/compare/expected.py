"""What a layout held, beside the table written by hand: the two must be the same set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hp_memory.activation import Held
from hp_memory.models.reference.saved import HELD, Expected, expected, sizes
from hp_memory.models.settings import ModelSettings

Key = tuple[str, tuple[int, ...], int, str]


def against_table(
    layout: str, model: ModelSettings, held: Sequence[Held], micro_batch: int, rows: Mapping[int, int], ranks: int
) -> list[dict[str, Any]] | None:
    """Each storage that should be or was held in a block, with whether it was expected and whether it was found.

    Args:
        layout: one of the shipped layouts; another one has no table, and None is returned.
        held: what a probe found after forward.
        micro_batch: sequences in it.
        rows: MoE layer -> rows its experts received on this rank.
        ranks: ranks that share the experts.
    """
    if layout not in HELD["moe"]:
        return None
    found: list[dict[str, Any]] = []
    for layer, kind in enumerate(model.kinds):
        values = sizes(model, micro_batch, rows.get(layer, 0), ranks)
        mine = [h for h in held if h.region == f"layers.{layer}" or h.region.startswith(f"layers.{layer}/")]
        found += [{"layer": layer, **row} for row in _match(expected(layout, kind, values), mine)]
    return found


def _match(wanted: Iterable[Expected], held: Iterable[Held]) -> list[dict[str, Any]]:
    left = Counter(_held_key(h) for h in held)
    rows = []
    for entry in wanted:
        key = (entry.region, entry.shape, entry.nbytes, entry.reason)
        rows.append(_row(key, entry.tensor, entry.producer, entry.reader, True, left[key] > 0))
        left[key] -= left[key] > 0
    return rows + [_row(key, "?", "?", "?", False, True) for key in left.elements()]


def _held_key(held: Held) -> Key:
    # The block's own entries carry its name alone, the regions' follow a slash.
    return held.region.partition("/")[2], tuple(held.shape), held.nbytes, held.reason


def _row(key: Key, tensor: str, producer: str, reader: str, is_expected: bool, is_found: bool) -> dict[str, Any]:
    region, shape, nbytes, reason = key
    return {
        "tensor": tensor, "producer": producer, "reader": reader, "region": region, "shape": list(shape),
        "bytes": nbytes, "reason": reason, "expected": is_expected, "found": is_found,
    }  # fmt: skip
