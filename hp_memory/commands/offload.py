"""``hp-memory offload plan|advise|timeline|verify``: HyperOffload on a compiled graph, without the cluster."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hp_memory.config.schema import OffloadConfig
from hp_memory.errors import ConfigError
from hp_memory.offload import HyperOffloadInput, HyperOffloadPlan, plan_to_dict
from hp_memory.offload import run as plan_graph
from hp_memory.offload.advise import SEARCHED, Advice, advise
from hp_memory.offload.files import mark_remote, read_graph, read_kernel_times
from hp_memory.offload.graph import Graph
from hp_memory.offload.graph_json import GraphFormatError
from hp_memory.offload.hazards import Hazard, find_hazards, is_safe
from hp_memory.offload.info import OffloadInfo
from hp_memory.offload.pictures import draw_search, draw_timeline
from hp_memory.offload.settings import ACTIONS, OffloadCommandSettings
from hp_memory.offload.timeline import Timeline, baseline, kernel_times, simulate
from hp_memory.offload.trace import differences, parse_traces
from hp_memory.report.table import Table, console, mebibytes
from hp_memory.runs.paths import make_run_dir

SHOWN_DATA, SHOWN_HAZARDS = 15, 12


def run(cfg: OffloadConfig, action: str | None) -> int:
    """Returns 0, or 1 where the plan has an error hazard or the run differs from it."""
    if action is None:
        raise ConfigError("action", "", "is needed", ACTIONS)
    OffloadCommandSettings.validate(cfg, action)
    cfg.offload.validate("offload")
    try:
        graph = read_graph(cfg.graph)
    except GraphFormatError as error:
        raise ConfigError("graph", cfg.graph, str(error)) from error
    mark_remote(graph, cfg.remote)
    run_dir = make_run_dir(cfg.run_dir, cfg.run_root, cfg.name)
    code = BODIES[action](cfg, graph, run_dir)
    say(f"written to {run_dir}")
    return code


def show_plan(cfg: OffloadConfig, graph: Graph, run_dir: Path) -> int:
    plan = plan_graph(HyperOffloadInput(graph, cfg.offload))
    hazards = find_hazards(plan)
    console().print(plan_table(plan).rich())
    print_hazards(hazards)
    record = {"settings": asdict(cfg.offload), "hazards": [asdict(h) for h in hazards], "plan": plan_to_dict(plan)}
    write_json(run_dir / "plan.json", record)
    if not is_safe(hazards):
        return 1
    draw(cfg, plan, run_dir)
    return 0


def show_timeline(cfg: OffloadConfig, graph: Graph, run_dir: Path) -> int:
    plan = plan_graph(HyperOffloadInput(graph, cfg.offload))
    hazards = find_hazards(plan)
    print_hazards(hazards)
    if not is_safe(hazards):
        say("no timeline: a plan with an error would not run like that")
        return 1
    before, after = draw(cfg, plan, run_dir)
    console().print(timeline_table(graph, before, after).rich())
    return 0


def show_advice(cfg: OffloadConfig, graph: Graph, run_dir: Path) -> int:
    times, _ = times_of(cfg, graph)
    advice = advise(graph, cfg.offload, times, cfg.exposed_us, cfg.evaluations)
    console().print(advice_table(advice).rich())
    write_json(run_dir / "advice.json", advice_record(advice))
    draw_search(advice.trials, advice.best, run_dir / "search.png")
    if advice.best is None:
        say(f"nothing of {len(advice.trials)} settings lowers the peak with at most {cfg.exposed_us} us exposed")
        return 1
    values = advice.best.values()
    say("offload settings: " + " ".join(f"offload.{name}={value}" for name, value in values.items()))
    draw(cfg, plan_graph(HyperOffloadInput(graph, advice.best.settings)), run_dir)
    return 0


def verify(cfg: OffloadConfig, graph: Graph, run_dir: Path) -> int:
    plan = plan_graph(HyperOffloadInput(graph, cfg.offload))
    with open(cfg.trace, encoding="utf-8", errors="replace") as lines:
        traces = parse_traces(lines, cfg.trace)
    reports = [differences(plan, trace) for trace in traces]
    best = min(range(len(reports)), key=lambda k: (len(reports[k]), k))
    same_size = [k for k, trace in enumerate(traces) if len(trace.kernels) == len(graph.nodes)]
    chosen = best if best in same_size or not same_size else min(same_size, key=lambda k: len(reports[k]))
    say(f"{len(traces)} traces in the log; number {chosen + 1} is compared")
    rows = [[line] for line in reports[chosen]] or [["the run did what the plan says"]]
    console().print(Table(f"{len(reports[chosen])} differences", ["difference"], rows).rich())
    write_json(run_dir / "verify.json", {"trace": chosen, "differences": reports[chosen]})
    return 1 if reports[chosen] else 0


BODIES = {"plan": show_plan, "timeline": show_timeline, "advise": show_advice, "verify": verify}


def times_of(cfg: OffloadConfig, graph: Graph) -> tuple[Any, bool]:
    """Kernel times, and whether every one of them was measured."""
    measured = read_kernel_times(cfg.kernel_times, graph) if cfg.kernel_times else {}
    return kernel_times(graph, cfg.offload, measured), bool(graph.nodes) and all(
        n.name in measured for n in graph.nodes
    )


def draw(cfg: OffloadConfig, plan: HyperOffloadPlan, run_dir: Path) -> tuple[Timeline, Timeline]:
    """Simulate with and without the plan; write ``timeline.json`` and ``timeline.png``."""
    times, measured = times_of(cfg, plan.graph)
    before, after = (simulate(p, times, measured) for p in (baseline(plan.graph, plan.settings), plan))
    record: dict[str, Any] = {"kinds": after.kinds, "without": summary(before), "with": summary(after)}
    record["transfers"] = [asdict(span) for span in after.transfers]
    record["waits"] = [asdict(span) for span in after.waits]
    write_json(run_dir / "timeline.json", record)
    draw_timeline(before, after, run_dir / "timeline.png", Path(plan.graph.origin).name)
    return before, after


def summary(timeline: Timeline) -> dict[str, Any]:
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


def plan_table(plan: HyperOffloadPlan) -> Table:
    counts = Counter(operation.op for operation in plan.operations)
    largest = sorted(plan.offload_infos, key=lambda info: -plan.graph.nbytes(info.data_node))[:SHOWN_DATA]
    rows = [plan_row(plan, info) for info in largest]
    total = sum(plan.graph.nbytes(info.data_node) for info in plan.offload_infos)
    count = len(plan.offload_infos)
    title = f"{count} activations of {len(plan.graph.nodes)} kernels are moved, {mebibytes(total)} MiB"
    title += f"; the {len(rows)} largest:" if count > len(rows) else ""
    inserted = ", ".join(f"{count} {op}" for op, count in sorted(counts.items())) or "nothing"
    columns = ["activation", "made by kernel", "last use before", "first use after", "gap", "MiB (TRACED)"]
    return Table(title, columns, rows, f"inserted: {inserted}")


def plan_row(plan: HyperOffloadPlan, info: OffloadInfo) -> list[str]:
    group = info.replace_info_list[0]
    positions = (info.data_node.node, group.replace_start_node, group.replace_rest_nodes[0].node, group.gap)
    return [plan.label(info.data_node), *map(str, positions), mebibytes(plan.graph.nbytes(info.data_node))]


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
    return Table("One step", ["figure", "without", "with"], rows, caption)


def advice_table(advice: Advice) -> Table:
    """The ten best settings that were tried, and the baseline."""
    fine = sorted((t for t in advice.trials if not t.errors), key=lambda t: (t.peak_bytes, t.exposed_us))
    inside = [t for t in fine if t.exposed_us <= advice.exposed_bound_us + 1e-6][:7]
    shown = inside + [t for t in fine if t not in inside][:3]
    rows = [
        [str(k + 1), mebibytes(t.peak_bytes), f"{t.exposed_us:.1f}", str(t.offloaded), *map(str, t.values().values())]
        for k, t in enumerate(shown)
    ]
    bad = sum(t.errors > 0 for t in advice.trials)
    title = f"{len(advice.trials)} settings tried, {bad} of them refused for hazards; nothing moved: "
    caption = f"at most {advice.exposed_bound_us} us exposed; peak and time are MODELLED"
    title += f"{mebibytes(advice.baseline_bytes)} MiB"
    return Table(title, ["", "peak MiB", "exposed us", "moved", *SEARCHED], rows, caption)


def advice_record(advice: Advice) -> dict[str, Any]:
    def record(trial: Any) -> dict[str, Any]:
        figures = {"peak_bytes": trial.peak_bytes, "exposed_us": trial.exposed_us, "offloaded": trial.offloaded}
        return trial.values() | figures | {"errors": trial.errors}

    return {
        "baseline_bytes": advice.baseline_bytes,
        "exposed_bound_us": advice.exposed_bound_us,
        "kinds": {"peak_bytes": "MODELLED", "exposed_us": "MODELLED"},
        "best": None if advice.best is None else record(advice.best),
        "trials": [record(trial) for trial in advice.trials],
    }


def print_hazards(hazards: list[Hazard]) -> None:
    rows = [
        [h.severity, h.kind, h.data, h.why, words(h.numbers), words(h.safe) or "-"] for h in hazards[:SHOWN_HAZARDS]
    ]
    if rows:
        more = len(hazards) - len(rows)
        caption = f"{more} more in the run directory" if more > 0 else ""
        columns = ["", "hazard", "tensor", "why", "numbers", "safe"]
        console().print(Table(f"{len(hazards)} hazards", columns, rows, caption).rich())
    else:
        say("no hazards")


def words(numbers: dict[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in numbers.items())


def say(text: str) -> None:
    console().print(text, markup=False, highlight=False, soft_wrap=True)


def write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1) + "\n")
