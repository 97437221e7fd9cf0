"""Which ranks work together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Some ranks of a job, as one of them sees it.

    Attributes:
        ranks: global ranks, in the order in which they hold their shares.
        index: where this process stands in ``ranks``.
        name: the communicator's name; None where the process is alone and needs none.
    """

    ranks: tuple[int, ...] = (0,)
    index: int = 0
    name: str | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)


ALONE = Group()


def blocks(world_size: int, size: int) -> list[tuple[int, ...]]:
    """The world cut into groups of consecutive ranks: (0, 1), (2, 3) for 4 and 2."""
    return [tuple(range(first, first + size)) for first in range(0, world_size, size)]


def strides(world_size: int, size: int) -> list[tuple[int, ...]]:
    """The ranks that stand at the same place of each block: (0, 2), (1, 3) for 4 and 2."""
    return [tuple(range(first, world_size, size)) for first in range(size)]
