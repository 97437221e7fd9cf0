"""What is wrong or useless in a plan: each finding with its tensor and its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hp_memory.offload.graph import Output, ParameterRef
from hp_memory.offload.info import OffloadInfo
from hp_memory.offload.operations import AFTER_D2H, H2D, PRE, RECV, WRITE_BACK, Operation
from hp_memory.offload.optimizer import HyperOffloadPlan
from hp_memory.offload.use_after_free import Findings, UseAfterFree, execute

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(slots=True)
class Hazard:
    """One finding.

    Args:
        severity: ``error`` (wrong data or a failing compile), ``warning`` (no gain) or ``note``.
        data: the tensor, or empty for a finding about the settings.
        numbers: what it was computed from, positions counted in kernels.
        safe: setting -> value with which no finding of this kind is left and no error is new; empty where none was
            found. Filled by :func:`hp_memory.offload.safe.with_safe_values`, which tries it.
    """

    kind: str
    severity: str
    data: str
    why: str
    numbers: dict[str, int] = field(default_factory=dict)
    safe: dict[str, int] = field(default_factory=dict)


def find_hazards(plan: HyperOffloadPlan) -> list[Hazard]:
    """All findings, errors first."""
    findings = execute(plan)
    found = [*output_candidates(plan), *tuple_outputs(plan), *early_reloads(plan, findings), *freed(plan, findings)]
    found += [*stale_loads(plan), *saves_nothing(plan, {hazard.data for hazard in found})]
    found += [*views_bypassed(plan), *several_gaps(plan), *truncated(plan), *selects_nothing(plan), *misses_peak(plan)]
    found += freed_twice(plan, findings)
    order = (ERROR, WARNING, NOTE)
    return sorted(found, key=lambda hazard: order.index(hazard.severity))


def early_reloads(plan: HyperOffloadPlan, findings: Findings) -> Iterator[Hazard]:
    for early in findings.early_reloads:
        data = early.reload.data
        assert isinstance(data, Output)
        numbers = {"producer": data.node, "reload": early.reload.slot}
        why = "its reload runs before its copy-out"
        yield Hazard("reload before save", ERROR, plan.label(data), why, numbers)


def freed(plan: HyperOffloadPlan, findings: Findings) -> Iterator[Hazard]:
    """The first read of each freed buffer."""
    seen = set()
    for use in findings.uses:
        if use.buffer not in seen:
            seen.add(use.buffer)
            numbers = {"freed_after": use.freed, "reader": use.reader}
            yield Hazard("use after free", ERROR, plan.label(use.data), reading_in_words(plan, use), numbers)


def reading_in_words(plan: HyperOffloadPlan, use: UseAfterFree) -> str:
    nodes = plan.graph.nodes
    reader = nodes[use.reader].name if use.reader < len(nodes) else "a graph output"
    what = "the copy that was just reloaded" if isinstance(use.buffer, Operation) else "its buffer"
    through = f" through {plan.label(use.read)}" if use.read != use.buffer and isinstance(use.read, Output) else ""
    return f"{reader} reads {what}{through} after it was freed"


def freed_twice(plan: HyperOffloadPlan, findings: Findings) -> Iterator[Hazard]:
    if findings.freed_twice:
        why = "MindSpore's plan frees device copies twice: after their last reader and after their write-back"
        yield Hazard("freed twice", NOTE, "", why, {"copies": findings.freed_twice})


def saves_nothing(plan: HyperOffloadPlan, broken: set[str]) -> Iterator[Hazard]:
    """A reload that starts before the release; ``broken``: tensors with an error already."""
    slots = Slots(plan)
    for info in plan.offload_infos:
        reload = min(slots.reloads[info.data_node], key=lambda operation: operation.slot)
        release, label = slots.releases[info.data_node], plan.label(info.data_node)
        if label in broken or reload.slot == PRE or release < reload.slot:
            continue
        why = "its reload starts before the device copy is released: nothing is saved"
        yield Hazard("saves nothing", WARNING, label, why, numbers_of(info, reload, release))


def numbers_of(info: OffloadInfo, reload: Operation, release: int) -> dict[str, int]:
    group = info.replace_info_list[0]
    first, last = group.replace_rest_nodes[0].node, group.replace_start_node
    producer = info.data_node.node
    return {"producer": producer, "last_use": last, "first_use": first, "reload": reload.slot, "release": release}


class Slots:
    """Where each activation is released and reloaded."""

    def __init__(self, plan: HyperOffloadPlan) -> None:
        self.reloads: dict[Output, list[Operation]] = {}
        for reload in plan.operations.of_kind(H2D):
            if isinstance(reload.data, Output):
                self.reloads.setdefault(reload.data, []).append(reload)
        self.releases = {
            operation.data: operation.slot
            for operation in plan.operations.of_kind(RECV)
            if operation.event == AFTER_D2H and isinstance(operation.data, Output)
        }


def output_candidates(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    for data in plan.raises:
        if not isinstance(data, Output):
            continue  # a parameter's load is always read
        numbers = {"producer": data.node, "last_kernel": len(plan.graph.nodes) - 1}
        why = "it is a graph output too: MindSpore's optimizer raises (H2D node has no users in execution order)"
        yield Hazard("graph output", ERROR, plan.label(data), why, numbers)


def tuple_outputs(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    """The peak strategy books every use of a tuple on output 0 and reloads output 0 for readers of others."""
    for info in plan.offload_infos:
        node = plan.graph.nodes[info.data_node.node]
        if node.is_tuple:
            why = f"its kernel has {len(node.output_bytes)} outputs: readers of any of them get output 0 back"
            yield Hazard("tuple output", ERROR, plan.label(info.data_node), why, {"outputs": len(node.output_bytes)})


def stale_loads(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    """A remote parameter loaded again before an earlier copy of it is written back."""
    written: dict[str, int] = {}
    for save in plan.operations.of_kind(WRITE_BACK):
        assert isinstance(save.data, Operation)
        assert isinstance(save.data.data, ParameterRef)
        name = save.data.data.name
        early = save.data.slot < written.get(name, PRE)
        if early:
            why = "a copy is loaded before the write-back of the one before: a kernel that writes it loses the update"
            numbers = {"load": save.data.slot, "write_back": written[name], "use": save.slot}
            yield Hazard("stale parameter", WARNING, name, why, numbers)
        written[name] = save.slot


def views_bypassed(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    """A reader of a view gets the reload of the source: the view's shape is lost."""
    for info in plan.offload_infos:
        for use in (use for group in info.replace_info_list for use in group.replace_rest_nodes):
            read = plan.graph.nodes[use.node].inputs[use.index]
            if read != info.data_node and isinstance(read, Output) and plan.graph.nodes[read.node].view:
                why = f"{plan.graph.nodes[use.node].name} read the view {plan.label(read)} and now reads the source"
                yield Hazard("view bypassed", WARNING, plan.label(info.data_node), why, {"reader": use.node})


def several_gaps(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    for skipped in plan.skipped:
        gaps = sorted(skipped.gaps, reverse=True)
        numbers = {f"gap_{k}": gap for k, gap in enumerate(gaps)}
        why = f"skipped: {skipped.why}"
        yield Hazard("skipped", NOTE, plan.label(skipped.data_node), why, numbers)


def truncated(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    if not plan.truncated:
        return
    candidates = len(plan.truncated) + len(plan.offload_infos)
    nbytes = sum(plan.graph.nbytes(info.data_node) for info in plan.truncated)
    why = f"{len(plan.truncated)} of {candidates} candidates are cut off, those used last first"
    numbers = {"candidates": candidates, "cut_off": len(plan.truncated), "bytes": nbytes}
    yield Hazard("truncated", NOTE, "", why, numbers)


def selects_nothing(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    settings = plan.settings
    if plan.offload_infos or not settings.moves_activations:
        return
    if not plan.stage_enabled:
        why = f"no activation is moved: this graph's stage isn't in stages {settings.stages}"
        yield Hazard("selects nothing", WARNING, "", why, {"stage": plan.stage})
    elif settings.strategy == "peak":
        why = "the modelled peak fits already, or nothing covers it"
        yield Hazard("selects nothing", WARNING, "", why, {"threshold": settings.threshold})
    else:
        why = "no activation is moved: " + (
            "select_num or filter_percentage lets none through" if plan.truncated else "no single gap is long enough"
        )
        numbers = {"select_distance": settings.select_distance, "select_num": settings.select_num}
        yield Hazard("selects nothing", WARNING, "", why, numbers | {"longest_gap": longest_gap(plan)})


def longest_gap(plan: HyperOffloadPlan) -> int:
    """The longest distance between two uses of one activation, through no views."""
    previous: dict[Output, int] = {}
    longest = 0
    for position, node in enumerate(plan.graph.nodes):
        for source in node.inputs:
            if isinstance(source, Output):
                longest = max(longest, position - previous.get(source, source.node))
                previous[source] = position
    return longest


def misses_peak(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    """The peak strategy stops at the first highest point that nothing covers."""
    if plan.settings.strategy == "peak" and plan.peak_bytes is not None and plan.peak_bytes > plan.settings.threshold:
        numbers = {"modelled_peak": plan.peak_bytes, "threshold": plan.settings.threshold}
        yield Hazard("peak too high", WARNING, "", "the modelled peak stays above the threshold", numbers)


def is_safe(hazards: list[Hazard]) -> bool:
    return all(hazard.severity != ERROR for hazard in hazards)
