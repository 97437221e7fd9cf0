"""What a rank holds beside activations: parameters, gradients, optimizer states, collectives. MODELLED, by formula.

Sizes come from the traced parameters; how they are spread is MindFormers' FSDP: dense parameters over
``fsdp * context`` ranks, experts over ``fsdp * context * tensor / expert``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hp_memory.config.estimate import DTYPES, EstimateSettings, bytes_of
from hp_memory.estimate.tracing.record import LayerTrace, Parameter
from hp_memory.models.settings import ParallelSettings

Kind = Literal["MEASURED", "TRACED", "MODELLED"]

# AdamW keeps two float32 moments, and a float32 copy of parameters that are narrower.
_MOMENTS, _MASTER = 8, 4


@dataclass(frozen=True)
class Term:
    """One part of a rank's memory.

    Attributes:
        name: what it is.
        nbytes: on this rank.
        kind: how the figure came about.
        scales: which parallel sizes divide it, in words.
    """

    name: str
    nbytes: int
    kind: Kind
    scales: str


def shards(parallel: ParallelSettings) -> tuple[int, int]:
    """Over how many ranks FSDP spreads dense parameters, and experts."""
    return parallel.fsdp * parallel.context, max(
        1, parallel.fsdp * parallel.context * parallel.tensor // parallel.expert
    )


def keeps_gathered(settings: EstimateSettings, parallel: ParallelSettings) -> bool:
    """Whether gathered parameters stay after a layer's forward, until the step's last backward."""
    if not shards_parameters(settings):
        return True
    return settings.reshard_after_forward == "never" or (
        settings.reshard_after_forward == "default" and parallel.pipeline > 1
    )


def accumulates_whole(settings: EstimateSettings, parallel: ParallelSettings) -> bool:
    """Whether micro-batches' gradients are added up before they are spread, and reduced once at the end of the step.

    HyperParallel's schedules switch the reduction of FSDP's modules off for the run: under any resharding policy.
    """
    whole = settings.gradient_accumulation == "whole"
    return whole or (settings.gradient_accumulation == "default" and parallel.pipeline > 1)


def shards_parameters(settings: EstimateSettings) -> bool:
    """Whether FSDP spreads the parameters themselves."""
    return "params" in settings.shard


def static_terms(
    units: Sequence[LayerTrace], settings: EstimateSettings, parallel: ParallelSettings, hidden: int
) -> tuple[Term, ...]:
    """Terms of one rank that stay through a step.

    Args:
        units: the layers (and ends) that the rank owns.
        hidden: bytes of one micro-batch's hidden states; a pipeline rank receives one from either side.
    """
    own = [p for unit in units for p in unit.parameters]
    spread = parallel.fsdp > 1
    # Reduced at the end of the step, gradients meet no activations.
    reduces = spread and not accumulates_whole(settings, parallel)
    sizes = (
        ("parameters", _spread(own, parallel, _nbytes, shards_parameters(settings)), _BY_ALL),
        ("gathered parameters", _gathered(units, settings, parallel) if spread else 0, _BY_GATHERED),
        ("gradients", _gradients(own, settings, parallel), _BY_ACCUMULATION),
        ("gradients being reduced", _reducing(units) if reduces else 0, "expert, tensor; the largest layer"),
        ("optimizer states", _optimizer(own, settings, parallel), _BY_ALL),
        ("communicators", _communicators(settings, parallel), "kinds of parallelism in use"),
        ("pipeline messages", 2 * hidden if parallel.pipeline > 1 else 0, "context, tensor"),
        ("reserve", bytes_of(settings.reserve, "estimate.reserve"), "stated, not derived"),
    )
    return tuple(Term(name, nbytes, "MODELLED", scales) for name, nbytes, scales in sizes if nbytes)


_BY_ALL = "pipeline, tensor, fsdp; experts also by expert"
_BY_ACCUMULATION = f"{_BY_ALL}; by fsdp only where each micro-batch's are reduced"
_BY_GATHERED = "expert, tensor; pipeline where kept after forward, else the largest layers"


def _spread(
    own: Sequence[Parameter], parallel: ParallelSettings, size: Callable[[Parameter], int], spread: bool
) -> int:
    dense, experts = shards(parallel) if spread else (1, 1)
    return sum(size(p) // (experts if p.expert else dense) for p in own)


def _nbytes(parameter: Parameter) -> int:
    return parameter.nbytes


def _states(parameter: Parameter) -> int:
    if not parameter.trainable:
        return 0
    narrow = parameter.nbytes < 4 * parameter.size
    return parameter.size * (_MOMENTS + (_MASTER if narrow else 0))


def _optimizer(own: Sequence[Parameter], settings: EstimateSettings, parallel: ParallelSettings) -> int:
    """All states, or of states on the host those of the one parameter that is being updated."""
    if not settings.optimizer_on_host:
        return _spread(own, parallel, _states, True)
    return max((_spread([p], parallel, _states, True) for p in own), default=0)


def _gradients(own: Sequence[Parameter], settings: EstimateSettings, parallel: ParallelSettings) -> int:
    width = DTYPES[settings.gradient_dtype]
    spread = "grads" in settings.shard and not accumulates_whole(settings, parallel)
    return _spread(own, parallel, lambda p: p.size * width if p.trainable else 0, spread)


def _gathered(units: Sequence[LayerTrace], settings: EstimateSettings, parallel: ParallelSettings) -> int:
    """Parameters beside this rank's own shard: of all layers where they are kept, else of those in use and ahead."""
    if not shards_parameters(settings):
        return 0
    dense, experts = shards(parallel)
    whole = [sum(p.nbytes for p in u.parameters) for u in units]
    own = [sum(p.nbytes // (experts if p.expert else dense) for p in u.parameters) for u in units]
    missing = sorted((w - o for w, o in zip(whole, own, strict=True)), reverse=True)
    return sum(missing if keeps_gathered(settings, parallel) else missing[: 1 + settings.prefetch])


def _reducing(units: Sequence[LayerTrace]) -> int:
    """One layer's gradients before they are summed over the ranks, in the parameters' dtype."""
    return max((sum(p.nbytes for p in u.parameters if p.trainable) for u in units), default=0)


def _communicators(settings: EstimateSettings, parallel: ParallelSettings) -> int:
    """Two buffers for each group this rank is in; the pipeline has one per neighbour."""
    groups = sum(getattr(parallel, name) > 1 for name in ("data", "tensor", "expert", "context", "fsdp")) + 2 * (
        parallel.pipeline > 1
    )
    buffer = bytes_of(settings.device.communicator_buffer, "estimate.device.communicator_buffer")
    return 2 * groups * buffer


def optimizer_step(units: Sequence[LayerTrace], parallel: ParallelSettings) -> int:
    """What the optimizer's own operations need on the way: three float32 tensors as large as the largest shard."""
    dense, experts = shards(parallel)
    sizes = (p.size // (experts if p.expert else dense) for u in units for p in u.parameters if p.trainable)
    return 3 * 4 * max(sizes, default=0)
