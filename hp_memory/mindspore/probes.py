"""What stands on each private name of MindSpore, and whether this installation has it. Data, and one check over it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

_SOURCE = "https://gitee.com/mindspore/mindspore/tree/master/mindspore/python/"


@dataclass(frozen=True)
class Probe:
    """A private name.

    Attributes:
        module: where MindSpore keeps it.
        attributes: the names in it.
        breaks: what doesn't work without them.
        file: MindSpore's source file, below its Python folder.
    """

    module: str
    attributes: tuple[str, ...]
    breaks: str
    file: str

    @property
    def link(self) -> str:
        """The source upstream."""
        return _SOURCE + self.file

    def missing(self) -> tuple[str, ...]:
        """The names that this MindSpore lacks."""
        try:
            module = importlib.import_module(self.module)
        except ImportError:
            return self.attributes
        return tuple(name for name in self.attributes if not hasattr(module, name))


PROBES: tuple[Probe, ...] = (
    Probe(
        "mindspore.common.recompute",
        (
            "_RecomputeHandle",
            "_InputSaver",
            "_recompute_session",
            "_recompute_session_handles",
            "_recompute_handle_collector",
            "_enable_recompute_early_stop",
        ),
        "checkpoints: replays, sessions, pre-fired replays of pipeline schedules",
        "mindspore/common/recompute.py",
    ),
    Probe(
        "mindspore.graph.api",
        ("_pynative_executor", "_no_grad", "_GradientEdge", "_JitExecutor"),
        "recording, split backward, in-place updates, what a compiled function reads",
        "mindspore/common/api.py",
    ),
    Probe(
        "mindspore.common._grad_function",
        ("_Function",),
        "custom gradients: CPU kernels, collectives, what a watch sees of them",
        "mindspore/common/_grad_function.py",
    ),
    Probe(
        "mindspore._c_expression",
        ("Cell_", "MixedPrecisionType", "_DispatchGuardStack", "run_backward"),
        "mixed precision in a replay, split backward",
        "mindspore/common/_grad_function.py",
    ),
    Probe(
        "mindspore._c_expression.amp",
        ("get_curr_amp_strategy",),
        "automatic mixed precision in a replay",
        "mindspore/train/amp.py",
    ),
    Probe("mindspore.train.amp", ("AmpDecorator",), "automatic mixed precision in a replay", "mindspore/train/amp.py"),
    Probe(
        "mindspore.common.generator",
        ("get_rng_state", "set_rng_state", "default_generator"),
        "dropout draws the same numbers in a replay",
        "mindspore/common/generator.py",
    ),
    Probe(
        "mindspore.ops.auto_generate",
        ("as_strided",),
        "views of a region's input are made again",
        "mindspore/ops/auto_generate",
    ),
    Probe(
        "mindspore.graph._parse.compile_config",
        (),
        "HyperOffload's settings of graph mode",
        "mindspore/graph/_parse/compile_config.py",
    ),
    Probe(
        "mindspore.parallel.cluster.process_entity._api",
        (),
        "several simulated nodes on one machine",
        "mindspore/parallel/cluster/process_entity/_api.py",
    ),
)


def missing() -> dict[str, tuple[str, ...]]:
    """What doesn't work here -> the names that are missing; empty where all are there."""
    found = {probe.breaks: probe.missing() for probe in PROBES}
    return {breaks: names for breaks, names in found.items() if names}
