"""What a rank does once a step, beside its micro-batches: parameters gathered, gradients reduced, the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hp_memory.config.estimate import DTYPES, EstimateSettings
from hp_memory.estimate.account.terms import keeps_gathered, shards
from hp_memory.estimate.tracing.record import LayerTrace, Parameter
from hp_memory.models.settings import ParallelSettings

# AdamW in float32: reads gradient, two moments and master copy, writes moments and copy, and the parameter.
_OPTIMIZER_BYTES = 4 + 3 * 4 + 3 * 4 + 2


@dataclass(frozen=True)
class Outside:
    """Seconds of a rank per step.

    Attributes:
        gather: of all its parameters once.
        gathers: how often per step they are gathered.
        reduce: of all its gradients once.
        reduces: how often per step they are reduced.
        optimizer: its own operations.
    """

    gather: float
    gathers: int
    reduce: float
    reduces: int
    optimizer: float

    def exposed_gathers(self, forward: float, backward: float) -> float:
        """What computing doesn't hide, of ``forward`` and ``backward`` seconds of one micro-batch.

        The next layer's parameters are gathered while a layer runs: a gather costs what it takes longer than that.
        """
        if not self.gathers:
            return 0.0
        late = max(self.gather - forward, 0.0)
        if self.gathers == 1:
            return late
        return self.gathers / 2 * (late + max(self.gather - backward, 0.0))

    def exposed_reduces(self, backward: float) -> float:
        """The same for gradients; one reduction after the last backward has nothing to hide behind."""
        if self.reduces <= 1:
            return self.reduce * self.reduces
        return self.reduces * max(self.reduce - backward, 0.0)


def outside(
    units: Sequence[LayerTrace], settings: EstimateSettings, parallel: ParallelSettings, microbatches: int
) -> Outside:
    """One rank's; ``units`` are the layers and ends that it owns."""
    own = [p for unit in units for p in unit.parameters]
    link, memory = settings.device.link_bandwidth, settings.device.memory_bandwidth
    dense, experts = shards(parallel)
    spread = settings.shard == "optim_grads_params"
    missing = sum(p.nbytes - p.nbytes // _ways(p, dense, experts) for p in own)
    width = DTYPES[settings.gradient_dtype]
    grads = sum(p.size * width * (1 - 1 / _ways(p, dense, experts)) for p in own if p.trainable)
    shard = sum(p.size / _ways(p, dense, experts) for p in own if p.trainable)
    return Outside(
        missing / link,
        0 if not missing else 1 if keeps_gathered(settings, parallel) or not spread else 2 * microbatches,
        grads / link,
        0 if not grads else 1 if parallel.pipeline > 1 or not spread else microbatches,
        shard * _OPTIMIZER_BYTES / memory,
    )


def _ways(parameter: Parameter, dense: int, experts: int) -> int:
    return experts if parameter.expert else dense


def embedding_seconds(embedding: LayerTrace, tokens: int, hidden: int, settings: EstimateSettings) -> float:
    """Of one micro-batch's look-up and its gradient: rows are read and written, their gradients added up in float32."""
    if not embedding.parameters:
        return 0.0
    rows = tokens * hidden
    return rows * (3 * DTYPES[settings.dtype] + 8) / settings.device.memory_bandwidth
