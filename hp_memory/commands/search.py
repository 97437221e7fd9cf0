"""``hp-memory search``: the fastest step that fits a budget, with what is proven about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore as ms

from hp_memory.amounts import stated_bytes_of
from hp_memory.config.app import compose, to_object
from hp_memory.config.schema import NAMED_LAYOUTS, SearchConfig
from hp_memory.estimate import report
from hp_memory.estimate.search import answers
from hp_memory.estimate.search.budget import GIB, Plan, Planner, override_of, yaml_of
from hp_memory.estimate.search.freedoms import Search
from hp_memory.estimate.search.step import best_layouts
from hp_memory.experiment import experiment
from hp_memory.experiment.job import prepare_run_dir
from hp_memory.experiment.workload import pipeline_of, workload
from hp_memory.layout import ActivationPlan, LayoutSettings
from hp_memory.mindformers.trainer_yaml.applied import applied_with_assumptions
from hp_memory.mindformers.trainer_yaml.reading import Reading
from hp_memory.mindformers.trainer_yaml.theirs import CALLBACK_TARGET, with_plan
from hp_memory.report.figures import figure_file, new_figure
from hp_memory.report.page import Part, Picture, Text, write_page
from hp_memory.report.table import Table
from hp_memory.report.table import console as make_console
from hp_memory.runs.paths import refuse_used

if TYPE_CHECKING:
    from rich.console import Console

_UNITS = {"flops": ("TFLOPs", 1e-12), "given": ("ms", 1.0)}


def run(cfg: SearchConfig) -> int:
    """Prints and writes the plan; returns 0, or 1 if nothing fits."""
    budget = stated_bytes_of(cfg.budget, "budget")
    refuse_used(cfg.run_dir)
    from_yaml = applied_with_assumptions(cfg, LayoutSettings("searched", "save"))
    cfg = from_yaml.cfg
    experiment.of("search", cfg)
    cfg.search.validate("search")
    ms.set_device("CPU")
    console = make_console()
    for note in from_yaml.notes:
        _print(console, note)
    by = _by_time if cfg.search.cost == "time" else _by_cost
    outcome = by(cfg, budget, console)
    return 1 if outcome is None else _write(cfg, outcome, from_yaml.reading, console)


@dataclass(frozen=True)
class Outcome:
    """What a search comes to, whichever its objective.

    Attributes:
        planner: of the pipeline and the micro-batch that were chosen.
        moved: what is chosen beside the layout, as overrides; empty for nothing.
        data: for ``search.json``.
    """

    planner: Planner
    layout: LayoutSettings
    words: str
    beside: Table
    picture: Callable[[Path], Picture]
    data: dict[str, Any]
    moved: str = ""


def _print(console: Console, words: str) -> None:
    console.print(words, highlight=False, markup=False, soft_wrap=True)


def _by_time(cfg: SearchConfig, budget: int, console: Console) -> Outcome | None:
    """The fastest step, over all that may be chosen."""
    work, pipeline = workload(cfg, cfg.estimate), pipeline_of(cfg)
    search = Search(work, pipeline, cfg.estimate, cfg.search, lambda words: _print(console, f"... {words}"))
    found = search.run(budget)
    if found is None:
        _nothing_fits(cfg, search.planner(work.sequences), console)
        return None
    planner = search.planner(found.best.sequences).cut(found.best.pipeline)
    more = best_layouts(planner, budget + GIB)
    curve = answers.curve(planner, budget, cfg.search.curve)
    words = answers.in_words(found, more.step.seconds if more else None, planner)
    beside = answers.beside(found, planner, _named(("full", "none")), budget)
    picture = _curve_picture(curve, "seconds of a step, MODELLED", budget, cfg)
    data, moved = answers.to_dict(found, budget, curve), answers.overrides(found)
    return Outcome(planner, found.best.layout, words, beside, picture, data, moved)


def _by_cost(cfg: SearchConfig, budget: int, console: Console) -> Outcome | None:
    """The cheapest replay of all ranks together, in a unit that isn't a step's time."""
    planner = Planner(workload(cfg, cfg.estimate), pipeline_of(cfg), cfg.estimate, cfg.search)
    plan = planner.solve(budget)
    if plan is None:
        _nothing_fits(cfg, planner, console)
        return None
    unit, scale = _UNITS[cfg.search.cost]
    more, curve = planner.solve(budget + GIB), planner.curve(budget, cfg.search.curve)
    words = _words(cfg, planner, plan, more.cost if more else plan.cost)
    picture = _curve_picture([(b, c * scale) for b, c in curve], f"replay per micro-batch, {unit}", budget, cfg)
    beside = _beside_named(planner, plan, cfg, budget)
    data = {
        "budget": budget,
        "cost": plan.cost,
        "cost_model": cfg.search.cost,
        "gap": plan.gap,
        "overrides": override_of(plan.layout),
        "curve": [{"budget": at, "cost": cost} for at, cost in curve],
    }
    return Outcome(planner, plan.layout, words, beside, picture, data)


def _nothing_fits(cfg: SearchConfig, planner: Planner, console: Console) -> None:
    _print(console, f"nothing fits {cfg.budget}: {planner.blame().in_words()}")


def _write(cfg: SearchConfig, outcome: Outcome, reading: Reading | None, console: Console) -> int:
    layout, found = outcome.layout, outcome.planner.estimate(outcome.layout)
    run_dir = prepare_run_dir(cfg, found.plan)
    (run_dir / "layout.yaml").write_text(yaml_of(layout))
    (run_dir / "recipe.yaml").write_text(answers.recipe(cfg, outcome.planner, layout))
    in_short = f"{report.summary(found)}\n{outcome.words}"
    _print(console, in_short)
    console.print(outcome.beside.rich())
    _print(console, f"plan, as overrides:\n{override_of(layout)} {outcome.moved}".rstrip())
    if reading is not None:
        _write_theirs(run_dir, reading, outcome, found.plan, console)
    tables = report.write(found, run_dir)
    parts: list[Part] = [Text("In short", in_short), outcome.beside, outcome.picture(run_dir)]
    parts.append(Text("Plan", yaml_of(layout)))
    write_page(run_dir / "search.html", f"The best plan within {cfg.budget}", [*parts, *tables])
    (run_dir / "search.json").write_text(json.dumps({**outcome.data, "peak": found.worst.peak}, indent=1))
    _print(console, f"recipe: {run_dir / 'recipe.yaml'}\nreport: {run_dir / 'search.html'}")
    return 0


def _write_theirs(run_dir: Path, reading: Reading, outcome: Outcome, plan: ActivationPlan, console: Console) -> None:
    """A MindFormers YAML gets the plan; what else was chosen changes keys that are its owner's."""
    file = run_dir / f"{reading.name}.yaml"
    file.write_text(with_plan(reading, outcome.layout, plan, CALLBACK_TARGET))
    words = f"MindFormers YAML with the plan: {file}"
    _print(console, f"{words}; set beside it: {outcome.moved}" if outcome.moved else words)


def _words(cfg: SearchConfig, planner: Planner, plan: Plan, more: float) -> str:
    unit, scale = _UNITS[cfg.search.cost]
    each = f"{plan.cost * scale:.1f} {unit} of replay per micro-batch on all ranks, {plan.slowest * scale:.1f} on one"
    counts = ", ".join(f"{len(ways)} for {kind}" for kind, ways in planner.ways.items())
    proof = "optimal" if plan.gap == 0 else f"within {plan.gap:.2%} of the least"
    return (
        f"{proof} for cost={cfg.search.cost}: {each}\n"
        f"the next GiB would save {(plan.cost - more) * scale:.1f} {unit}; ways considered: {counts}"
    )


def _named(names: tuple[str, ...]) -> dict[str, LayoutSettings]:
    return {name: to_object(compose("layout_only", [f"layout={name}"])).layout for name in names}


def _beside_named(planner: Planner, plan: Plan, cfg: SearchConfig, budget: int) -> Table:
    """The plan beside the layouts that have names."""
    unit, scale = _UNITS[cfg.search.cost]
    layouts = _named(tuple(NAMED_LAYOUTS)) | {"search": plan.layout}
    rows = []
    for name, layout in layouts.items():
        found = planner.estimate(layout)
        fits = "yes" if found.worst.peak <= budget else "no"
        cost = f"{planner.cost_of(layout) * scale:.1f}"
        rows.append([name, f"{found.worst.peak / GIB:.2f}", fits, cost, f"{found.replayed_share:.1%}"])
    columns = ["layout", "peak GiB", "fits the budget", f"replay {unit}", "replayed FLOPs"]
    return Table(
        "Beside the named layouts", columns, rows, "the worst pipeline rank; replay per micro-batch, all ranks"
    )


def _curve_picture(
    curve: list[tuple[int, float]], axis: str, budget: int, cfg: SearchConfig
) -> Callable[[Path], Picture]:
    """Draws the curve into a run directory."""

    def draw(run_dir: Path) -> Picture:
        figure, axes = new_figure(8, 4)
        axes.plot([b / GIB for b, _ in curve], [c for _, c in curve], marker="o")
        axes.axvline(budget / GIB, color="red", linestyle="--", linewidth=1, label=f"budget {cfg.budget}")
        axes.set(xlabel="budget per device, GiB", ylabel=axis, ylim=(0, None))
        axes.legend()
        words = "What more memory buys: each point is a plan that fits, near the optimum"
        return figure_file(figure, run_dir / "curve.png", words)

    return draw
