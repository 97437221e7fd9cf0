"""What every case must fulfil. Each check returns nothing, or the reason why it fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hp_memory.install import Receipt, Wrapped
from hp_memory.pipeline.chunk import Chunk
from hp_memory.pipeline.regression.cases import Case
from hp_memory.pipeline.regression.model import EMBEDDING, HEAD
from hp_memory.pipeline.regression.probes import DRAWS_PER_BLOCK, Probes
from hp_memory.pipeline.regression.reference import Arrays, Reference, tie
from hp_memory.pipeline.schedule import Schedule
from hp_memory.pipeline.session import native_leftovers, open_sessions

WHOLE_BATCH_TOLERANCE = 2e-5
"""Largest difference to the whole batch at once, over the gradient's largest entry: float32 sums in another order."""
CHECKS = (
    "loss",
    "gradients",
    "whole batch",
    "excluded bodies",
    "replays",
    "bindings",
    "random numbers",
    "counted once",
    "nothing alive",
    "memory",
)


def loss(losses: Sequence[float], reference: Reference) -> str | None:
    if losses and tuple(losses) != reference.losses:
        return f"losses {losses} instead of {list(reference.losses)}"
    return None


def gradients(own: Arrays, schedule: Schedule, chunk_of: Mapping[str, int], reference: Reference) -> str | None:
    """Bit equality with the reference accumulated in the schedule's order."""
    for name, grad in own.items():
        expected = reference.accumulated(name, schedule.accumulation_order(chunk_of[name]))
        if not np.array_equal(grad, expected):
            return f"{name} differs by up to {np.abs(grad - expected).max():.3g}"
    return None


def tied(total: np.ndarray | None, schedule: Schedule, reference: Reference) -> str | None:
    """The tied parameter's gradient: each stage's contribution summed over micro-batches first, then both added."""
    if total is None:
        return None
    parts = {
        name: reference.accumulated(name, schedule.accumulation_order(chunk))
        for name, chunk in ((EMBEDDING, 0), (HEAD, schedule.chunks - 1))
    }
    return None if np.array_equal(total, tie(parts)[EMBEDDING]) else "the tied embedding differs"


def whole_batch(own: Arrays, losses: Sequence[float], reference: Reference) -> str | None:
    """Within a tolerance of the whole batch at once; own embedding and head are compared once they are added."""
    if reference.whole_batch is None:
        return None
    if losses and abs(np.mean(losses) - reference.whole_loss) > WHOLE_BATCH_TOLERANCE * abs(reference.whole_loss):
        return f"mean loss {np.mean(losses)}, of the whole batch {reference.whole_loss}"
    for name, grad in own.items():
        expected = reference.whole_batch[name]
        error = np.abs(grad - expected).max() / np.abs(expected).max()
        if error > WHOLE_BATCH_TOLERANCE:
            return f"{name} is off by {error:.2g} of its largest entry"
    return None


def _excluded(receipts: Mapping[int, Receipt]) -> Iterator[Wrapped]:
    for receipt in receipts.values():
        yield from (place for place in receipt.wrapped if place.how in ("saved", "saved as one", "offloaded"))


def excluded_bodies(case: Case, receipts: Mapping[int, Receipt], probes: Probes) -> str | None:
    """Each excluded body ran once per micro-batch, on every chunk."""
    wrong = []
    for place in _excluded(receipts):
        name = f"{place.layer}/{place.path.split('.', 2)[-1]}"
        if probes.bodies[name] != case.microbatches:
            wrong.append(f"{name} ran {probes.bodies[name]} times")
    return f"{', '.join(wrong)} in {case.microbatches} micro-batches" if wrong else None


def replays(case: Case, layers: Mapping[int, Sequence[int]], probes: Probes) -> str | None:
    """Each block ran once per micro-batch, and once more for every replay the session rule allows."""
    for chunk, ids in layers.items():
        expected = case.microbatches * (1 + case.replays(chunk))
        for layer in ids:
            if probes.blocks[layer] != expected:
                return f"layer {layer} ran {probes.blocks[layer]} times instead of {expected}"
    return None


def bindings(case: Case, receipts: Mapping[int, Receipt], probes: Probes) -> str | None:
    """Backward got each region's input of the same micro-batch; and enough was looked at to say so."""
    wrong = probes.misbound + probes.unlike
    if wrong:
        return f"{wrong[0]} ({len(wrong)} in all)"
    for place in _excluded(receipts):
        if place.regions == ("dispatch.counts",):  # integers: there is nothing to differentiate
            continue
        name = f"{place.layer}/{place.path.split('.', 2)[-1]}"
        if probes.witnessed[name] < case.microbatches:
            return f"backward read the input of {name} {probes.witnessed[name]} times only"
    return None


def random_numbers(start: int, end: int, probes: Probes, forwards: int) -> str | None:
    """No two forwards drew the same numbers, and the generator stands where it would without replays."""
    if len(set(probes.draws)) != forwards:
        return f"{forwards} forwards drew from {len(set(probes.draws))} different places"
    if end - start != DRAWS_PER_BLOCK * forwards:
        return f"the generator moved by {end - start} instead of {DRAWS_PER_BLOCK * forwards}"
    return None


def counted_once(case: Case, chunks: Sequence[Chunk], tokens: int) -> str | None:
    """The routers' load counters advanced once per token and choice."""
    for router in _routers(chunks):
        expected = tokens * router.settings.top_k * case.microbatches
        found = int(router.take_load().sum())
        if found != expected:
            return f"a router counted {found} choices instead of {expected}"
    return None


def _routers(chunks: Sequence[Chunk]) -> Iterator[Any]:
    for chunk in chunks:
        for _, cell in chunk.cell.cells_and_names():
            if hasattr(cell, "take_load") and hasattr(cell, "settings"):
                yield cell


def nothing_alive(watched: Sequence[Callable[[], int]]) -> str | None:
    """No session, handle or held storage is left; ``watched`` count what is left of each forward."""
    gc.collect()
    left = sum(count() for count in watched)
    if left or open_sessions() or native_leftovers():
        return (
            f"{left} checkpointed calls, {len(open_sessions())} sessions and {native_leftovers()} native records left"
        )
    return None


def memory(measured: Sequence[float], predicted: Sequence[float]) -> str | None:
    """What autograd held after each step, against the schedule's prediction from single micro-batches."""
    if list(measured) == list(predicted):
        return None
    at = next(i for i, (a, b) in enumerate(zip(measured, predicted, strict=True)) if a != b)
    return f"step {at} held {measured[at]:.0f} bytes, predicted {predicted[at]:.0f}"
