"""Did the first step do what the plan says? Counts per region, against the receipt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hp_memory.activation import Observation, Runs, report
from hp_memory.errors import PlanMismatch
from hp_memory.install import How, Receipt

# How often a place's body runs in backward, per run in a forward.
_REPLAYS: dict[How, int] = {"saved": 0, "saved as one": 0, "offloaded": 0, "named": 0, "replayed": 1}


def check(
    receipts: Sequence[Receipt], observation: Observation, micro_batches: int, tells_replays: bool = True
) -> dict[str, Any]:
    """Compares the calls of one step with the receipts of all model parts of this process.

    Args:
        receipts: what was wrapped.
        observation: of the whole step, forwards and backwards.
        micro_batches: forwards of the step.
        tells_replays: whether the wrappers tell a replay from a forward; otherwise only their sum is compared.

    Returns:
        For each region the counts, JSON-ready.

    Raises:
        PlanMismatch: naming each region whose counts differ, with both.
    """
    expected = _expected(receipts, micro_batches)
    wrong = []
    for name, want in expected.items():
        got = observation.runs.get(name, Runs())
        replays = got.replays + got.spared
        ran = got.body + got.spared
        if ran != want.body or (tells_replays and (got.forward, replays) != (want.forward, want.replays)):
            wrong.append(
                f"{name}: ran {got.forward} times and was replayed {replays} times, "
                f"the plan says {want.forward} and {want.replays}"
            )
    if wrong:
        raise PlanMismatch("the first step isn't what the plan says\n  " + "\n  ".join(wrong))
    return {name: vars(observation.runs[name]).copy() for name in expected}


def _expected(receipts: Sequence[Receipt], micro_batches: int) -> dict[str, Runs]:
    places: Counter[str] = Counter()
    replays: Counter[str] = Counter()
    for wrapped in (w for receipt in receipts for w in receipt.wrapped if w.how != "boundary"):
        regions = wrapped.regions
        name = f"layers.{wrapped.layer}/{regions[0] if len(regions) == 1 else f'{regions[0]}..{regions[-1]}'}"
        places[name] += micro_batches
        replays[name] += micro_batches * _REPLAYS[wrapped.how]
    return {name: Runs(count, count + replays[name], replays[name]) for name, count in places.items()}


def memory(observation: Observation | None) -> dict[str, Any]:
    """What autograd held after the first micro-batch's forward, by region, JSON-ready."""
    return {} if observation is None else report(observation).to_dict()
