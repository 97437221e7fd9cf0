"""What fixes the shapes of one rank: model, parallel sizes, micro-batch, routing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hp_memory.config.estimate import DTYPES
from hp_memory.estimate.tracing.record import Parameter, Views
from hp_memory.layout import ModelFingerprint
from hp_memory.mindformers import families
from hp_memory.models import fingerprint
from hp_memory.models.settings import REFERENCE, ModelSettings, ParallelSettings

HEAD_REGIONS = ("final_norm", "mtp", "head", "loss")


@dataclass(frozen=True)
class Workload:
    """What fixes the shapes of one rank.

    Attributes:
        sequences: of one micro-batch on one rank.
        dtype: of compute.
        views: see ``EstimateSettings.views``.
        imbalance: see ``EstimateSettings.imbalance``.
        parameters_dtype: of parameters, if another than ``dtype``.
    """

    model: ModelSettings
    parallel: ParallelSettings
    sequences: int
    dtype: str = "bfloat16"
    views: Views = "shared"
    imbalance: float = 1.0
    parameters_dtype: str | None = None

    @property
    def local_length(self) -> int:
        """Tokens of each sequence on one context parallel rank."""
        return self.model.seq_length // self.parallel.context

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on one rank."""
        return self.sequences * self.local_length

    @property
    def local_tokens(self) -> int:
        """Tokens of one rank between attention and MLP, where tensor parallel ranks share the sequence."""
        return self.tokens // self.parallel.tensor

    def key(self) -> str:
        """Equal exactly for workloads whose traces are equal; how often layers are repeated doesn't matter to it."""
        return json.dumps(asdict(self), sort_keys=True)

    def fingerprint(self) -> ModelFingerprint:
        """The plan's view of the model at these parallel sizes."""
        if self.model.family == REFERENCE:
            return fingerprint.fingerprint(self.model)
        return families.fingerprint(self.model, self.parallel)


def hidden_bytes(work: Workload) -> int:
    """Bytes of one micro-batch's hidden states."""
    return work.local_tokens * work.model.hidden_size * DTYPES[work.dtype]


def parameters_of(named: Sequence[tuple[str, Any]], is_expert: Callable[[str], bool]) -> list[Parameter]:
    """Parameters as plain data."""
    return [
        Parameter(name, tuple(p.shape), math.prod(p.shape) * p.itemsize, bool(p.requires_grad), is_expert(name))
        for name, p in named
    ]
