"""Which outputs of excluded regions a replay reads: learned in the first forward, kept or elided, and proven.

A replay hands out the kept output of an excluded region instead of running it. If only other excluded regions take
that output, nobody reads its values in a replay, and keeping it is waste: of a chain only the last output is read.
The first forward of a block runs under a dispatch mode that sees every operation outside excluded regions; an output
that no such operation takes is elided from then on, the first forward included.

The proof is the stand-in that a replay hands out for an elided output: a tensor of its shape and dtype on the meta
device. Every operation that reads a value raises on it.
"""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

from mindspore import MsDispatchMode, Tensor

from hp_memory.activation.frames import Frame
from hp_memory.activation.trees import tensors
from hp_memory.errors import ReplayError

_PRODUCED = "hp_memory_produced"


class Produced:
    """Mark on a live output: which excluded call of which invocation made it. Holds neither."""

    __slots__ = ("key", "token")

    def __init__(self, token: object, key: tuple[int, int]) -> None:
        self.token = token
        self.key = key  # (record, leaf)


def mark(tensor: Tensor, token: object, record: int, leaf: int) -> None:
    tensor._set_user_data(_PRODUCED, Produced(token, (record, leaf)))


def produced(tensor: Tensor, token: object) -> tuple[int, int] | None:
    """(record, leaf) if an excluded region of this very invocation made ``tensor``."""
    found = tensor._get_user_data(_PRODUCED)
    return found.key if type(found) is Produced and found.token is token else None


class Plan:
    """Per excluded call of a block, in order: the region, and for each output leaf whether a replay reads it."""

    def __init__(self, frame: Frame) -> None:
        records = frame.invocation.records
        self.regions = [record.region for record in records]
        self.read = [
            tuple((i, leaf) in frame.reads for leaf in range(record.leaves)) for i, record in enumerate(records)
        ]

    def needed(self, index: int, region: Any, leaves: int) -> tuple[bool, ...] | None:
        """Which leaves of this call to keep; None (all) where the calls aren't the ones that were learned."""
        if index < len(self.regions) and self.regions[index] is region and len(self.read[index]) == leaves:
            return self.read[index]
        return None


class _Learner(MsDispatchMode):
    """Notes which outputs of excluded regions the operations outside them take."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def __ms_dispatch__(self, func: Any, args: tuple, kwargs: dict | None = None) -> Any:
        if self.frame.inside is None:
            self._scan(args)
        return func(*args, **(kwargs or {}))

    def _scan(self, values: Any) -> None:
        for value in values:
            if isinstance(value, Tensor):
                key = produced(value, self.frame.invocation.token)
                if key is not None:
                    self.frame.reads.add(key)
            elif isinstance(value, (tuple, list)):
                self._scan(value)


def learn(frame: Frame) -> contextlib.AbstractContextManager:
    """The context of a forward: a dispatch mode where the block's reads aren't known yet."""
    if frame.invocation.boundary.plan is not None:
        return contextlib.nullcontext()
    frame.reads = set()
    return _Learner(frame)


def settle(frame: Frame) -> None:
    """End of a forward that learned: fixes the plan and elides what this forward still holds."""
    if frame.reads is None:
        return
    plan = frame.invocation.boundary.plan = Plan(frame)
    for index, record in enumerate(frame.invocation.records):
        record.elide(plan.read[index])


def stand_in(output: Tensor) -> Tensor:
    """A tensor of the same shape and dtype without values. It is never handed out itself: see :func:`lend`."""
    return output.to("meta")


def lend(frame: Frame, template: Tensor) -> Tensor:
    """A stand-in for one replay. Never shared: after a failed read MindSpore turns the object into zeros."""
    lent = template.data
    frame.lent.append(lent)
    return lent


def check_unread(frame: Frame) -> None:
    """End of a replay: raises if an operation touched a stand-in and the error was swallowed on the way."""
    if any(tensor.data_ptr() != 0 for tensor in frame.lent):
        raise ReplayError(_advice(frame, "a replayed operation"))


def explain(frame: Frame, error: Exception) -> None:
    """Turns MindSpore's error about a meta tensor into one that names the region and the reader."""
    if frame.lent and "meta" in str(error):
        raise ReplayError(_advice(frame, _reader(error))) from error


def _advice(frame: Frame, reader: str) -> str:
    elided = [record.region.name for record in frame.invocation.records if record.elided]
    return (
        f"{reader} read the output of an excluded region that wasn't kept (elided: {', '.join(elided)}); "
        "wrap that region with save_output=True"
    )


def _reader(error: Exception) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "mindspore" not in f.filename.split("/")]
    last = frames[-1]
    return f"{last.filename}:{last.lineno} `{last.line}`"


def leaves_of(output: Any) -> int:
    return len(tensors(output))
