"""A plan in the graph Trainer's own words: how many layers of each pipeline chunk are replayed. No MindSpore here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.layout import ActivationPlan
from hp_memory.layout.regions import ALWAYS_SAVED
from hp_memory.mindformers.trainer_yaml.native_settings import HINT

_CLEARED = ("select_recompute", "select_comm_recompute", "select_recompute_exclude", "select_comm_recompute_exclude")


def recompute_config(
    plan: ActivationPlan, chunks: Sequence[Sequence[int]], stages: int, before: Mapping[str, Any]
) -> dict[str, Any]:
    """The ``recompute_config`` section; what ``before`` says of communication stays.

    Args:
        plan: whole layers replayed or saved, the first ones of each chunk.
        chunks: layer ids of each chunk, from input to output.
        stages: of the pipeline; a stage's chunks are ``stages`` apart.
        before: the file's own section.

    Raises:
        ConfigError: for a layer that is replayed in part, or that follows one that isn't.
    """
    whole = [_is_whole(plan, layer) for layer in range(len(plan.layers))]
    counts = [_first(whole, chunk) for chunk in chunks]
    decoder = sum(len(chunk) for chunk in chunks)
    follow = counts[-1] == len(chunks[-1])
    if any(replayed != follow for replayed in whole[decoder:]):
        why = f"the graph Trainer treats MTP layers as the last decoder layer, {HINT}"
        raise ConfigError("layout.layers", "mtp", why)
    value: Any = all(whole)
    if any(whole) and not all(whole):
        value = [counts[i : i + stages] for i in range(0, len(counts), stages)]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    kept = {key: old for key, old in before.items() if key not in ("recompute", *_CLEARED)}
    return {"recompute": value, **kept}


def _is_whole(plan: ActivationPlan, layer: int) -> bool:
    layout, regions = plan.layers[layer].layout, plan.regions(layer)
    replayed = layout.replays(regions)
    saved = [r for r in regions if layout.action(r) == "save" and r not in ALWAYS_SAVED]
    if replayed and (saved or layout.default != "recompute"):
        why = (
            f"the graph Trainer's own settings replay whole layers only: layer {layer} saves {', '.join(saved)}, {HINT}"
        )
        raise ConfigError("layout.save", saved or f"layer {layer}", why)
    return bool(replayed)


def _first(whole: Sequence[bool], chunk: Sequence[int]) -> int:
    """How many layers of a chunk are replayed, which must be its first ones."""
    count = sum(whole[layer] for layer in chunk)
    for layer in chunk[:count]:
        if not whole[layer]:
            why = f"the graph Trainer replays the first layers of a stage: layer {layer} would have to be, {HINT}"
            raise ConfigError("layout.layers", layer, why)
    return count
