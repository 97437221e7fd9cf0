"""The fastest step over everything that may be chosen: layouts, stages, micro-batch and schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hp_memory.config.estimate import EstimateSettings, SearchSettings
from hp_memory.errors import ConfigError
from hp_memory.estimate.search.budget import Planner
from hp_memory.estimate.search.programme import proven_gap
from hp_memory.estimate.search.stages import cuts
from hp_memory.estimate.search.step import Answer, best_layouts, schedule_in_words, undercut
from hp_memory.estimate.workload import Workload
from hp_memory.pipeline.settings import SCHEDULES, PipelineSettings

_TRIED = 3
"""Cuts whose layouts are chosen, of one micro-batch and schedule."""
_SIZES = (1, 2, 4, 8, 16)
_CHUNKS = (2, 3, 4)


@dataclass(frozen=True)
class Case:
    """One micro-batch size and schedule: the best that was found for it.

    Attributes:
        moved: the freedoms in which it differs from what the config says.
        bound: seconds that nothing of this case undercuts.
        proven: whether the bound holds for every cut and layout, or only for the cut that was tried.
    """

    moved: frozenset[str]
    answer: Answer
    bound: float
    proven: bool


@dataclass(frozen=True)
class Found:
    """The outcome of a search.

    Attributes:
        best: the fastest plan.
        present: the fastest with layouts free only; None if nothing fits.
        cases: all that were looked at, fastest first.
        bound: seconds that no plan of the search undercuts, so far as proven.
        proven: whether the bound holds for every case.
    """

    best: Answer
    present: Answer | None
    cases: tuple[Case, ...]
    bound: float
    proven: bool

    @property
    def gap(self) -> float:
        """By how much the step may be too long, as a share of it; 0 is a proof."""
        return proven_gap(self.best.step.seconds, self.bound)

    def without(self, freedom: str) -> Answer | None:
        """The best that was found with one freedom less."""
        left = [case.answer for case in self.cases if freedom not in case.moved]
        return min(left, key=lambda a: a.step.seconds, default=None)


class Search:
    """A search over some freedoms from a config's own choice."""

    def __init__(
        self,
        work: Workload,
        pipeline: PipelineSettings,
        settings: EstimateSettings,
        search: SearchSettings,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.work, self.pipeline, self.settings, self.search, self.say = work, pipeline, settings, search, say
        refuse(pipeline, search)
        self.fastest = float("inf")
        self._planners: dict[int, Planner] = {}

    def planner(self, sequences: int) -> Planner:
        """Everything about the model at one micro-batch size."""
        if sequences not in self._planners:
            work = replace(self.work, sequences=sequences)
            self._planners[sequences] = Planner(work, self._pipeline(sequences), self.settings, self.search)
        return self._planners[sequences]

    def _pipeline(self, sequences: int) -> PipelineSettings:
        whole = self.work.sequences * self.pipeline.microbatches
        return replace(self.pipeline, microbatches=whole // sequences)

    def run(self, budget: int) -> Found | None:
        """The fastest plan within ``budget`` bytes on every rank, and what each freedom is worth; None if none fits.

        An interrupt ends the search with what it has.
        """
        cases: list[Case] = []
        complete = True
        try:
            for case in self._cases(budget):
                cases.append(case)
                self.fastest = min(self.fastest, case.answer.step.seconds)
                self.say(f"{case.answer.step.seconds:.1f} s (bound {case.bound:.1f}): {case.answer.in_words()}")
        except KeyboardInterrupt:
            if not cases:
                raise
            complete = False
        if not cases:
            return None
        cases.sort(key=lambda case: case.answer.step.seconds)
        present = next((c.answer for c in cases if not c.moved), None)
        proven = complete and all(case.proven for case in cases)
        return Found(cases[0].answer, present, tuple(cases), min(case.bound for case in cases), proven)

    def _cases(self, budget: int) -> Iterator[Case]:
        for sequences in self._sizes():
            planner = self.planner(sequences)
            for pipeline in self._schedules(planner.pipeline):
                moved = {"micro_batch"} if sequences != self.work.sequences else set()
                if schedule_in_words(pipeline) != schedule_in_words(self.pipeline):
                    moved.add("schedule")
                yield from self._of(planner.cut(pipeline), frozenset(moved), budget)

    def _of(self, planner: Planner, moved: frozenset[str], budget: int) -> Iterator[Case]:
        """The stages as they are, where the schedule can have them, and then the best cuts."""
        if planner.pipeline.chunks == self.pipeline.chunks:
            answer = best_layouts(planner, budget)
            if answer is not None:
                yield Case(moved, answer, answer.bound, planner.pipeline.chunks == planner.pipeline.stages)
        if planner.pipeline.chunks != planner.pipeline.stages:
            yield from self._even(planner, moved, budget)
        elif "stages" in self.search.over and planner.pipeline.stages > 1:
            yield from self._cut(planner, moved | {"stages"}, budget)

    def _cut(self, planner: Planner, moved: frozenset[str], budget: int) -> Iterator[Case]:
        """One chunk per rank: the cuts with the best bounds, until no other one can be faster."""
        best: Answer | None = None
        found = cuts(planner, budget)
        for cut in found[:_TRIED]:
            if best is not None and cut.slowest >= best.step.seconds:
                break
            answer = best_layouts(planner.cut(replace(planner.pipeline, layers_per_stage=list(cut.layers))), budget)
            if answer is not None and (best is None or answer.step.seconds < best.step.seconds):
                best = answer
        if best is not None:
            yield Case(moved, best, min(found[0].slowest, best.step.seconds), True)

    def _even(self, planner: Planner, moved: frozenset[str], budget: int) -> Iterator[Case]:
        """Several chunks per rank: cuts into chunks that take about as long, a heuristic."""
        decoder = sum(kind != "mtp" for kind in planner.model.kinds)
        if decoder < planner.pipeline.chunks or "stages" not in self.search.over:
            return
        cut = planner.cut(replace(planner.pipeline, layers_per_stage=balanced(planner, decoder)))
        least = undercut(cut, budget)
        if least >= self.fastest:
            name = schedule_in_words(planner.pipeline)
            self.say(
                f"not faster than {least:.1f} s: micro-batch {planner.work.sequences}, {name}, chunks of equal time"
            )
            return
        answer = best_layouts(cut, budget)
        if answer is not None:
            yield Case(moved | {"stages"}, answer, answer.bound, False)

    def _sizes(self) -> Sequence[int]:
        """Micro-batch sizes, the config's first, that divide what a data parallel rank computes in a step."""
        own, whole = self.work.sequences, self.work.sequences * self.pipeline.microbatches
        if "micro_batch" not in self.search.over:
            return (own,)
        return (own, *(size for size in _SIZES if size != own and whole % size == 0 and size <= 4 * own))

    def _schedules(self, pipeline: PipelineSettings) -> Iterator[PipelineSettings]:
        """The config's schedule first, then all others that it could be."""
        yield pipeline
        if "schedule" not in self.search.over or pipeline.stages == 1:
            return
        for name in SCHEDULES:
            for chunks in _CHUNKS if name == "interleaved_1f1b" else (1,):
                split = name in ("zb_h1", "zb_v")
                other = replace(
                    pipeline, schedule=name, interleave=chunks, split_backward=split or pipeline.split_backward
                )
                if schedule_in_words(other) == schedule_in_words(pipeline):
                    continue
                try:
                    other.validate()
                except ConfigError:
                    continue
                yield other


def balanced(planner: Planner, decoder: int) -> list[int]:
    """Decoder layers per chunk so that the slowest chunk of all is as fast as can be, without replays."""
    pipeline = planner.pipeline
    costs = [planner.base_seconds(layer) for layer in range(decoder)]
    last = planner.end_seconds()
    low, high = max(costs), sum(costs) + last
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if _fill(costs, last, middle, pipeline.chunks) else (middle, high)
    return _fill(costs, last, high, pipeline.chunks) or [decoder]


def _fill(costs: Sequence[float], last: float, most: float, chunks: int) -> list[int] | None:
    """Layers per chunk with no chunk above ``most`` seconds, every chunk with a layer; None if there is no way."""
    counts, at = [], 0
    for chunk in range(chunks):
        left = chunks - 1 - chunk
        took, begin = (last if not left else 0.0), at
        while at < len(costs) - left and (at == begin or took + costs[at] <= most):
            took += costs[at]
            at += 1
        if took > most:
            return None
        counts.append(at - begin)
    return counts if at == len(costs) else None


def refuse(pipeline: PipelineSettings, search: SearchSettings) -> None:
    """Raises ConfigError for a freedom that isn't one here."""
    for freedom in ("stages", "schedule"):
        if freedom in search.over and pipeline.stages == 1:
            raise ConfigError("search.over", list(search.over), f"{freedom} has no effect with pipeline.stages=1")
