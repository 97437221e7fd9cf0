"""Settings of HyperOffload: the ``offload`` config group and the ``offload`` command. Imports no MindSpore."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from hp_memory.errors import ConfigError

AUTO_OFFLOAD = ("none", "weight", "activation", "all")
STRATEGIES = ("distance", "peak")
ACTIONS = ("plan", "advise", "timeline", "verify")
COUNTS = (
    "select_distance",
    "select_num",
    "prefetch_distance",
    "release_distance",
    "max_device_memory",
    "headroom",
    "dynamic_shape_placeholder_bytes",
)
MOST = 1e12
# What each strategy leaves unread; weights have neither.
UNREAD = {
    "distance": ("max_device_memory", "headroom", "score_weights", "memory_block_path"),
    "peak": ("select_distance", "select_num"),
}
POSITIVE = ("d2h_bandwidth_gbps", "h2d_bandwidth_gbps", "kernel_time_us")


@dataclass
class OffloadSettings:
    """What MindSpore 2.10.0's HyperOffload reads; defaults are its own, except that ``none`` leaves it off."""

    auto_offload: str = "none"
    """``none``, ``weight`` (remote parameters), ``activation`` or ``all``."""
    strategy: str = "distance"
    """``distance`` (long gaps between uses) or ``peak`` (what covers the highest point of the memory profile)."""
    select_distance: int = 100
    """A gap must be longer than this many kernels. Distance strategy only."""
    select_num: int = 100
    """At most this many tensors, in the order of their first use. Distance strategy only."""
    prefetch_distance: int = 50
    """Kernels by which a reload starts before its first user."""
    release_distance: int = 0
    """Kernels by which the device copy outlives its last user before the gap."""
    max_device_memory: int = 42949672960
    """Bytes; with ``headroom`` the target of the peak strategy. 0: it selects nothing."""
    headroom: int = 4294967296
    """Bytes taken off ``max_device_memory``."""
    score_weights: list[float] = field(default_factory=lambda: [1.0, 1.0, 1.0, 1.0])
    """Peak strategy: weights of size, distance back, distance ahead and overlap."""
    filter_percentage: int | None = None
    """Keep this share of the selected tensors, evenly spaced; null keeps all. Distance strategy only."""
    stages: list[int] = field(default_factory=list)
    """Pipeline stages in which activations are moved; empty means every stage."""
    adaptive_release: bool = False
    """Peak strategy: a release distance for each tensor from its size, the bandwidth and ``kernel_time_us``."""
    adaptive_prefetch: bool = False
    """Peak strategy: a prefetch distance for each tensor likewise."""
    d2h_bandwidth_gbps: float = 20.0
    """Device to host, in 1e9 bytes per second."""
    h2d_bandwidth_gbps: float = 55.0
    """Host to device, in 1e9 bytes per second."""
    kernel_time_us: float = 400.0
    """Time of a kernel whose time isn't known, in microseconds."""
    memory_block_path: str = ""
    """A memory_block.csv for the peak strategy's profile; read by MindSpore, not modelled by the planner."""
    dynamic_shape_placeholder_bytes: int = 134217728
    """Bytes the peak strategy takes for an output of unknown shape."""
    sliding_window: bool = False
    """MindSpore's runtime sliding window (``ENABLE_HYPER_OFFLOAD_SLIDE``); not modelled by the planner."""

    @property
    def moves_activations(self) -> bool:
        return self.auto_offload in ("activation", "all")

    @property
    def moves_parameters(self) -> bool:
        return self.auto_offload in ("weight", "all")

    @property
    def threshold(self) -> int:
        """Bytes the peak strategy's profile must fit in."""
        return max(0, self.max_device_memory - self.headroom)

    def validate(self, path: str) -> None:
        """Refuse what MindSpore would misread: it takes ``-1`` as 2**64-1 and ``3x`` as 3.

        Raises:
            ConfigError: naming the setting, its value and what would have been accepted.
        """
        require_one_of(f"{path}.auto_offload", self.auto_offload, AUTO_OFFLOAD)
        require_one_of(f"{path}.strategy", self.strategy, STRATEGIES)
        for name in COUNTS:
            require_count(f"{path}.{name}", getattr(self, name))
        for name in POSITIVE:
            if not 0 < getattr(self, name) < MOST:
                raise ConfigError(f"{path}.{name}", getattr(self, name), f"must be above 0 and below {MOST:g}")
        for k, weight in enumerate(self.score_weights):
            if not math.isfinite(weight):
                raise ConfigError(f"{path}.score_weights[{k}]", weight, "must be a finite number")
        self._validate_strategy(path)
        self._refuse_unread(path)
        for k, stage in enumerate(self.stages):
            require_count(f"{path}.stages[{k}]", stage)

    def _refuse_unread(self, path: str) -> None:
        """Settings that the chosen strategy, or a pass over weights alone, doesn't read."""
        default = OffloadSettings()
        for strategy, names in UNREAD.items():
            other = "peak" if strategy == "distance" else "distance"
            for name in names:
                if self.strategy == strategy and getattr(self, name) != getattr(default, name):
                    raise ConfigError(
                        f"{path}.{name}", getattr(self, name), f"has an effect with offload.strategy={other} only"
                    )
        for name in ("strategy", "select_distance", "select_num", "filter_percentage", "stages"):
            if self.auto_offload == "weight" and getattr(self, name) != getattr(default, name):
                why = "has an effect on activations only: offload.auto_offload is weight"
                raise ConfigError(f"{path}.{name}", getattr(self, name), why)

    def _validate_strategy(self, path: str) -> None:
        if len(self.score_weights) != 4:
            raise ConfigError(f"{path}.score_weights", list(self.score_weights), "needs 4 weights")
        percentage = self.filter_percentage
        if percentage is not None and not 0 <= percentage <= 100:
            raise ConfigError(f"{path}.filter_percentage", percentage, "must be between 0 and 100")
        if self.strategy == "peak" and percentage is not None:
            raise ConfigError(f"{path}.filter_percentage", percentage, "has no effect with the peak strategy")
        for name in ("adaptive_release", "adaptive_prefetch"):
            if getattr(self, name) and self.strategy != "peak":
                raise ConfigError(f"{path}.{name}", True, "has an effect with offload.strategy=peak only")


# What each action of the command reads beside the graph, the settings, `remote` and `stage`.
READS = {
    "plan": ("kernel_times",),
    "timeline": ("kernel_times",),
    "advise": ("kernel_times", "exposed_us", "evaluations"),
    "verify": ("trace",),
}
# Passed on to MindSpore, but no part of the planner's model.
NOT_MODELLED = ("memory_block_path", "sliding_window")


@dataclass
class OffloadCommandSettings:
    """What ``hp-memory offload ACTION`` reads beside the ``offload`` group."""

    graph: str = ""
    """An ``actor_set`` dump (``.ir``) or a graph as JSON."""
    trace: str = ""
    """``verify``: a MindSpore INFO log with the optimizer's trace."""
    kernel_times: str = ""
    """A CSV of ``name,us`` with measured kernel times; empty takes ``offload.kernel_time_us`` for each kernel."""
    remote: list[str] = field(default_factory=list)
    """Parameters that live on the host, as shell patterns such as ``layers.*.weight``."""
    stage: int = 0
    """Pipeline stage that the graph is of, for ``offload.stages``."""
    exposed_us: float = 0.0
    """``advise``: transfer time that compute may wait for, in microseconds per step."""
    evaluations: int = 600
    """``advise``: how many settings to try at most."""

    def validate(self, action: str, offload: OffloadSettings) -> None:
        """Refuse missing files, bounds out of range, and what the action or the planner doesn't read.

        Raises:
            ConfigError: naming the setting.
        """
        require_one_of("action", action, ACTIONS)
        require_file("graph", self.graph)
        default = OffloadCommandSettings()
        for name in ("trace", "kernel_times", "exposed_us", "evaluations"):
            value = getattr(self, name)
            if name not in READS[action] and value != getattr(default, name):
                readers = [reader for reader, names in READS.items() if name in names]
                raise ConfigError(name, value, f"isn't read by `offload {action}`, but by {', '.join(readers)}")
        if action == "verify" or self.trace:
            require_file("trace", self.trace)
        if self.kernel_times:
            require_file("kernel_times", self.kernel_times)
        require_count("stage", self.stage)
        if not 0 <= self.exposed_us < MOST:
            raise ConfigError("exposed_us", self.exposed_us, f"must be 0 or more and below {MOST:g}")
        if self.evaluations < 1:
            raise ConfigError("evaluations", self.evaluations, "must be 1 or more")
        self._refuse_unmodelled(action, offload)

    def _refuse_unmodelled(self, action: str, offload: OffloadSettings) -> None:
        if self.remote and not offload.moves_parameters:
            why = "has no effect: weights stay where they are with offload.auto_offload="
            raise ConfigError("remote", list(self.remote), f"{why}{offload.auto_offload}")
        if action == "advise" and offload.auto_offload == "none":
            raise ConfigError(
                "offload.auto_offload", "none", "moves nothing: there is nothing to advise", AUTO_OFFLOAD[1:]
            )
        for name in NOT_MODELLED:
            if getattr(offload, name) != getattr(OffloadSettings(), name):
                raise ConfigError(f"offload.{name}", getattr(offload, name), "isn't modelled by the planner")


def require_one_of(path: str, value: object, accepted: tuple[str, ...]) -> None:
    if value not in accepted:
        raise ConfigError(path, value, "is not known", accepted)


def require_count(path: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ConfigError(path, value, "must be a whole number, 0 or more")


def require_file(path: str, value: str) -> None:
    if not value:
        raise ConfigError(path, value, "is needed: give a file")
    if not os.path.isfile(value):
        raise ConfigError(path, value, "no such file")


def setting_names() -> tuple[str, ...]:
    return tuple(f.name for f in fields(OffloadSettings))


def changed(settings: OffloadSettings, values: Mapping[str, Any]) -> OffloadSettings:
    """The settings with other values for some of them."""
    return replace(settings, **values)
