"""A workload's trace, by the engine of its family: made once per process."""

from __future__ import annotations

import importlib
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.estimate.account.check import LayerCheck
from hp_memory.estimate.tracing.record import ModelTrace
from hp_memory.estimate.workload import Workload
from hp_memory.layout import ActivationPlan
from hp_memory.models.settings import REFERENCE


def refuse_unmodelled(work: Workload) -> None:
    """Raises ConfigError for what no trace of ours covers; nothing is silently left out."""
    parallel = work.parallel
    parallel.validate("parallel", work.model)
    for name, ranks in (("context", parallel.context), ("tensor", parallel.context * parallel.tensor)):
        if work.model.seq_length % ranks:
            why = f"the {work.model.seq_length} tokens of a sequence can't be spread evenly over {ranks} ranks"
            raise ConfigError(f"parallel.{name}", getattr(parallel, name), why)
    if parallel.context > 1:
        # Lazily: it needs MindSpore, which takes seconds to import.
        context_parallel = importlib.import_module("hp_memory.estimate.engines.context_parallel")
        context_parallel.check(work.model.num_heads // parallel.tensor, parallel.context, parallel.context_method)
    if work.model.family == REFERENCE and work.dtype != "float32":
        raise ConfigError(
            "estimate.dtype", work.dtype, "the reference model computes in float32: estimate=cpu", ("float32",)
        )
    if work.model.family == REFERENCE and work.parameters_dtype not in (None, "float32"):
        why = "the reference model's parameters are float32"
        raise ConfigError("estimate.parameters_dtype", work.parameters_dtype, why, ("float32",))


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
    name = "reference" if work.model.family == REFERENCE else "mindformers"
    return importlib.import_module(f"hp_memory.estimate.engines.{name}")
