"""Fully sharded data parallelism: what ``fully_shard`` does to a Cell, and what the Cell can do afterwards.

Modelled on HyperParallel: the Cell's class becomes ``HSDP<Class>``; its parameters are replaced by this rank's parts;
hooks around the forward gather and drop them; prefetch lists name the units to gather early. MindFormers applies it in
``pynative/base_models/gpt/parallelize.py: apply_fsdp``, inner units first, and sets the prefetch lists in
``_setup_gpt_prefetch``. The mechanism is in ``unit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from mindspore import nn

from hp_memory.errors import NeedsHyperParallel
from hp_memory.mindformers.standin.mesh import DeviceMesh
from hp_memory.mindformers.standin.unit import Unit


@dataclass
class MixedPrecisionPolicy:
    """Only what MindFormers asks for has an effect: gradients are reduced and kept in float32."""

    param_dtype: Any = None
    reduce_dtype: Any = None
    output_dtype: Any = None
    cast_forward_inputs: bool = True
    apply_grad_on_fp32_main_grad: bool = False


@dataclass
class OffloadPolicy:
    """Parameters stay on the device."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """Parameters live on the host; refused by ``fully_shard``."""

    pin_memory: bool = True


# What MindFormers' GPTModel says of itself where its head takes the embedding's weight.
_TIED = "share_embeddings_and_output_weights"


class HSDPModule:
    """Mixed in before the class of a Cell that was fully sharded."""

    hsdp_scheduler: Unit

    def set_reduce_op_type(self, reduce_op_type: str) -> None:
        """``sum`` or ``avg`` of the ranks' gradients."""
        if reduce_op_type not in ("sum", "avg"):
            raise NeedsHyperParallel(f"set_reduce_op_type({reduce_op_type!r})", "only sum and avg are here")
        self.hsdp_scheduler.average = reduce_op_type == "avg"

    def set_modules_to_forward_prefetch(self, modules: Sequence[Any]) -> None:
        """Gathered while this one's forward runs."""
        self.hsdp_scheduler.forward_prefetch = [module.hsdp_scheduler for module in modules]

    def set_modules_to_backward_prefetch(self, modules: Sequence[Any]) -> None:
        """Gathered while this one's backward runs."""
        self.hsdp_scheduler.backward_prefetch = [module.hsdp_scheduler for module in modules]

    def set_requires_gradient_sync(self, requires_grad_sync: bool, *, recurse: bool = True) -> None:
        """Whether gradients are reduced over the ranks after a backward, or only added up."""
        for unit in self._units() if recurse else (self.hsdp_scheduler,):
            unit.reduces = requires_grad_sync

    def set_reshard_after_forward(self, reshard_after_forward: bool, *, recurse: bool = True) -> None:
        """Whether gathered parameters are dropped between a forward and its backward."""
        for unit in self._units() if recurse else (self.hsdp_scheduler,):
            unit.reshard_after_forward = reshard_after_forward

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """Whether gathered parameters are dropped after a backward."""
        for unit in self._units() if recurse else (self.hsdp_scheduler,):
            unit.reshard_after_backward = reshard_after_backward

    def reduce_gradients(self) -> None:
        """Sums over the ranks what backwards without synchronisation have added up, of all units inside."""
        for unit in self._units():
            unit.reduce_gradients()

    def unshard(self, async_op: bool = False) -> None:
        """Gathers this unit's parameters now."""
        self.hsdp_scheduler.unshard()

    def reshard(self) -> None:
        """Drops what was gathered."""
        self.hsdp_scheduler.reshard()

    def zero_grad(self) -> None:
        """Forgets the gradients of this unit and of those inside it."""
        for unit in self._units():
            unit.zero_grad()

    def _units(self) -> list[Unit]:
        cells = (cell for _, cell in cast(nn.Cell, self).cells_and_names())
        return [cell.hsdp_scheduler for cell in cells if isinstance(cell, HSDPModule)]


@cache
def _sharded_class(cls: type) -> type:
    return type(f"HSDP{cls.__name__}", (HSDPModule, cls), {"__module__": cls.__module__, "__doc__": cls.__doc__})


def fully_shard(
    module: nn.Cell,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool = True,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    replicate_params: Sequence[Any] | None = None,
    **unknown: Any,
) -> nn.Cell:
    """Spreads the parameters of ``module`` that no inner unit holds yet.

    Args:
        module: changed in place and returned.
        mesh: one dimension to shard over, or two: copies, then shards.
        reshard_after_forward: drop the gathered parameters between forward and backward.
        mp_policy: see ``MixedPrecisionPolicy``.
        offload_policy: on the host is refused.
        replicate_params: stay whole on every rank; their gradients are reduced only.

    Raises:
        NeedsHyperParallel: for what isn't here.
    """
    _refuse(module, mesh, mp_policy, offload_policy, {name: value for name, value in unknown.items() if value})
    assert mesh is not None, "refused above"
    unit = Unit(module, mesh, reshard_after_forward, [id(p) for p in replicate_params or ()])
    cls: type = type(module)
    module.__class__ = _sharded_class(cls)
    object.__setattr__(module, "hsdp_scheduler", unit)
    return module


def _refuse(module: Any, mesh: Any, precision: Any, offload: Any, unknown: dict[str, Any]) -> None:
    if not isinstance(module, nn.Cell):
        raise NeedsHyperParallel(f"fully_shard({type(module).__name__})", "one unit is one Cell here")
    if mesh is None or mesh.ndim > 2:
        raise NeedsHyperParallel("fully_shard without a mesh of one or two dimensions", "it infers one")
    if isinstance(offload, CPUOffloadPolicy):
        raise NeedsHyperParallel("parallelism.cpu_offload", "it keeps parameters on the host of a device")
    if precision is not None and (precision.param_dtype is not None or precision.output_dtype is not None):
        raise NeedsHyperParallel("MixedPrecisionPolicy", "parameters are gathered in the type they have")
    if any(getattr(cell, _TIED, False) for _, cell in module.cells_and_names()):
        raise NeedsHyperParallel(f"fully_shard with {_TIED}", "the head would read a part of the embedding's weight")
    for name in unknown:
        raise NeedsHyperParallel(f"fully_shard({name}=...)", "it has no meaning here")
