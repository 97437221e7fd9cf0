"""How a mesh dimension holds a tensor, and which part of it a rank has. No MindSpore here.

Modelled on HyperParallel: the names, and that expert parallelism cuts before ``fully_shard`` does, so that the part of
an expert rank is cut again. MindFormers uses them in ``pynative/distributed/expert_parallel.py:
_get_parameter_shard_plan`` and ``pynative/trainer/utils.py: _get_grad_factor``.
"""

from __future__ import annotations

from dataclasses import dataclass


class Placement:
    """How a mesh dimension holds a tensor."""

    def is_shard(self, dim: int | None = None) -> bool:
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        return isinstance(self, Replicate)

    def is_partial(self, reduce_op: str | None = None) -> bool:
        return isinstance(self, Partial) and reduce_op in (None, self.reduce_op)


@dataclass(frozen=True)
class Shard(Placement):
    """In equal parts along ``dim``."""

    dim: int = 0


@dataclass(frozen=True)
class Replicate(Placement):
    """Whole on every rank."""


@dataclass(frozen=True)
class Partial(Placement):
    """Every rank holds a summand."""

    reduce_op: str = "sum"
