"""What a config says about layouts. ``plan.build_plan`` turns it into a plan for one model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class LayerOverride:
    """Another layout for some layers. Later overrides win over earlier ones on the layers both select."""

    layers: str = "???"
    """A layer selector: ``"0-3"``, ``"5"``, ``"8-"``, ``moe``, ``dense``, ``mtp`` or ``all``."""
    default: str | None = None
    """Replaces the base layout's default action; null keeps it."""
    save: list[str] | None = None
    """Replaces the base layout's saved regions; null keeps them, an empty list saves none."""
    recompute: list[str] | None = None
    """Replaces the base layout's replayed regions; null keeps them, an empty list replays none."""
    offload: list[str] | None = None
    """Replaces the base layout's offloaded regions; null keeps them, an empty list offloads none."""
    as_one: list[list[str]] | None = None
    """Replaces the base layout's spans; null keeps them."""

    origin = ""  # no field: where the config says it, if not in ``layout.layers``


@dataclass
class LayoutSettings:
    """A block's default action and its exceptions, for every layer, with overrides for some."""

    name: str = "???"
    default: str = "???"
    """``recompute`` (drop, replay in backward), ``save`` (keep, don't replay) or ``offload`` (keep on the host)."""
    save: list[str] = field(default_factory=list)
    """Regions (or groups of regions) to save where the default is another action."""
    recompute: list[str] = field(default_factory=list)
    """Regions (or groups) to replay where the default is another action."""
    offload: list[str] = field(default_factory=list)
    """Regions (or groups) whose saved tensors wait on the host, and are back before their backward."""
    as_one: list[list[str]] = field(default_factory=list)
    """Spans of consecutive saved regions that are excluded by one wrapper, each given as ``[first, last]``."""
    keep_outputs: bool = False
    """Keep every saved region's output, also where no replay reads it (the design document's case 3 before elision)."""
    early_stop: bool = True
    """End a replay once backward has all that it needs. False runs each to the end of its block: for a block whose code
    an exception leaves unfinished (a flag set and reset, a context manager without ``finally``)."""
    layers: list[LayerOverride] = field(default_factory=list)
