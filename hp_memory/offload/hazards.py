"""What is wrong or useless in a plan: each finding with its datum, its numbers and a value that would be safe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hp_memory.offload.graph import Output
from hp_memory.offload.info import OffloadInfo
from hp_memory.offload.operations import AFTER_D2H, D2H, H2D, PRE, RECV, WRITE_BACK, Operation
from hp_memory.offload.optimizer import HyperOffloadPlan

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(slots=True)
class Hazard:
    """One finding.

    Args:
        severity: ``error`` (wrong data or a failing compile), ``warning`` (no gain) or ``note``.
        data: the tensor, or empty for a finding about the settings.
        numbers: what it was computed from, positions counted in kernels.
        safe: setting -> value with which this finding goes away; empty where no value does.
    """

    kind: str
    severity: str
    data: str
    why: str
    numbers: dict[str, int] = field(default_factory=dict)
    safe: dict[str, int] = field(default_factory=dict)


def find_hazards(plan: HyperOffloadPlan) -> list[Hazard]:
    """All findings, errors first."""
    slots = Slots(plan)
    found = [*output_candidates(plan), *tuple_outputs(plan), *aliases_in_gap(plan)]
    found += [*viewed_outputs(plan), *stale_loads(plan)]
    for info in plan.offload_infos:
        found += hazards_of(plan, info, slots)
    found += [*views_bypassed(plan), *several_gaps(plan), *truncated(plan), *selects_nothing(plan), *misses_peak(plan)]
    order = (ERROR, WARNING, NOTE)
    return sorted(found, key=lambda hazard: order.index(hazard.severity))


class Slots:
    """Where each activation is saved, released and reloaded."""

    def __init__(self, plan: HyperOffloadPlan) -> None:
        self.saves = {operation.data: operation.slot for operation in plan.operations.of_kind(D2H)}
        self.reloads: dict[Output, list[Operation]] = {}
        for reload in plan.operations.of_kind(H2D):
            self.reloads.setdefault(reload.data, []).append(reload)
        self.releases = {
            operation.data: operation.slot
            for operation in plan.operations.of_kind(RECV)
            if operation.event == AFTER_D2H and isinstance(operation.data, Output)
        }


def hazards_of(plan: HyperOffloadPlan, info: OffloadInfo, slots: Slots) -> Iterator[Hazard]:
    data = info.data_node
    label = plan.label(data)
    group = info.replace_info_list[0]
    first, last = group.replace_rest_nodes[0].node, group.replace_start_node
    reload = min(slots.reloads[data], key=lambda operation: operation.slot)
    release = slots.releases[data]
    numbers = {"producer": data.node, "last_use": last, "first_use": first, "reload": reload.slot, "release": release}
    if reload.slot < data.node or reload.slot == PRE:
        # A reload for the graph's outputs sits behind the last kernel and would have to stay there.
        safe = {} if reload.output_reload else {"prefetch_distance": first - data.node - 1}
        yield Hazard("reload before save", ERROR, label, "its reload runs before its copy-out", numbers, safe)
    elif release >= first:
        why = "the release frees the copy that was just reloaded"
        yield Hazard("release frees the reload", ERROR, label, why, numbers, {"release_distance": group.gap - 1})
    elif release >= reload.slot:
        why = "its reload starts before the device copy is released: nothing is saved"
        safe = {"prefetch_distance": max(0, first - 2 - release)} if first - 2 >= release else {"release_distance": 0}
        yield Hazard("saves nothing", WARNING, label, why, numbers, safe)


def output_candidates(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    for data in plan.raises:
        numbers = {"producer": data.node, "last_kernel": len(plan.graph.nodes) - 1}
        why = "it is a graph output too: MindSpore's optimizer raises (H2D node has no users in execution order)"
        gap = max((g.gap for i in plan.offload_infos if i.data_node == data for g in i.replace_info_list), default=0)
        yield Hazard("graph output", ERROR, plan.label(data), why, numbers, {"select_distance": gap})


def tuple_outputs(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    """The peak strategy books every use of a tuple on output 0 and reloads output 0 for readers of others."""
    for info in plan.offload_infos:
        node = plan.graph.nodes[info.data_node.node]
        if node.is_tuple:
            why = f"its kernel has {len(node.output_bytes)} outputs: readers of any of them get output 0 back"
            yield Hazard("tuple output", ERROR, plan.label(info.data_node), why, {"outputs": len(node.output_bytes)})


def aliases_in_gap(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    """A kernel that works in place shares its input's buffer, and its readers don't count as users of that input."""
    chosen = {info.data_node: info.replace_info_list[0] for info in plan.offload_infos}
    shares: dict[Output, Output] = {}
    for position, node in enumerate(plan.graph.nodes):
        inputs = node.inputs
        for source in inputs:
            data = shares.get(source)
            group = chosen.get(data)
            if group is not None and group.replace_start_node < position:
                numbers = {"release_after": group.replace_start_node, "reader": position}
                why = f"{node.name} reads its buffer through an in-place result after it was released"
                yield Hazard("buffer read after release", ERROR, plan.label(data), why, numbers)
        if node.inplace and inputs and isinstance(inputs[0], Output):
            shares[Output(position, 0)] = shares.get(inputs[0], inputs[0])


def viewed_outputs(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    """A graph output that is a view of a moved datum: being an output is no use, so the buffer below it is freed."""
    moved = {info.data_node: info.replace_info_list[0] for info in plan.offload_infos}
    for output in plan.graph.outputs:
        source = output
        while isinstance(source, Output) and plan.graph.nodes[source.node].view:
            source = plan.graph.nodes[source.node].inputs[0]
        if source != output and source in moved:
            why = f"graph output {plan.label(output)} is a view of its buffer, which is released"
            numbers = {"release_after": moved[source].replace_start_node, "last_kernel": len(plan.graph.nodes) - 1}
            yield Hazard("output view released", ERROR, plan.label(source), why, numbers)


def stale_loads(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    """A remote parameter loaded again before an earlier copy of it is written back."""
    written: dict[str, int] = {}
    for save in plan.operations.of_kind(WRITE_BACK):
        name = save.data.data.name
        early = save.data.slot < written.get(name, PRE)
        if early:
            why = "a copy is loaded before the write-back of the one before: a kernel that writes it loses the update"
            numbers = {"load": save.data.slot, "write_back": written[name], "use": save.slot}
            safe = {"prefetch_distance": max(0, save.slot - 1 - written[name])}
            yield Hazard("stale parameter", WARNING, name, why, numbers, safe)
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
        safe = {"select_distance": gaps[1]} if len(gaps) > 1 and gaps[0] > gaps[1] else {}
        numbers = {f"gap_{k}": gap for k, gap in enumerate(gaps)}
        why = f"skipped: {skipped.why}"
        yield Hazard("skipped", NOTE, plan.label(skipped.data_node), why, numbers, safe)


def truncated(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    if not plan.truncated:
        return
    candidates = len(plan.truncated) + len(plan.offload_infos)
    nbytes = sum(plan.graph.nbytes(info.data_node) for info in plan.truncated)
    why = f"{len(plan.truncated)} of {candidates} candidates are cut off, those used last first"
    numbers = {"candidates": candidates, "cut_off": len(plan.truncated), "bytes": nbytes}
    percentage = plan.settings.filter_percentage is not None
    safe = {"filter_percentage": 100} if percentage else {"select_num": candidates}
    yield Hazard("truncated", NOTE, "", why, numbers, safe)


def selects_nothing(plan: HyperOffloadPlan) -> Iterator[Hazard]:
    if plan.offload_infos or not plan.settings.moves_activations:
        return
    if plan.settings.strategy == "peak":
        why = "the modelled peak fits already, or nothing covers it"
        numbers = {"threshold": plan.settings.threshold}
        yield Hazard("selects nothing", WARNING, "", why, numbers)
        return
    numbers = {"select_distance": plan.settings.select_distance, "select_num": plan.settings.select_num}
    why = "no activation is moved: no single gap is long enough, or select_num is 0"
    gap = longest_gap(plan)
    safe = {"select_distance": gap - 1} if gap else {}
    yield Hazard("selects nothing", WARNING, "", why, numbers | {"longest_gap": gap}, safe)


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
        safe = {"max_device_memory": plan.peak_bytes + plan.settings.headroom}
        yield Hazard("peak too high", WARNING, "", "the modelled peak stays above the threshold", numbers, safe)


def is_safe(hazards: list[Hazard]) -> bool:
    return all(hazard.severity != ERROR for hazard in hazards)
