"""What a regression recipe asks for, and the list of cases it means. No MindSpore."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass, field

from hp_memory.errors import ConfigError
from hp_memory.pipeline.generate import SPLIT_ONLY
from hp_memory.pipeline.settings import SCHEDULES, SESSIONS, PipelineSettings

LAYOUTS = ("none", "full", "op_exclude", "region_exclude", "chain_exclude", "offload_experts")


@dataclass
class MatrixSettings:
    """The dimensions of a pipeline regression; every combination that differs is a case.

    ``schedule`` to ``session`` are settings of ``pipeline`` with several values each, ``layout`` names options of that
    group, ``early_stop`` and ``micro_batch_size`` are those of ``layout`` and ``train``.
    """

    schedule: list[str] = field(default_factory=lambda: ["1f1b"])
    stages: list[int] = field(default_factory=lambda: [2])
    microbatches: list[int] = field(default_factory=lambda: [4])
    layers_per_stage: list[int] = field(default_factory=list)
    """An uneven split, for all cases; empty for an even one."""
    split_backward: list[bool] = field(default_factory=lambda: [False])
    """The zero-bubble schedules always split."""
    prefire_recompute: list[bool] = field(default_factory=lambda: [False])
    session: list[str] = field(default_factory=lambda: ["share"])
    """Combinations the config refuses are run too, and must fail with their own error."""
    layout: list[str] = field(default_factory=lambda: ["full"])
    early_stop: list[bool] = field(default_factory=lambda: [False])
    backward_thread: list[bool] = field(default_factory=lambda: [False])
    """Run backward on a thread that never saw the forward."""
    aux_loss: list[float] = field(default_factory=lambda: [0.0])
    """Weight of the routers' balance loss. It isn't linear in the batch: above 0 there is no whole-batch check."""
    micro_batch_size: int = 1
    """Sequences per micro-batch and rank."""
    seed: int = 7

    def validate(self, path: str = "matrix") -> None:
        """Refuse an empty dimension or an unknown value.

        Raises:
            ConfigError: names the setting.
        """
        accepted = {"schedule": SCHEDULES, "layout": LAYOUTS, "session": SESSIONS}
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
        if self.micro_batch_size < 1:
            raise ConfigError(f"{path}.micro_batch_size", self.micro_batch_size, "must be at least 1")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"{path}.seed", self.seed, f"must be between 0 and {2**32 - 1}")


@dataclass(frozen=True)
class Case:
    """One run of the matrix."""

    schedule: str
    layout: str
    session: str = "share"
    microbatches: int = 4
    stages: int = 2
    split_backward: bool = False
    prefire_recompute: bool = False
    early_stop: bool = False
    backward_thread: bool = False
    aux_loss: float = 0.0
    layers_per_stage: tuple[int, ...] = ()

    @property
    def order(self) -> str:
        """The schedule, with a mark where it splits backward and needn't."""
        return f"{self.schedule}+split" if self.split_backward and self.schedule not in SPLIT_ONLY else self.schedule

    @property
    def name(self) -> str:
        flags = [
            "prefire" if self.prefire_recompute else "",
            f"session={self.session}",
            "early_stop" if self.early_stop else "",
            "thread" if self.backward_thread else "",
            f"aux={self.aux_loss}" if self.aux_loss else "",
            "uneven" if self.layers_per_stage else "",
        ]
        sizes = f"p{self.stages} m{self.microbatches}"
        return " ".join([self.order, self.layout, sizes, *filter(None, flags)])

    @property
    def settings(self) -> PipelineSettings:
        """As pipeline settings, not validated: some cases are there because they must be refused."""
        return PipelineSettings(
            stages=self.stages,
            layers_per_stage=list(self.layers_per_stage) or "auto",
            microbatches=self.microbatches,
            schedule=self.schedule,
            interleave=2 if self.schedule == "interleaved_1f1b" else 1,
            split_backward=self.split_backward,
            prefire_recompute=self.prefire_recompute,
            session=self.session,
        )

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
        twice = self.split_backward and self.session == "none" and chunk > 0  # the first chunk's dx runs no engine
        return (2 if twice else 1) if self.replays_something else 0


def expand(matrix: MatrixSettings) -> tuple[Case, ...]:
    """All cases of a matrix, without those that only differ in settings that have no effect there."""
    dimensions = itertools.product(
        matrix.stages,
        matrix.microbatches,
        matrix.schedule,
        matrix.split_backward,
        matrix.layout,
        matrix.session,
        matrix.prefire_recompute,
        matrix.early_stop,
        matrix.backward_thread,
        matrix.aux_loss,
    )
    found: dict[Case, None] = {}
    for stages, micros, schedule, split, layout, session, prefire, early_stop, thread, aux in dimensions:
        if schedule == "interleaved_1f1b" and micros % stages:
            continue
        split = split or schedule in SPLIT_ONLY
        if layout == "none":  # nothing is replayed: sessions, pre-fire and early stop have nothing to act on
            session, prefire, early_stop = "share", False, False
        sizes = tuple(matrix.layers_per_stage)
        case = Case(schedule, layout, session, micros, stages, split, prefire, early_stop, thread, aux, sizes)
        found[case] = None
    return tuple(found)
