"""``hp-memory search``: the cheapest plan that fits a budget, proven for the stated cost model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mindspore as ms

from hp_memory.config.app import compose, to_object
from hp_memory.config.estimate import positive_bytes_of
from hp_memory.config.schema import NAMED_LAYOUTS, SearchConfig
from hp_memory.estimate import report
from hp_memory.estimate.search.budget import GIB, Plan, Planner, override_of, yaml_of
from hp_memory.experiment import experiment
from hp_memory.experiment.job import prepare_run_dir
from hp_memory.experiment.workload import pipeline_of, workload
from hp_memory.layout import LayoutSettings
from hp_memory.mindformers.trainer_yaml.applied import applied_with_assumptions
from hp_memory.mindformers.trainer_yaml.theirs import CALLBACK_TARGET, with_plan
from hp_memory.report.figures import figure_file, new_figure
from hp_memory.report.page import Part, Picture, Text, write_page
from hp_memory.report.table import Table
from hp_memory.report.table import console as make_console

_UNITS = {"time": ("ms", 1e3), "flops": ("TFLOPs", 1e-12), "given": ("ms", 1.0)}


def run(cfg: SearchConfig) -> int:
    """Prints and writes the plan; returns 0, or 1 if nothing fits."""
    from_yaml = applied_with_assumptions(cfg, LayoutSettings("searched", "save"))
    cfg = from_yaml.cfg
    experiment.of("search", cfg)
    cfg.search.validate("search")
    budget = positive_bytes_of(cfg.budget, "budget")
    ms.set_device("CPU")
    planner = Planner(workload(cfg, cfg.estimate), pipeline_of(cfg), cfg.estimate, cfg.search)
    plan = planner.solve(budget)
    console = make_console()
    for note in from_yaml.notes:
        console.print(note, highlight=False, markup=False)
    if plan is None:
        console.print(f"nothing fits {cfg.budget}: {planner.blame().in_words()}", highlight=False, markup=False)
        return 1
    found = planner.estimate(plan.layout)
    run_dir = prepare_run_dir(cfg, found.plan)
    (run_dir / "layout.yaml").write_text(yaml_of(plan.layout))
    if from_yaml.reading is not None:
        theirs = with_plan(from_yaml.reading, plan.layout, found.plan, CALLBACK_TARGET)
        (run_dir / f"{from_yaml.reading.name}.yaml").write_text(theirs)
    more = planner.solve(budget + GIB)
    table = _beside_named(planner, plan, cfg, budget)
    curve = planner.curve(budget, cfg.search.curve)
    words = _words(cfg, planner, plan, found.worst.peak, plan.cost - more.cost if more else 0.0)
    for text in (report.summary(found), words):
        console.print(text, highlight=False, markup=False)
    console.print(table.rich())
    console.print(f"plan, as overrides:\n{override_of(plan.layout)}", highlight=False, markup=False, soft_wrap=True)
    tables = report.write(found, run_dir)
    picture = _curve_picture(curve, cfg, budget, run_dir / "curve.png")
    parts: list[Part] = [
        Text("In short", f"{report.summary(found)}\n{words}"),
        table,
        picture,
        Text("Plan", yaml_of(plan.layout)),
    ]
    write_page(run_dir / "search.html", f"The cheapest plan within {cfg.budget}", [*parts, *tables])
    (run_dir / "search.json").write_text(json.dumps(_data(cfg, plan, budget, found.worst.peak, curve), indent=1))
    console.print(f"report: {run_dir / 'search.html'}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _words(cfg: SearchConfig, planner: Planner, plan: Plan, peak: int, next_gib: float) -> str:
    unit, scale = _UNITS[cfg.search.cost]
    each = f"{plan.cost * scale:.1f} {unit} of replay per micro-batch on all ranks, {plan.slowest * scale:.1f} on one"
    counts = ", ".join(f"{len(ways)} for {kind}" for kind, ways in planner.ways.items())
    proof = "optimal" if plan.gap == 0 else f"within {plan.gap:.2%} of the least"
    return (
        f"{proof} for cost={cfg.search.cost}: {each}; peak {peak / GIB:.2f} GiB\n"
        f"the next GiB would save {next_gib * scale:.1f} {unit}; ways considered: {counts}"
    )


def _beside_named(planner: Planner, plan: Plan, cfg: SearchConfig, budget: int) -> Table:
    """The plan beside the layouts that have names."""
    unit, scale = _UNITS[cfg.search.cost]
    layouts = {name: to_object(compose("layout_only", [f"layout={name}"])).layout for name in NAMED_LAYOUTS}
    rows = [_row(planner, name, layout, scale) for name, layout in (layouts | {"search": plan.layout}).items()]
    columns = ["layout", "peak GiB", "fits the budget", f"replay {unit}", "replayed FLOPs"]
    rows = [[name, f"{peak / GIB:.2f}", "yes" if peak <= budget else "no", *rest] for name, peak, *rest in rows]
    return Table(
        "Beside the named layouts", columns, rows, "the worst pipeline rank; replay per micro-batch, all ranks"
    )


def _row(planner: Planner, name: str, layout: LayoutSettings, scale: float) -> list[Any]:
    found = planner.estimate(layout)
    return [name, found.worst.peak, f"{planner.cost_of(layout) * scale:.1f}", f"{found.replayed_share:.1%}"]


def _curve_picture(curve: list[tuple[int, float]], cfg: SearchConfig, budget: int, path: Path) -> Picture:
    unit, scale = _UNITS[cfg.search.cost]
    figure, axes = new_figure(8, 4)
    axes.plot([b / GIB for b, _ in curve], [c * scale for _, c in curve], marker="o")
    axes.axvline(budget / GIB, color="red", linestyle="--", linewidth=1, label="budget")
    axes.set(xlabel="budget per device, GiB", ylabel=f"replay per micro-batch, {unit}", ylim=(0, None))
    axes.legend()
    return figure_file(figure, path, "What more memory buys: each point is a plan that fits, near the optimum")


def _data(cfg: SearchConfig, plan: Plan, budget: int, peak: int, curve: list[tuple[int, float]]) -> dict[str, Any]:
    return {
        "budget": budget,
        "cost": plan.cost,
        "cost_model": cfg.search.cost,
        "peak": peak,
        "overrides": override_of(plan.layout),
        "curve": [{"budget": at, "cost": cost} for at, cost in curve],
    }
