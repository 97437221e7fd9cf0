"""``hp-memory offload plan|advise|timeline|verify``: HyperOffload on a compiled graph, without the cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from hp_memory.config.schema import OffloadConfig
from hp_memory.errors import ConfigError
from hp_memory.offload import HyperOffloadInput, HyperOffloadPlan
from hp_memory.offload import run as plan_graph
from hp_memory.offload.advise import advise
from hp_memory.offload.files import mark_remote, read_graph, read_kernel_times
from hp_memory.offload.graph import Graph
from hp_memory.offload.hazards import Hazard, find_hazards, is_safe
from hp_memory.offload.pictures import draw_search, draw_timeline
from hp_memory.offload.safe import with_safe_values
from hp_memory.offload.settings import ACTIONS, OffloadCommandSettings
from hp_memory.offload.timeline import Timeline, baseline, kernel_times, simulate
from hp_memory.offload.trace import TraceFormatError, differences, parse_traces
from hp_memory.report import offload as report
from hp_memory.report.table import console
from hp_memory.runs.paths import make_new_run_dir

PROGRESS_SECONDS = 10.0


def run(cfg: OffloadConfig, action: str | None) -> int:
    """Returns 0, or 1 where the plan has an error hazard or the run differs from it."""
    if action is None:
        raise ConfigError("action", "", "is needed", ACTIONS)
    cfg.offload.validate("offload")
    OffloadCommandSettings.validate(cfg, action, cfg.offload)
    graph = read_graph(cfg.graph)
    mark_remote(graph, cfg.remote)
    refuse_unknown_bytes(cfg, graph, action)
    run_dir = make_new_run_dir(cfg.run_dir, cfg.run_root, cfg.name)
    code = BODIES[action](cfg, graph, run_dir)
    say(f"written to {run_dir}")
    return code


def refuse_unknown_bytes(cfg: OffloadConfig, graph: Graph, action: str) -> None:
    """The distance strategy needs no bytes; all else does.

    Raises:
        ConfigError: naming the first kernel whose output has a dynamic shape.
    """
    unknown = graph.unknown_bytes()
    if unknown is not None and (action in ("timeline", "advise") or cfg.offload.strategy == "peak"):
        why = f"{unknown} has a dynamic shape and unknown bytes; `offload plan` with the distance strategy needs none"
        raise ConfigError("graph", cfg.graph, why)


def plan_of(cfg: OffloadConfig, graph: Graph) -> tuple[HyperOffloadPlan, list[Hazard]]:
    plan = plan_graph(HyperOffloadInput(graph, cfg.offload, stage=cfg.stage))
    hazards = with_safe_values(plan, find_hazards(plan))
    if hazards:
        console().print(report.hazards_table(hazards).rich())
    else:
        say("no hazards")
    return plan, hazards


def show_plan(cfg: OffloadConfig, graph: Graph, run_dir: Path) -> int:
    plan, hazards = plan_of(cfg, graph)
    for table in report.plan_tables(plan):
        console().print(table.rich())
    write_json(run_dir / "graph_plan.json", report.plan_record(plan, hazards))
    if not is_safe(hazards):
        return 1
    if graph.unknown_bytes() is not None:
        say("no timeline: the graph has outputs of unknown bytes")
    else:
        draw(cfg, plan, run_dir)
    return 0


def show_timeline(cfg: OffloadConfig, graph: Graph, run_dir: Path) -> int:
    plan, hazards = plan_of(cfg, graph)
    if not is_safe(hazards):
        say("no timeline: a plan with an error would not run like that")
        return 1
    before, after = draw(cfg, plan, run_dir)
    console().print(report.timeline_table(graph, before, after).rich())
    return 0


class Progress:
    """Says how far a search is and how long it will take, every few seconds."""

    def __init__(self) -> None:
        self.started = self.said = time.monotonic()

    def __call__(self, done: int, most: int) -> None:
        now = time.monotonic()
        if now - self.said >= PROGRESS_SECONDS:
            self.said = now
            left = (now - self.started) / done * (most - done)
            say(f"{done} of at most {most} settings tried; at most {left:.0f} s more")


def show_advice(cfg: OffloadConfig, graph: Graph, run_dir: Path) -> int:
    times, _ = times_of(cfg, graph)
    advice = advise(graph, cfg.offload, times, cfg.exposed_us, cfg.evaluations, cfg.stage, Progress())
    console().print(report.advice_table(advice).rich())
    write_json(run_dir / "advice.json", report.advice_record(advice))
    draw_search(advice.trials, advice.best, run_dir / "search.png")
    if advice.best is None:
        say(f"nothing of {len(advice.trials)} settings lowers the peak with at most {cfg.exposed_us} us exposed")
        return 1
    say("offload settings: " + " ".join(f"offload.{name}={value}" for name, value in advice.best.values().items()))
    draw(cfg, plan_graph(HyperOffloadInput(graph, advice.best.settings, stage=cfg.stage)), run_dir)
    return 0


def verify(cfg: OffloadConfig, graph: Graph, run_dir: Path) -> int:
    plan = plan_graph(HyperOffloadInput(graph, cfg.offload, stage=cfg.stage))
    try:
        with open(cfg.trace, encoding="utf-8", errors="replace") as lines:
            traces = parse_traces(lines, cfg.trace)
    except TraceFormatError as error:
        raise ConfigError("trace", cfg.trace, str(error).removeprefix(cfg.trace).lstrip(": ")) from error
    reports = [differences(plan, trace) for trace in traces]
    best = min(range(len(reports)), key=lambda k: (len(reports[k]), k))
    same_size = [k for k, trace in enumerate(traces) if len(trace.kernels) == len(graph.nodes)]
    chosen = best if best in same_size or not same_size else min(same_size, key=lambda k: len(reports[k]))
    say(f"{report.plural(len(traces), 'trace')} in the log; number {chosen + 1} is compared")
    console().print(report.differences_table(reports[chosen]).rich())
    write_json(run_dir / "verify.json", {"trace": chosen, "differences": reports[chosen]})
    return 1 if reports[chosen] else 0


BODIES = {"plan": show_plan, "timeline": show_timeline, "advise": show_advice, "verify": verify}


def times_of(cfg: OffloadConfig, graph: Graph) -> tuple[np.ndarray, bool]:
    """Kernel times, and whether every one of them was measured."""
    measured = read_kernel_times(cfg.kernel_times, graph) if cfg.kernel_times else {}
    return kernel_times(graph, cfg.offload, measured), all(node.name in measured for node in graph.nodes)


def draw(cfg: OffloadConfig, plan: HyperOffloadPlan, run_dir: Path) -> tuple[Timeline, Timeline]:
    """Simulate with and without the plan; write ``timeline.json`` and ``timeline.png``."""
    times, measured = times_of(cfg, plan.graph)
    before, after = (simulate(p, times, measured) for p in (baseline(plan.graph, plan.settings), plan))
    write_json(run_dir / "timeline.json", report.timeline_record(before, after))
    draw_timeline(before, after, run_dir / "timeline.png", Path(plan.graph.origin).name)
    return before, after


def say(text: str) -> None:
    console().print(text, markup=False, highlight=False, soft_wrap=True)


def write_json(path: Path, record: dict[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
