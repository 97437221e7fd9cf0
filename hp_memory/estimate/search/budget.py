"""From a budget to a plan: the search on every rank of a model, the trade-off curve, and what to blame."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hp_memory.config.estimate import EstimateSettings, SearchSettings
from hp_memory.estimate.account import terms
from hp_memory.estimate.account.held import free_regions
from hp_memory.estimate.account.stage import unit_of
from hp_memory.estimate.account.terms import Term
from hp_memory.estimate.engines.choice import trace
from hp_memory.estimate.ranks import Estimate, chunks_of, estimate, schedule_of, traces_of_rank
from hp_memory.estimate.search.options import Ways, replay_costs, ways
from hp_memory.estimate.search.programme import Choice, Programme, Slot, fixed, situations
from hp_memory.estimate.times.layer import layer_time
from hp_memory.estimate.tracing.record import LayerTrace
from hp_memory.estimate.workload import Workload, hidden_bytes
from hp_memory.layout import LayerOverride, LayoutSettings, build_plan
from hp_memory.layout.layers import format_layers
from hp_memory.layout.regions import Kind
from hp_memory.pipeline.schedule import Schedule
from hp_memory.pipeline.settings import PipelineSettings

GIB = 2**30


@dataclass(frozen=True)
class RankProblem:
    """One rank's choice: its layers, its moments, and what it holds beside activations."""

    rank: int
    programme: Programme
    static: tuple[Term, ...]
    optimizer_step: int

    @property
    def static_bytes(self) -> int:
        """Sum of the static terms."""
        return sum(term.nbytes for term in self.static)

    def room(self, budget: int, fragmentation: float) -> int:
        """Bytes that activations may take, so that the rank stays within ``budget``; negative if nothing is left."""
        left = budget - self.static_bytes
        if left < self.optimizer_step:
            return -1
        room = int(left / (1 + fragmentation))
        # What is lost is a whole number of bytes: the next one may fit too.
        return room + (room + 1 + int(fragmentation * (room + 1)) <= left)


@dataclass(frozen=True)
class Blame:
    """Why nothing fits: the rank, what it needs at least, and its largest terms, largest first."""

    rank: int
    least: int
    largest: tuple[tuple[str, int], ...]

    def in_words(self) -> str:
        """One line."""
        parts = ", ".join(f"{name} {nbytes / GIB:.2f} GiB" for name, nbytes in self.largest[:4])
        return f"pipeline rank {self.rank} needs at least {self.least / GIB:.2f} GiB: {parts}"


@dataclass(frozen=True)
class Plan:
    """The cheapest plan found: a choice per rank, each with its bound."""

    choices: tuple[Choice, ...]
    layout: LayoutSettings

    @property
    def cost(self) -> float:
        """Of one micro-batch's replay on all ranks together."""
        return sum(choice.cost for choice in self.choices)

    @property
    def slowest(self) -> float:
        """Of one micro-batch's replay on the rank that replays most: what a pipeline waits for."""
        return max(choice.cost for choice in self.choices)

    @property
    def bound(self) -> float:
        """No plan that fits costs less."""
        return sum(choice.bound for choice in self.choices)

    @property
    def gap(self) -> float:
        """By how much the cost may be too high, as a share of it; 0 is a proof of optimality."""
        proven = all(choice.gap == 0 for choice in self.choices)
        return 0.0 if proven else (self.cost - self.bound) / self.cost


class Planner:
    """Everything about one model that doesn't depend on the budget."""

    def __init__(
        self, work: Workload, pipeline: PipelineSettings, settings: EstimateSettings, search: SearchSettings
    ) -> None:
        self.work, self.pipeline, self.settings, self.search = work, pipeline, settings, search
        self.model = trace(work)
        self.interrupted = False
        self._problems: dict[tuple, RankProblem] = {}

    @cached_property
    def ways(self) -> Mapping[Kind, Ways]:
        """What may be chosen for each kind of layer; kinds that do the same share it."""
        found: dict[Kind, Ways] = {}
        for kind, traced in self.model.layers.items():
            same = next((k for k in found if _alike(self.model.layers[k], traced)), None)
            found[kind] = found[same] if same else ways(traced, self.costs(kind))
        return found

    def costs(self, kind: Kind) -> dict[str, float]:
        """What one replay of each region of a kind costs."""
        return replay_costs(self.model.layers[kind], self.search, self.settings.device)

    def cut(self, pipeline: PipelineSettings) -> Planner:
        """The same model under another pipeline; what was traced and prepared is shared."""
        made = copy.copy(self)
        made.pipeline = pipeline
        made.__dict__.pop("ranks", None)
        return made

    @property
    def seconds(self) -> float:
        """What one call of the solver may take, so that all ranks together stay near the limit."""
        return 0.0 if self.interrupted else max(self.search.seconds / (2 * len(self.ranks)), 0.5)

    @cached_property
    def ranks(self) -> tuple[RankProblem, ...]:
        """One problem per rank of the pipeline."""
        schedule, chunks = schedule_of(self.pipeline), chunks_of(self.pipeline, self.model)
        return tuple(self._problem(schedule, chunks, rank) for rank in range(schedule.ranks))

    def _problem(self, schedule: Schedule, chunks: Sequence[Sequence[int]], rank: int) -> RankProblem:
        own, last = schedule.chunks_of(rank), len(chunks) - 1
        return self.problem(schedule, rank, {c: chunks[c] for c in own}, last in own)

    def problem(self, schedule: Schedule, rank: int, own: Mapping[int, Sequence[int]], with_head: bool) -> RankProblem:
        """A rank's problem with these layers in its chunks; equal kinds of layers make equal problems."""
        kinds = tuple((c, tuple(self.model.kinds[layer] for layer in layers)) for c, layers in own.items())
        key = (schedule.name, schedule.microbatches, schedule.prefires, schedule.placement, rank, kinds, with_head)
        if key not in self._problems:
            self._problems[key] = self._made(schedule, rank, own, with_head)
        return self._problems[key]

    def _made(self, schedule: Schedule, rank: int, own: Mapping[int, Sequence[int]], with_head: bool) -> RankProblem:
        last = max(own)
        slots = []
        for chunk, layers in own.items():
            slots += [self._slot(chunk, layer) for layer in layers]
            # A chunk's units run in order: the end of the model is the last of the last chunk.
            if chunk == last and with_head and self.model.head is not None:
                slots.append(Slot(chunk, None, fixed(unit_of(self.model.head, "head and loss", None, None))))
        layers = [layer for chunk in own.values() for layer in chunk]
        traces = traces_of_rank(self.model, layers, 0 in own, with_head)
        static = terms.static_terms(traces, self.settings, self.work.parallel, hidden_bytes(self.work))
        step = terms.optimizer_step(traces, self.work.parallel)
        return RankProblem(rank, Programme(slots, situations(schedule, rank)), static, step)

    def _slot(self, chunk: int, layer: int) -> Slot:
        kind = self.model.kinds[layer]
        group = f"{chunk} {kind}" if self.search.per == "stage" else None
        return Slot(chunk, layer, self.ways[kind], group)

    def solve(self, budget: int, gap: float = 0.0) -> Plan | None:
        """The cheapest plan within ``budget`` bytes on every rank, or None."""
        return self.solve_each([budget] * len(self.ranks), gap)

    def solve_each(self, budgets: Sequence[int], gap: float = 0.0) -> Plan | None:
        """The cheapest plan within a budget of its own for each rank.

        An interrupt ends the proof, not the search: ranks that are left get a quick plan.
        """
        choices: list[Choice] = []
        while len(choices) < len(self.ranks):
            problem = self.ranks[len(choices)]
            room = problem.room(budgets[len(choices)], self.settings.fragmentation)
            try:
                choice = problem.programme.solve(room, self.seconds, gap) if room >= 0 else None
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                self.interrupted = True
                continue
            if choice is None:
                return None
            choices.append(choice)
        return Plan(tuple(choices), self._layout(choices))

    def _layout(self, choices: Sequence[Choice]) -> LayoutSettings:
        """The choices as a layout: the commonest as the base, runs of layers that differ as overrides."""
        chosen = {
            layer: slot.ways.replayed[pick]
            for problem, choice in zip(self.ranks, choices, strict=True)
            for layer, (slot, pick) in zip(
                self._layers_of(problem.rank), zip(problem.programme.slots, choice.picks, strict=True), strict=True
            )
            if layer is not None
        }
        runs: list[tuple[list[int], LayerOverride]] = []
        for layer in sorted(chosen):
            override = self._override(layer, chosen[layer])
            if runs and runs[-1][1] == override and runs[-1][0][-1] == layer - 1:
                runs[-1][0].append(layer)
            else:
                runs.append(([layer], override))
        layers = [replace(o, layers=format_layers(ids)) for ids, o in runs if o.default == "save" or o.save]
        return LayoutSettings(name="search", default="recompute", layers=layers)

    def base_seconds(self, layer: int) -> float:
        """One micro-batch in one layer without a replay."""
        return layer_time(self.model.layers[self.model.kinds[layer]], (), self.settings.device).total

    def end_seconds(self) -> float:
        """One micro-batch in what stands behind the decoder's layers."""
        mtp = sum(self.base_seconds(i) for i, kind in enumerate(self.model.kinds) if kind == "mtp")
        return mtp + (layer_time(self.model.head, (), self.settings.device).total if self.model.head else 0.0)

    def replays(self, plan: Plan, rank: int) -> dict[int, float]:
        """Seconds (or the cost model's unit) of one micro-batch's replay in each chunk of a rank."""
        found: dict[int, float] = {}
        slots, picks = self.ranks[rank].programme.slots, plan.choices[rank].picks
        for slot, pick in zip(slots, picks, strict=True):
            found[slot.chunk] = found.get(slot.chunk, 0.0) + float(slot.ways.cost[pick])
        return found

    def _layers_of(self, rank: int) -> list[int | None]:
        """The layer of each of a rank's slots; equal problems are made once, for whichever layers came first."""
        schedule, chunks = schedule_of(self.pipeline), chunks_of(self.pipeline, self.model)
        own, last = schedule.chunks_of(rank), len(chunks) - 1
        ends: list[int | None] = [None] if last in own and self.model.head is not None else []
        return [*(layer for c in own for layer in chunks[c]), *ends]

    def _override(self, layer: int, replayed: tuple[str, ...]) -> LayerOverride:
        if not replayed:
            return LayerOverride("", default="save")
        free = free_regions(self.model.layers[self.model.kinds[layer]])
        return LayerOverride("", save=[r for r in free if r not in replayed])

    def blame(self) -> Blame:
        """What needs most on the rank that can be made to need least only with the most memory."""
        found = []
        for problem in self.ranks:
            activations = int(problem.programme.least(self.seconds) * (1 + self.settings.fragmentation))
            parts = Counter({term.name: term.nbytes for term in problem.static})
            parts["activations, all replayed"] = activations
            need = problem.static_bytes + max(activations, problem.optimizer_step)
            found.append(Blame(problem.rank, need, tuple(parts.most_common())))
        return max(found, key=lambda blame: blame.least)

    def curve(self, low: int, points: int) -> list[tuple[int, float]]:
        """Budgets from ``low`` to where nothing need be replayed, and the cost of a plan within 1 % of the least."""
        high = self.estimate(LayoutSettings(name="none", default="save")).worst.peak
        step = max(1, (high - low) // (points - 1))
        budgets = [low + i * step for i in range(points - 1)] + [max(high, low)]
        plans = ((budget, self.solve(budget, 0.01)) for budget in budgets)
        return [(budget, plan.cost) for budget, plan in plans if plan is not None]

    def estimate(self, layout: LayoutSettings) -> Estimate:
        """The timeline of a layout: what shows that a plan fits."""
        plan = build_plan(layout, self.work.fingerprint())
        return estimate(self.work, plan, self.pipeline, self.settings)

    def cost_of(self, layout: LayoutSettings) -> float:
        """What one micro-batch's replay costs under any layout, in the unit of the search."""
        plan, total = build_plan(layout, self.work.fingerprint()), 0.0
        for layer in plan.layers:
            traced = self.model.layers[layer.kind]
            replayed = layer.layout.replays(traced.regions)
            costs = self.costs(layer.kind)
            total += sum(costs[r] for r in (*replayed, "")) if replayed else 0.0
        return total


def _alike(a: LayerTrace, b: LayerTrace) -> bool:
    """Whether two kinds run the same operations on the same shapes (an MTP block is a MoE block)."""
    return a.regions == b.regions and [(o.name, o.region, o.flops) for o in a.ops] == [
        (o.name, o.region, o.flops) for o in b.ops
    ]


def override_of(layout: LayoutSettings) -> str:
    """The layout as one override of the command line, for ``train``, ``dryrun`` and ``export``."""
    entries = []
    for entry in layout.layers:
        what = "default: save" if entry.default == "save" else f"save: [{', '.join(entry.save or ())}]"
        entries.append(f'{{layers: "{entry.layers}", {what}}}')
    return f"layout=full 'layout.name={layout.name}' 'layout.layers=[{', '.join(entries)}]'"


def yaml_of(layout: LayoutSettings) -> str:
    """The layout as an option of the ``layout`` config group."""
    lines = [f"name: {layout.name}", f"default: {layout.default}"]
    if layout.layers:
        lines.append("layers:")
    for entry in layout.layers:
        what = "default: save" if entry.default == "save" else f"save: [{', '.join(entry.save or ())}]"
        lines.append(f'  - {{layers: "{entry.layers}", {what}}}')
    return "\n".join(lines) + "\n"
