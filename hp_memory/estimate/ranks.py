"""The whole answer: each rank of the pipeline with its terms, its memory over time, its peak and what holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from hp_memory.config.estimate import EstimateSettings, bytes_of
from hp_memory.errors import ConfigError
from hp_memory.estimate.account import terms
from hp_memory.estimate.account.check import LayerCheck
from hp_memory.estimate.account.modules import Modules, no_gain, unit_of_modules
from hp_memory.estimate.account.stage import Moment, Unit, moments, unit_of
from hp_memory.estimate.account.terms import Term
from hp_memory.estimate.account.worth import NotWorth, not_worth_of
from hp_memory.estimate.engines.choice import check, trace
from hp_memory.estimate.times.host import HostCopies
from hp_memory.estimate.times.job import Job, host_copies, step_time
from hp_memory.estimate.times.step import StepTime
from hp_memory.estimate.tracing.record import LayerTrace, ModelTrace
from hp_memory.estimate.workload import Workload, hidden_bytes
from hp_memory.host.settings import HostSettings
from hp_memory.layout import ActivationPlan
from hp_memory.pipeline.generate import generate
from hp_memory.pipeline.schedule import Schedule
from hp_memory.pipeline.settings import PipelineSettings


@dataclass(frozen=True)
class Stage:
    """One rank of the pipeline.

    Attributes:
        rank: of the pipeline.
        layers: global ids of the layers it owns.
        static: terms that stay through the step.
        units: its layers and ends, by chunk.
        moments: activations at each of its compute steps.
        optimizer_step: bytes the optimizer's own operations need, when no activations are left.
        fragmentation: bytes lost at the peak.
    """

    rank: int
    layers: tuple[int, ...]
    static: tuple[Term, ...]
    units: Mapping[int, tuple[Unit, ...]]
    moments: tuple[Moment, ...]
    optimizer_step: int
    fragmentation: int

    @property
    def static_bytes(self) -> int:
        """Sum of the static terms."""
        return sum(term.nbytes for term in self.static)

    @property
    def worst(self) -> Moment:
        """The step with the most activations."""
        return max(self.moments, key=lambda m: m.nbytes)

    @property
    def peak(self) -> int:
        """The most this rank needs, activations and the optimizer's step alike."""
        return self.static_bytes + max(self.worst.nbytes + self.fragmentation, self.optimizer_step)

    @property
    def held(self) -> int:
        """Bytes one micro-batch holds on this rank between its forward and its backward."""
        return sum(u.held for units in self.units.values() for u in units)

    @property
    def in_flight(self) -> float:
        """The most that all micro-batches hold between two steps, in micro-batches of this rank."""
        return max(m.after for m in self.moments) / self.held if self.held else 0.0

    def when(self) -> str:
        """When the peak happens, in words."""
        if self.optimizer_step > self.worst.nbytes + self.fragmentation:
            return "optimizer step"
        worst = self.worst
        where = worst.peak.region or "between regions"
        return f"{worst.peak.phase} in step {worst.step}, {worst.unit}, {where} ({worst.peak.op})"


@dataclass(frozen=True)
class Estimate:
    """A dry run's result."""

    work: Workload
    plan: ActivationPlan
    settings: EstimateSettings
    schedule: Schedule
    stages: tuple[Stage, ...]
    total_parameters: int
    replay_flops: int
    forward_flops: int
    time: StepTime
    checks: tuple[LayerCheck, ...] = ()
    notes: tuple[str, ...] = ()
    not_worth: tuple[NotWorth, ...] = ()
    copies: tuple[HostCopies, ...] = ()

    @property
    def host_peak(self) -> int:
        """The most bytes that the ranks of one host keep there together; each host is taken to have the worst rank."""
        return max((found.peak for found in self.copies), default=0) * self.settings.device.ranks_per_host

    @property
    def host_memory(self) -> int:
        """Bytes that one host has for that."""
        return bytes_of(self.settings.device.host_memory, "estimate.device.host_memory")

    @property
    def worst(self) -> Stage:
        """The rank that needs the most."""
        return max(self.stages, key=lambda s: s.peak)

    @property
    def device(self) -> int:
        """Bytes one device has."""
        return bytes_of(self.settings.device.memory, "estimate.device.memory")

    @property
    def fits(self) -> bool:
        """Whether every rank fits its device, and what waits on the host the host."""
        return self.worst.peak <= self.device and self.host_peak <= self.host_memory

    @property
    def replayed_share(self) -> float:
        """Replayed FLOPs over those of the forward, for all layers."""
        return self.replay_flops / self.forward_flops if self.forward_flops else 0.0


def chunks_of(pipeline: PipelineSettings, model_trace: ModelTrace) -> tuple[tuple[int, ...], ...]:
    """Layer ids of each chunk; MTP layers follow the decoder's in the last one."""
    kinds = model_trace.kinds
    decoder = sum(kind != "mtp" for kind in kinds)
    chunks = pipeline.layers_of_chunks(decoder) if pipeline.stages > 1 else (tuple(range(decoder)),)
    return (*chunks[:-1], (*chunks[-1], *range(decoder, len(kinds))))


def schedule_of(pipeline: PipelineSettings) -> Schedule:
    """The compute steps of the schedule; messages and their checks, which take longest, say nothing of memory."""
    return generate(
        pipeline.schedule,
        pipeline.stages,
        pipeline.microbatches,
        interleave=pipeline.interleave,
        split=pipeline.split_backward,
        prefire=pipeline.prefire_recompute,
    )


def units_of_chunk(
    model_trace: ModelTrace,
    plan: ActivationPlan,
    layers: Sequence[int],
    last: bool,
    made: dict,
    least: int,
    modules: Mapping[int, Modules],
) -> tuple[Unit, ...]:
    """The chunk's layers under their layouts, and the model's end where it has it. ``made`` keeps equal ones."""
    units = [_unit(model_trace, plan, layer, made, least, modules.get(layer, ())) for layer in layers]
    if last and model_trace.head is not None:
        units.append(unit_of(model_trace.head, "head and loss", None, None))
    return tuple(units)


def _unit(model_trace: ModelTrace, plan: ActivationPlan, layer: int, made: dict, least: int, modules: Modules) -> Unit:
    kind, layout = model_trace.kinds[layer], plan.layers[layer].layout
    key = (kind, layout.default, tuple(sorted(layout.actions.items())), layout.keep_outputs, modules)
    if key not in made:
        own = model_trace.layers[kind]
        made[key] = unit_of_modules(own, "", None, modules) if modules else unit_of(own, "", None, layout, least)
    found = made[key]
    fields = (found.held, found.replayed, found.waiting, found.forward, found.backward, found.parts, found.moved)
    return Unit(f"layer {layer} ({kind})", layer, *fields)


def traces_of_rank(model_trace: ModelTrace, layers: Sequence[int], first: bool, last: bool) -> list[LayerTrace]:
    """The traces whose parameters a rank holds; MTP shares the embedding, which the last rank then has too."""
    found = [model_trace.layers[model_trace.kinds[layer]] for layer in layers]
    shares = last and "mtp" in model_trace.kinds and not first
    if model_trace.embedding is not None and (first or shares):
        found.append(model_trace.embedding)
    if last and model_trace.head is not None:
        found.append(model_trace.head)
    return found


def estimate(
    work: Workload,
    plan: ActivationPlan,
    pipeline: PipelineSettings,
    settings: EstimateSettings,
    installed: bool = False,
    host: HostSettings | None = None,
    modules: Mapping[int, Modules] = MappingProxyType({}),
) -> Estimate:
    """What every rank needs.

    Args:
        work: fixes the shapes.
        plan: made for ``work.fingerprint()``.
        pipeline: stages, schedule and micro-batches.
        settings: the assumptions.
        installed: also run every kind of layer with its plan installed, and compare; not with ``modules``, which aren't
            of our installer.
        host: how offloaded regions use the host; None for the defaults.
        modules: layers whose modules are boundaries of their own, and the regions in each.

    Raises:
        ConfigError: for more on the host than ``host.memory`` allows a rank.
    """
    host = host or HostSettings()
    least = bytes_of(host.min_bytes, "host.min_bytes")
    model_trace = trace(work)
    schedule = schedule_of(pipeline)
    chunks = chunks_of(pipeline, model_trace)
    made: dict = {}
    units = {
        c: units_of_chunk(model_trace, plan, layers, c == len(chunks) - 1, made, least, modules)
        for c, layers in enumerate(chunks)
    }
    job, replayed = job_of(work, model_trace, pipeline, settings), replayed_of(model_trace, plan)
    copies = host_copies(job, replayed, {c: [u.moved for u in own] for c, own in units.items()})
    _refuse_beyond(host, copies)
    stages = tuple(_stage(rank, work, model_trace, schedule, chunks, units, settings) for rank in range(schedule.ranks))
    return Estimate(
        work,
        plan,
        settings,
        schedule,
        stages,
        model_trace.total_parameters,
        sum(_replay_flops(model_trace, plan, layer) for layer in range(len(model_trace.kinds))),
        sum(model_trace.layers[kind].flops("forward") for kind in model_trace.kinds),
        step_time(job, replayed, [found.waits for found in copies]),
        tuple(check(work, plan)) if installed and not modules else (),
        model_trace.notes,
        tuple(_not_worth(model_trace, plan, modules)),
        copies,
    )


def _refuse_beyond(host: HostSettings, copies: Sequence[HostCopies]) -> None:
    most = max(range(len(copies)), key=lambda rank: copies[rank].peak)
    if copies[most].peak > bytes_of(host.memory, "host.memory"):
        why = f"pipeline rank {most} would keep {copies[most].peak / 2**30:.2f} GiB on the host; the rest would stay"
        raise ConfigError("host.memory", host.memory, f"{why} on the device")


def _not_worth(model_trace: ModelTrace, plan: ActivationPlan, modules: Mapping[int, Modules]) -> list[NotWorth]:
    """Replays that free nothing: by our rule, and where modules are boundaries by theirs."""
    own = replace(plan, layers=tuple(layer for layer in plan.layers if layer.layer not in modules))
    found = not_worth_of(model_trace.layers, own)
    theirs = {(plan.layers[i].kind, boundaries): plan.layers[i].layout.name for i, boundaries in modules.items()}
    for (kind, boundaries), name in theirs.items():
        entry = no_gain(model_trace.layers[kind], name, boundaries)
        found += [entry] if entry else []
    return found


def job_of(work: Workload, model_trace: ModelTrace, pipeline: PipelineSettings, settings: EstimateSettings) -> Job:
    """What the step's time depends on beside the layouts."""
    schedule, chunks = schedule_of(pipeline), chunks_of(pipeline, model_trace)
    last = len(chunks) - 1
    traces = []
    for rank in range(schedule.ranks):
        own = schedule.chunks_of(rank)
        layers = [layer for c in own for layer in chunks[c]]
        traces.append(traces_of_rank(model_trace, layers, 0 in own, last in own))
    return Job(work, model_trace, schedule, chunks, traces, settings)


def replayed_of(model_trace: ModelTrace, plan: ActivationPlan) -> dict[int, tuple[str, ...]]:
    """The replayed regions of each layer."""
    regions = {kind: traced.regions for kind, traced in model_trace.layers.items()}
    return {p.layer: p.layout.replays(regions[p.kind]) for p in plan.layers}


def _replay_flops(model_trace: ModelTrace, plan: ActivationPlan, layer: int) -> int:
    traced = model_trace.layers[model_trace.kinds[layer]]
    replayed = plan.layers[layer].layout.replays(traced.regions)
    return traced.flops("forward", (*replayed, "")) if replayed else 0


def _stage(
    rank: int,
    work: Workload,
    model_trace: ModelTrace,
    schedule: Schedule,
    chunks: Sequence[Sequence[int]],
    units: Mapping[int, tuple[Unit, ...]],
    settings: EstimateSettings,
) -> Stage:
    own = schedule.chunks_of(rank)
    layers = tuple(layer for c in own for layer in chunks[c])
    held_traces = traces_of_rank(model_trace, layers, 0 in own, len(chunks) - 1 in own)
    found = tuple(moments(schedule, rank, {c: units[c] for c in own}))
    return Stage(
        rank,
        layers,
        terms.static_terms(held_traces, settings, work.parallel, hidden_bytes(work)),
        {c: units[c] for c in own},
        found,
        terms.optimizer_step(held_traces, work.parallel),
        int(settings.fragmentation * max(m.nbytes for m in found)),
    )
