"""Distributed tensors (HyperParallel's ``DTensor``): kept as this rank's part, handed out as what they were.

A distributed tensor is an object around a local one: its values, its storage and its share in the graph are the local
part's. What is kept for a replay is that part, without its graph, and what makes it a distributed tensor again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindspore import Tensor

from hp_memory.activation import native


def is_distributed(value: Any) -> bool:
    return type(value) is not Tensor and hasattr(value, "to_local")


def can_be_made_again(value: Any) -> bool:
    """Whether it is a distributed tensor that says what it is made of."""
    return is_distributed(value) and all(hasattr(value, name) for name in ("from_local", "device_mesh", "placements"))


@dataclass(frozen=True)
class Shell:
    """What a distributed tensor is beside its local part."""

    kind: Any
    mesh: Any
    placements: tuple
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Any) -> Shell:
        return cls(type(tensor), tensor.device_mesh, tuple(tensor.placements), bool(tensor._requires_grad))

    def around(self, local: Tensor) -> Any:
        """The distributed tensor with this local part."""
        made = self.kind.from_local(local, self.mesh, self.placements)
        if self.requires_grad:
            made.requires_grad_()
        return made


class Part:
    """An output of a saved region that was distributed, as a record keeps it."""

    __slots__ = ("local", "shell")

    def __init__(self, tensor: Any) -> None:
        self.shell = Shell.of(tensor)
        self.local = native.detached(tensor.to_local())

    def lend(self) -> Any:
        """The distributed tensor for one replay."""
        return self.shell.around(self.local)
