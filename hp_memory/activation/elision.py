"""Which outputs of excluded regions a replay reads: learned in the first forward, kept or elided, and proven.

A replay hands out the kept output of an excluded region instead of running it. If only other excluded regions take
that output, nobody reads its values in a replay, and keeping it is waste: of a chain only the last output is read.
The first forward of a block is watched, and an output that nothing outside excluded regions reads is elided from then
on, the first forward included.

The proof is the stand-in that a replay hands out for an elided output: a tensor of its shape and dtype on the meta
device. Everything that reads a value raises on it.
"""

from __future__ import annotations

import os
import traceback
import weakref
from typing import Any

from mindspore import Tensor

from hp_memory.activation.frames import Frame
from hp_memory.errors import ReplayError

_PRODUCED = "hp_memory_produced"
# What MindSpore says when the host reads a meta tensor. A failed operation is known by the tensor itself.
_META_WORDS = ("src:meta", "meta tensor")


class _Produced:
    """Mark on a live output: which excluded call of which invocation made it. Holds neither."""

    __slots__ = ("key", "token")

    def __init__(self, token: object, key: tuple[int, int]) -> None:
        self.token = token
        self.key = key  # (record, leaf)


def mark(frame: Frame, tensor: Tensor, record: int, leaf: int) -> None:
    """Marks an output, and where the forward is watched also notes the graph node that made it."""
    tensor._set_user_data(_PRODUCED, _Produced(frame.invocation.token, (record, leaf)))
    if frame.reads is None:
        return
    node = tensor._grad_node
    if node is None:
        # The copy that a kernel gets of a view carries neither mark nor node, so a read could go unseen: keep it.
        frame.reads[record, leaf] = None
    else:
        frame.nodes[node._unique_id(), tensor._output_index] = (record, leaf)


def read_by(frame: Frame, tensor: Tensor) -> tuple[int, int] | None:
    """(record, leaf) of the output that an operation reads when it takes ``tensor``."""
    key = produced(tensor, frame.invocation.token)
    if key is None and tensor._grad_node is not None and tensor._grad_node.name() == "Contiguous":
        # A view is copied on its way into the operation, and the mark stays behind.
        node, output = tensor._grad_node.next_functions[0]
        key = frame.nodes.get((node._unique_id(), output)) if node is not None else None
    return key


def produced(tensor: Tensor, token: object) -> tuple[int, int] | None:
    """(record, leaf) if an excluded region of this very invocation made ``tensor``."""
    found = tensor._get_user_data(_PRODUCED)
    return found.key if type(found) is _Produced and found.token is token else None


class Plan:
    """Per excluded call of a block, in order: the region, and for each output leaf whether a replay reads it."""

    def __init__(self, records: list, reads: dict[tuple[int, int], str]) -> None:
        # Weak, because plans of plain functions are kept by function and regions hold the Cell they belong to.
        self.regions = [weakref.ref(record.region) for record in records]
        self.read = [tuple((i, leaf) in reads for leaf in range(record.leaves)) for i, record in enumerate(records)]

    def needed(self, index: int, region: Any, leaves: int) -> tuple[bool, ...] | None:
        """Which leaves of this call to keep; None (all) where the calls aren't the ones that were learned."""
        if index < len(self.regions) and self.regions[index]() is region and len(self.read[index]) == leaves:
            return self.read[index]
        return None


def settle(frame: Frame) -> None:
    """End of a forward that learned: fixes the plan and elides what this forward still holds."""
    if frame.reads is None:
        return
    records = frame.invocation.records
    for (index, _), reader in frame.reads.items():
        if reader is not None and records[index].region.save_output is False:
            raise ReplayError(
                f"excluded region {records[index].region.name} has save_output=False, but {reader} reads its output "
                "outside excluded regions and will be replayed; leave save_output out"
            )
    plan = frame.invocation.boundary.plan = Plan(records, frame.reads)
    for record, read in zip(records, plan.read, strict=True):
        record.elide(read)


class StandIn:
    """An elided output: the shape and dtype of the tensor it was, on the meta device."""

    __slots__ = ("template",)

    def __init__(self, output: Tensor) -> None:
        self.template = output.to("meta")

    def lend(self, frame: Frame, region: Any) -> Tensor:
        """A tensor for one replay. Never shared: after a failed read MindSpore turns the object into zeros."""
        lent = self.template.data
        frame.lent.append((lent, region))
        return lent


def check_unread(frame: Frame) -> None:
    """End of a replay: raises if something read a stand-in and the error was swallowed on the way."""
    read = _first_read(frame)
    if read is not None:
        raise ReplayError(_complaint(read, "a replayed operation"))


def explain(frame: Frame, error: Exception) -> None:
    """Turns MindSpore's error about a stand-in into one that names the region and the reader."""
    if not frame.lent or isinstance(error, ReplayError):
        return
    read = _first_read(frame)
    if read is not None or any(words in str(error) for words in _META_WORDS):
        raise ReplayError(_complaint(read, _line_of(error))) from error


def _first_read(frame: Frame) -> Any:
    """The region whose stand-in is no longer one: the failed read gave it a storage."""
    return next((region for lent, region in frame.lent if lent.data_ptr() != 0), None)


def _complaint(region: Any, reader: str) -> str:
    name = region.name if region else "an excluded region"
    return (
        f"{reader} reads the output of {name} in a replay, but only excluded regions read it in the first forward, so "
        "it wasn't kept: control flow changed between forward and replay, or since the first step (then give that "
        "region save_output=True)"
    )


def _line_of(error: Exception) -> str:
    """The innermost line of the error that is neither MindSpore's nor this package's."""
    own = os.path.dirname(__file__)
    lines = [
        line
        for line in traceback.extract_tb(error.__traceback__)
        if os.path.dirname(line.filename) != own and "mindspore" not in line.filename.split(os.sep)
    ]
    return f"{lines[-1].filename}:{lines[-1].lineno} `{lines[-1].line}`" if lines else "a replayed operation"
