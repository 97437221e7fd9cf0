"""One model of one rank, traced once: a layer of each kind, and what stands before and after the blocks."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.estimate.record import LayerTrace, ModelTrace, Parameter
from hp_memory.layout import REGIONS_OF_KIND, ActivationPlan, LayerPlan, ModelFingerprint
from hp_memory.models.settings import REFERENCE, ModelSettings, ParallelSettings

HEAD_REGIONS = ("final_norm", "mtp", "head", "loss")


@dataclass(frozen=True)
class Workload:
    """What fixes the shapes of one rank.

    Attributes:
        sequences: of one micro-batch on one rank.
        dtype: of parameters and compute.
        views: see ``EstimateSettings.views``.
        imbalance: see ``EstimateSettings.imbalance``.
    """

    model: ModelSettings
    parallel: ParallelSettings
    sequences: int
    dtype: str = "bfloat16"
    views: str = "shared"
    imbalance: float = 1.0

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
            return importlib.import_module("hp_memory.models.fingerprint").fingerprint(self.model)
        settings = importlib.import_module("hp_memory.models.mindformers_settings")
        return settings.fingerprint(self.model, self.parallel)


@dataclass(frozen=True)
class LayerCheck:
    """A layer with its plan installed: what the real wrappers held, beside what the rules say.

    Attributes:
        held: storages (shape, dtype, bytes) that the wrappers kept.
        replay_flops: FLOPs of the replay that ran.
        receipt: the installer's words.
    """

    kind: str
    layout: str
    held: tuple[tuple[tuple[int, ...], str, int], ...]
    expected: tuple[tuple[tuple[int, ...], str, int], ...]
    replay_flops: int
    expected_replay_flops: int
    receipt: str = field(default="", compare=False)

    @property
    def agrees(self) -> bool:
        """Whether both ways of counting found the same."""
        return self.held == self.expected and self.replay_flops == self.expected_replay_flops


def refuse_unmodelled(work: Workload) -> None:
    """Raises ConfigError for what no trace of ours covers; nothing is silently left out."""
    parallel = work.parallel
    parallel.validate("parallel", work.model)
    for name, ranks in (("context", parallel.context), ("tensor", parallel.context * parallel.tensor)):
        if work.model.seq_length % ranks:
            why = f"the {work.model.seq_length} tokens of a sequence can't be spread evenly over {ranks} ranks"
            raise ConfigError(f"parallel.{name}", getattr(parallel, name), why)
    if parallel.context > 1:
        context_parallel = importlib.import_module("hp_memory.estimate.context_parallel")
        context_parallel.check(work.model.num_heads // parallel.tensor, parallel.context, parallel.context_method)
    if work.model.family == REFERENCE and work.dtype != "float32":
        raise ConfigError(
            "estimate.dtype", work.dtype, "the reference model computes in float32: estimate=cpu", ("float32",)
        )


_traced: dict[str, ModelTrace] = {}


def trace(work: Workload) -> ModelTrace:
    """The model's trace; made once per process and workload.

    Raises:
        ConfigError: for sizes that aren't modelled.
    """
    refuse_unmodelled(work)
    key = work.key()
    if key not in _traced:
        _traced[key] = _engine(work).trace(work)
    return _traced[key]


def check(work: Workload, plan: ActivationPlan) -> list[LayerCheck]:
    """Installs the plan in a layer of every (kind, layout) that it has, runs it, and compares."""
    refuse_unmodelled(work)
    return _engine(work).check(work, trace(work), plan)


def _engine(work: Workload) -> Any:
    name = "reference_engine" if work.model.family == REFERENCE else "mindformers_engine"
    return importlib.import_module(f"hp_memory.estimate.{name}")


def parameters_of(named: Sequence[tuple[str, Any]], is_expert: Callable[[str], bool]) -> list[Parameter]:
    """Parameters as plain data."""
    return [
        Parameter(name, tuple(p.shape), math.prod(p.shape) * p.itemsize, bool(p.requires_grad), is_expert(name))
        for name, p in named
    ]


def distinct_layouts(plan: ActivationPlan) -> list[LayerPlan]:
    """One layer for each kind and layout of the plan, dense ones first."""
    found: dict[tuple, LayerPlan] = {}
    for layer in plan.layers:
        actions = tuple(sorted(layer.layout.actions.items()))
        found.setdefault((layer.kind, layer.layout.default, actions, layer.layout.spans), layer)
    return sorted(found.values(), key=lambda p: ("dense", "moe", "mtp").index(p.kind))


def saved_regions(layer: LayerPlan) -> frozenset[str]:
    """The regions that a layer excludes from its replay; none where nothing is replayed."""
    regions = REGIONS_OF_KIND[layer.kind]
    saved = frozenset(r for r in regions if layer.layout.action(r) == "save")
    return saved if len(saved) < len(regions) else frozenset()


def compare(trace_: LayerTrace, plain: LayerTrace, layer: LayerPlan, installed: Any, receipt: str) -> LayerCheck:
    """What the wrappers kept in ``trace_``, beside what the rules say from the trace without a plan."""
    from hp_memory.estimate.held import held
    from hp_memory.estimate.record import BARE

    replayed = layer.layout.replays(plain.regions)
    kept = set(trace_.inputs[:1]) if replayed else set()
    kept |= {item.storage for item in ((*installed.saved, *installed.outputs) if replayed else trace_.saved)}
    found = [trace_.storages[n] for n in kept if trace_.activation(n)]
    # What a function keeps by itself is no wrapper's doing.
    by_rule = (entry for entry in held(plain, layer.layout) if entry.reason != "kept outside the hooks")
    wanted = [plain.storages[entry.storage] for entry in by_rule]
    return LayerCheck(
        layer.kind,
        layer.layout.name,
        *(tuple(sorted((s.shape, s.dtype, s.nbytes) for s in group)) for group in (found, wanted)),
        trace_.flops("replay"),
        plain.flops("forward", (*replayed, BARE)) if replayed else 0,
        receipt,
    )
