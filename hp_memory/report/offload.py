"""HyperOffload's plans, timelines and advice as tables and as plain data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

from hp_memory.offload import HyperOffloadPlan, plan_to_dict
from hp_memory.offload.advise import Advice, Trial
from hp_memory.offload.graph import Graph, ParameterRef
from hp_memory.offload.hazards import Hazard
from hp_memory.offload.info import OffloadInfo
from hp_memory.offload.operations import H2D, WRITE_BACK, Operation
from hp_memory.offload.timeline import Timeline
from hp_memory.report.table import Table, mebibytes

SHOWN_TENSORS, SHOWN_HAZARDS, SHOWN_TRIALS = 15, 12, 10


def plan_tables(plan: HyperOffloadPlan) -> list[Table]:
    """What is moved: activations, weights or both."""
    tables = [activations_table(plan)] if plan.settings.moves_activations else []
    return [*tables, weights_table(plan)] if plan.settings.moves_parameters else tables


def activations_table(plan: HyperOffloadPlan) -> Table:
    largest = sorted(plan.offload_infos, key=lambda info: -plan.graph.nbytes(info.data_node))[:SHOWN_TENSORS]
    rows = [activation_row(plan, info) for info in largest]
    total = sum(plan.graph.nbytes(info.data_node) for info in plan.offload_infos)
    count = len(plan.offload_infos)
    title = f"{plural(count, 'activation')} of {plural(len(plan.graph.nodes), 'kernel')} moved, {mebibytes(total)} MiB"
    title += f"; the {len(rows)} largest:" if count > len(rows) else ""
    columns = ["activation", "made by kernel", "last use before", "first use after", "gap", "MiB (TRACED)"]
    return Table(title, columns, rows, inserted(plan))


def activation_row(plan: HyperOffloadPlan, info: OffloadInfo) -> list[str]:
    group = info.replace_info_list[0]
    positions = (info.data_node.node, group.replace_start_node, group.replace_rest_nodes[0].node, group.gap)
    return [plan.label(info.data_node), *map(str, positions), mebibytes(plan.graph.nbytes(info.data_node))]


def weights_table(plan: HyperOffloadPlan) -> Table:
    """Loads and write-backs of each remote weight, and what both move in a step."""
    names = [op.data.name for op in plan.operations.of_kind(H2D) if isinstance(op.data, ParameterRef)]
    loads, written = Counter(names), Counter(map(weight_of, plan.operations.of_kind(WRITE_BACK)))
    nbytes = {name: plan.graph.parameters[name].nbytes for name in loads}
    largest = sorted(loads, key=lambda name: (-loads[name] * nbytes[name], name))[:SHOWN_TENSORS]
    rows = [
        [name, mebibytes(nbytes[name]), str(loads[name]), mebibytes(loads[name] * nbytes[name]), str(written[name]),
         mebibytes(written[name] * nbytes[name])]
        for name in largest
    ]  # fmt: skip
    moved = (sum(counts[name] * nbytes[name] for name in loads) for counts in (loads, written))
    remote = sum(parameter.remote for parameter in plan.graph.parameters.values())
    title = f"{plural(loads.total(), 'load')} of {plural(remote, 'remote weight')} a step: "
    title += " MiB to the device, ".join(map(mebibytes, moved)) + " MiB back"
    columns = ["weight", "MiB (TRACED)", "loads", "MiB in", "write-backs", "MiB out"]
    caption = "MindSpore writes a copy back after each kernel that reads the weight without a Load node"
    return Table(title, columns, rows, caption if plan.settings.moves_activations else f"{caption}; {inserted(plan)}")


def weight_of(write_back: Operation) -> str:
    assert isinstance(write_back.data, Operation)
    assert isinstance(write_back.data.data, ParameterRef)
    return write_back.data.data.name


def inserted(plan: HyperOffloadPlan) -> str:
    counts = Counter(operation.op for operation in plan.operations)
    return "inserted: " + (", ".join(f"{count} {op}" for op, count in sorted(counts.items())) or "nothing")


def hazards_table(hazards: list[Hazard]) -> Table:
    rows = [
        [h.severity, h.kind, h.data, h.why, values_in_words(h.numbers), values_in_words(h.safe) or "-"]
        for h in hazards[:SHOWN_HAZARDS]
    ]
    more = len(hazards) - len(rows)
    caption = "safe: settings that were tried, without any hazard of that kind"
    caption += f"; {more} more in the run directory" if more > 0 else ""
    return Table(plural(len(hazards), "hazard"), ["", "hazard", "tensor", "why", "numbers", "safe"], rows, caption)


def timeline_table(graph: Graph, before: Timeline, after: Timeline) -> Table:
    names = [graph.nodes[t.peak_kernel()].name if graph.nodes else "" for t in (before, after)]
    rows = [
        ["device peak, MiB (MODELLED)", mebibytes(before.device.peak), mebibytes(after.device.peak)],
        ["peak at kernel", *(f"{t.peak_kernel()} {name}" for t, name in zip((before, after), names, strict=True))],
        ["host peak, MiB (MODELLED)", mebibytes(before.host.peak), mebibytes(after.host.peak)],
        ["step, us (MODELLED)", f"{before.total_us:.1f}", f"{after.total_us:.1f}"],
        ["exposed transfer time, us (MODELLED)", f"{before.exposed_us:.1f}", f"{after.exposed_us:.1f}"],
        ["copies, us (MODELLED)", f"{before.busy_us:.1f}", f"{after.busy_us:.1f}"],
    ]
    caption = f"tensor bytes {after.kinds['tensor bytes']}, kernel times {after.kinds['kernel times']}"
    return Table(
        "One step; without: nothing is moved, all weights on the device", ["figure", "without", "with"], rows, caption
    )


def advice_table(advice: Advice) -> Table:
    """The best settings that were tried. Settings that are the same in all of them stand in the caption."""
    fine = sorted((t for t in advice.trials if not t.errors), key=lambda t: (t.peak_bytes, t.exposed_us))
    inside = [t for t in fine if t.exposed_us <= advice.exposed_bound_us + 1e-6][: SHOWN_TRIALS - 3]
    shown = inside + [t for t in fine if t not in inside][:3]
    values = [t.values() for t in shown]
    names = list(dict.fromkeys(name for row in values for name in row))
    varying = [name for name in names if len({str(row.get(name, "-")) for row in values}) > 1]
    rows = [
        [
            str(k + 1),
            mebibytes(t.peak_bytes),
            f"{t.exposed_us:.1f}",
            str(t.moved),
            *(str(row.get(n, "-")) for n in varying),
        ]
        for k, (t, row) in enumerate(zip(shown, values, strict=True))
    ]
    bad = sum(t.errors > 0 for t in advice.trials)
    title = f"{plural(len(advice.trials), 'setting')} tried, {bad} refused for hazards; nothing moved: "
    title += f"{mebibytes(advice.baseline_bytes)} MiB"
    same = " ".join(f"{name}={values[0][name]}" for name in names if name not in varying)
    caption = f"at most {advice.exposed_bound_us} us exposed; peak and time are MODELLED"
    caption += f"; all with {same}" if same else ""
    return Table(title, ["", "peak MiB", "exposed us", "moved", *(n.replace("_", " ") for n in varying)], rows, caption)


def advice_record(advice: Advice) -> dict[str, Any]:
    return {
        "baseline_bytes": advice.baseline_bytes,
        "exposed_bound_us": advice.exposed_bound_us,
        "kinds": {"peak_bytes": "MODELLED", "exposed_us": "MODELLED"},
        "best": None if advice.best is None else trial_record(advice.best),
        "trials": [trial_record(trial) for trial in advice.trials],
    }


def trial_record(trial: Trial) -> dict[str, Any]:
    figures = {"peak_bytes": trial.peak_bytes, "exposed_us": trial.exposed_us, "moved": trial.moved}
    return trial.values() | figures | {"errors": trial.errors}


def plan_record(plan: HyperOffloadPlan, hazards: list[Hazard]) -> dict[str, Any]:
    found = [asdict(hazard) for hazard in hazards]
    return {"settings": asdict(plan.settings), "hazards": found, "plan": plan_to_dict(plan)}


def timeline_record(before: Timeline, after: Timeline) -> dict[str, Any]:
    return {
        "kinds": after.kinds,
        "without": figures(before),
        "with": figures(after),
        "transfers": [asdict(span) for span in after.transfers],
        "waits": [asdict(span) for span in after.waits],
    }


def figures(timeline: Timeline) -> dict[str, Any]:
    return {
        "device_peak_bytes": timeline.device.peak,
        "device_peak_kernel": timeline.peak_kernel(),
        "host_peak_bytes": timeline.host.peak,
        "total_us": timeline.total_us,
        "exposed_us": timeline.exposed_us,
        "transfer_us": timeline.busy_us,
        "device_curve": [timeline.device.times_us.tolist(), timeline.device.nbytes.tolist()],
        "host_curve": [timeline.host.times_us.tolist(), timeline.host.nbytes.tolist()],
    }


def differences_table(found: list[str]) -> Table:
    rows = [[line] for line in found] or [["the run did what the plan says"]]
    return Table(plural(len(found), "difference"), ["difference"], rows)


def values_in_words(values: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
