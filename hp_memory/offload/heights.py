"""A memory profile that is lowered many times and asked for its highest point: both in about sqrt(n) steps."""

from __future__ import annotations

import numpy as np

BLOCK = 1024
LOWEST = np.iinfo(np.int64).min // 2


class Heights:
    """Values in blocks: what a whole block was lowered by is kept once, beside the highest value in it."""

    def __init__(self, values: np.ndarray) -> None:
        self.length = len(values)
        blocks = max(1, -(-self.length // BLOCK))
        self.cells = np.full(blocks * BLOCK, LOWEST, dtype=np.int64)
        self.cells[: self.length] = values
        self.highest = self.cells.reshape(blocks, BLOCK).max(axis=1)
        self.lowered = np.zeros(blocks, dtype=np.int64)

    def subtract(self, start: int, stop: int, size: int) -> None:
        """Lower positions from ``start`` up to, not including, ``stop``."""
        first, last = start // BLOCK, (stop - 1) // BLOCK
        if stop <= start:
            return
        if first == last:
            self._subtract_within(first, start, stop, size)
            return
        self._subtract_within(first, start, (first + 1) * BLOCK, size)
        self._subtract_within(last, last * BLOCK, stop, size)
        self.lowered[first + 1 : last] += size
        self.highest[first + 1 : last] -= size

    def _subtract_within(self, block: int, start: int, stop: int, size: int) -> None:
        self.cells[start:stop] -= size
        whole = self.cells[block * BLOCK : (block + 1) * BLOCK]
        self.highest[block] = whole.max() - self.lowered[block]

    def last_highest(self) -> tuple[int, int]:
        """The last position of the highest value, and that value."""
        block = len(self.highest) - 1 - int(self.highest[::-1].argmax())
        whole = self.cells[block * BLOCK : (block + 1) * BLOCK]
        position = block * BLOCK + BLOCK - 1 - int(whole[::-1].argmax())
        return position, int(self.highest[block])

    def at(self, position: int) -> int:
        return int(self.cells[position] - self.lowered[position // BLOCK])

    def values(self) -> np.ndarray:
        return (self.cells - np.repeat(self.lowered, BLOCK))[: self.length]
