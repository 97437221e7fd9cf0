"""What a region map says about a model. ``hp_memory.install`` reads it; no MindSpore here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hp_memory.layout.regions import Kind


@dataclass(frozen=True)
class Site:
    """One place that can be wrapped: ``getattr(owner, attr)`` is a Cell or a callable that computes ``regions``.

    Attributes:
        regions: the consecutive regions that one call of it computes.
        owner: the object that looks the attribute up at every forward.
        attr: the attribute's name.
        path: the attribute's path from the model's root, for receipts.
    """

    regions: tuple[str, ...]
    owner: object
    attr: str
    path: str


@dataclass(frozen=True)
class BlockSites:
    """One block and its sites, in forward order. The block itself is ``container[key]``.

    Attributes:
        layer: the global layer id.
        kind: ``dense``, ``moe`` or ``mtp``.
        container: the cell list that holds the block.
        key: the block's index in ``container``.
        path: the block's path from the model's root.
        sites: single regions first to last, then the spans.
    """

    layer: int
    kind: Kind
    container: Any
    key: int | str
    path: str
    sites: tuple[Site, ...]
