"""Storages that autograd holds for one forward at any moment, replayed tensors included: address -> bytes.

``Observation.held`` is fixed at the first backward and looks for the parameters of the whole process at every call;
here backwards of other micro-batches run in between, and the parameters are known: so ``Observation.living``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hp_memory.activation import Observation


def saved(observation: Observation, parameters: frozenset[int]) -> dict[int, int]:
    """What the forward saved and something still holds; ``parameters`` are storages that don't count."""
    return {held.storage: held.nbytes for held in observation.living() if held.storage not in parameters}


def replayed(handles: Iterable[Any], parameters: frozenset[int]) -> dict[int, int]:
    """What replays of these checkpointed calls made and backward hasn't read for the last time."""
    found: dict[int, int] = {}
    for handle in handles:
        bound = (binding.slot for record in handle.records for binding in record.bindings)
        for slot in (ref() for ref in (*handle.slots, *bound)):
            if slot is not None and slot.value is not None:
                storage = slot.value.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
    return {address: nbytes for address, nbytes in found.items() if address not in parameters}
