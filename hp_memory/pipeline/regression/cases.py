"""What a regression recipe asks for, and the list of cases it means. No MindSpore."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field

from hp_memory.errors import ConfigError
from hp_memory.pipeline.settings import SCHEDULES, SESSIONS, PipelineSettings

SPLIT = "+split"
VARIANTS = (*SCHEDULES, *(f"{name}{SPLIT}" for name in ("gpipe", "1f1b", "interleaved_1f1b")))
LAYOUTS = ("none", "full", "op_exclude", "region_exclude", "chain_exclude", "offload_experts")


@dataclass
class MatrixSettings:
    """The dimensions of a pipeline regression; every combination that differs is a case."""

    schedules: list[str] = field(default_factory=lambda: ["1f1b"])
    """Schedules by name; ``+split`` runs dx and dw as two steps where the schedule leaves the choice."""
    layouts: list[str] = field(default_factory=lambda: ["full"])
    prefire: list[bool] = field(default_factory=lambda: [False])
    sessions: list[str] = field(default_factory=lambda: ["share"])
    """Session rules; combinations the config refuses are run too, and must fail with their own error."""
    microbatches: list[int] = field(default_factory=lambda: [4])
    stages: list[int] = field(default_factory=lambda: [2])
    early_stop: list[bool] = field(default_factory=lambda: [False])
    backward_thread: list[bool] = field(default_factory=lambda: [False])
    """Run backward on a thread that never saw the forward."""
    aux_loss: list[float] = field(default_factory=lambda: [0.0])
    """Weight of the routers' balance loss. It isn't linear in the batch: above 0 there is no whole-batch check."""
    layers_per_stage: list[int] = field(default_factory=list)
    """An uneven split, for all cases; empty for an even one."""
    rows: int = 1
    """Sequences per micro-batch and rank."""
    seed: int = 7

    def validate(self, path: str = "matrix") -> None:
        """Refuse an empty dimension or an unknown value.

        Raises:
            ConfigError: names the setting.
        """
        accepted = {"schedules": VARIANTS, "layouts": LAYOUTS, "sessions": SESSIONS}
        for name, value in asdict(self).items():
            if isinstance(value, list) and not value and name != "layers_per_stage":
                raise ConfigError(f"{path}.{name}", value, "is empty: there would be no case")
            for i, each in enumerate(value if name in accepted else ()):
                if each not in accepted[name]:
                    raise ConfigError(f"{path}.{name}[{i}]", each, "unknown", accepted[name])
            if isinstance(value, list) and name != "layers_per_stage" and len(set(value)) < len(value):
                raise ConfigError(f"{path}.{name}", value, "names a value twice, and runs it once")
        self._check_numbers(path)

    def _check_numbers(self, path: str) -> None:
        for name, least, most in (("stages", 2, 256), ("microbatches", 1, 10_000), ("aux_loss", 0, 1e6)):
            for i, each in enumerate(getattr(self, name)):
                if not least <= each <= most:
                    raise ConfigError(f"{path}.{name}[{i}]", each, f"must be between {least} and {most}")
        if self.rows < 1:
            raise ConfigError(f"{path}.rows", self.rows, "must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"{path}.seed", self.seed, f"must be between 0 and {2**32 - 1}")


@dataclass(frozen=True)
class Case:
    """One run of the matrix."""

    variant: str
    layout: str
    prefire: bool
    session: str
    microbatches: int
    stages: int
    early_stop: bool
    backward_thread: bool = False
    aux_loss: float = 0.0
    layers_per_stage: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        flags = [
            "prefire" if self.prefire else "",
            f"session={self.session}",
            "early_stop" if self.early_stop else "",
            "thread" if self.backward_thread else "",
            f"aux={self.aux_loss}" if self.aux_loss else "",
            "uneven" if self.layers_per_stage else "",
        ]
        sizes = f"p{self.stages} m{self.microbatches}"
        return " ".join([self.variant, self.layout, sizes, *filter(None, flags)])

    @property
    def settings(self) -> PipelineSettings:
        """As pipeline settings, not validated: some cases are there because they must be refused."""
        schedule = self.variant.removesuffix(SPLIT)
        return PipelineSettings(
            stages=self.stages,
            layers_per_stage=list(self.layers_per_stage) or "auto",
            microbatches=self.microbatches,
            schedule=schedule,
            interleave=2 if schedule == "interleaved_1f1b" else 1,
            split_backward=self.splits,
            prefire_recompute=self.prefire,
            session=self.session,
        )

    @property
    def splits(self) -> bool:
        return self.variant.endswith(SPLIT) or self.variant.startswith("zb")

    @property
    def replays_something(self) -> bool:
        return self.layout != "none"

    @property
    def refused(self) -> bool:
        """Whether this combination must fail, by config and by session."""
        try:
            self.settings.validate()
        except ConfigError:
            return True
        return False

    def replays(self, chunk: int) -> int:
        """How often each checkpointed block of a chunk is replayed per micro-batch."""
        twice = self.splits and self.session == "none" and chunk > 0  # the first chunk's dx runs no engine
        return (2 if twice else 1) if self.replays_something else 0


def expand(matrix: MatrixSettings) -> tuple[Case, ...]:
    """All cases of a matrix, without those that only differ in settings that have no effect there."""
    dimensions = itertools.product(
        matrix.stages,
        matrix.microbatches,
        matrix.schedules,
        matrix.layouts,
        matrix.sessions,
        matrix.prefire,
        matrix.early_stop,
        matrix.backward_thread,
        matrix.aux_loss,
    )
    found: dict[Case, None] = {}
    for stages, micros, variant, layout, session, prefire, early_stop, thread, aux in dimensions:
        if variant.startswith("interleaved") and micros % stages:
            continue
        if layout == "none":  # nothing is replayed: sessions, pre-fire and early stop have nothing to act on
            session, prefire, early_stop = "share", False, False
        split = tuple(matrix.layers_per_stage)
        found[Case(variant, layout, prefire, session, micros, stages, early_stop, thread, aux, split)] = None
    return tuple(found)
