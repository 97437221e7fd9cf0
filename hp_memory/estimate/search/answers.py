"""A search's outcome as words, tables, overrides and a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import yaml

from hp_memory.estimate.ranks import Estimate
from hp_memory.estimate.search.budget import GIB, Planner, override_of
from hp_memory.estimate.search.freedoms import Found
from hp_memory.estimate.search.step import Answer, best_layouts
from hp_memory.layout import LayoutSettings
from hp_memory.report.table import Table

if TYPE_CHECKING:
    from hp_memory.config.schema import SearchConfig


def in_words(found: Found, more: float | None, planner: Planner) -> str:
    """The answer, what is proven about it, and what the next GiB would buy."""
    best, seconds = found.best, found.best.step.seconds
    if found.proven:
        proof = f"no plan of the ways considered takes less than {found.bound:.1f} s (gap {found.gap:.2%})"
        if found.gap == 0:
            proof = "optimal among the ways considered"
    else:
        proof = f"heuristic; with one chunk per rank and these stages, no layouts take less than {best.bound:.1f} s"
        if best.pipeline.chunks != best.pipeline.stages:
            proof = f"heuristic; no layouts of these chunks take less than {best.bound:.1f} s (gap {best.gap:.2%})"
    lines = [f"fastest found: {seconds:.1f} s a step with {best.in_words()}; {proof}"]
    if more is not None:
        lines.append(f"the next GiB would save {max(seconds - more, 0.0):.2f} s a step")
    counts = ", ".join(f"{len(ways)} for {kind}" for kind, ways in planner.ways.items())
    return "\n".join([*lines, f"ways considered: {counts}"])


def beside(found: Found, planner: Planner, named: Mapping[str, LayoutSettings], budget: int) -> Table:
    """The best plan, the best with one freedom less, the present choice, and layouts that have names."""
    answers = {"fastest found": found.best, "layouts only": found.present}
    for freedom in dict.fromkeys(f for case in found.cases for f in case.moved):
        answers[f"without {freedom}"] = found.without(freedom)
    rows = [_row(name, answer, found.best) for name, answer in answers.items() if answer is not None]
    for name, layout in named.items():
        estimate = planner.estimate(layout)
        rows.append(_named_row(name, estimate, budget, found.best))
    columns = ["plan", "what", "peak GiB", "fits", "step s", "than the fastest", "tokens/s", "MFU"]
    return Table("Plans side by side", columns, rows, "peak of the worst pipeline rank; times MODELLED")


def _row(name: str, answer: Answer, best: Answer) -> list[str]:
    return [name, answer.in_words(), f"{answer.peak / GIB:.2f}", "yes", *_times(answer.step, best)]


def _named_row(name: str, estimate: Estimate, budget: int, best: Answer) -> list[str]:
    fits = "yes" if estimate.worst.peak <= budget else "no"
    what = "the same stages, schedule and micro-batch"
    return [f"layout {name}", what, f"{estimate.worst.peak / GIB:.2f}", fits, *_times(estimate.time, best)]


def _times(step: Any, best: Answer) -> list[str]:
    more = step.seconds / best.step.seconds - 1
    return [f"{step.seconds:.1f}", f"{more:+.1%}", f"{step.tokens_per_second:,.0f}", f"{step.utilisation:.1%}"]


def curve(planner: Planner, low: int, points: int) -> list[tuple[int, float]]:
    """Budgets from ``low`` to where nothing need be replayed, and the seconds of a plan's step at each."""
    high = planner.estimate(LayoutSettings(name="none", default="save")).worst.peak
    step = max(1, (high - low) // (points - 1))
    budgets = [low + i * step for i in range(points - 1)] + [max(high, low)]
    found = ((budget, best_layouts(planner, budget, gap=0.01)) for budget in budgets)
    return [(budget, answer.step.seconds) for budget, answer in found if answer is not None]


def overrides(found: Found) -> str:
    """What the best plan changes beside layouts, as overrides of the command line."""
    pipeline, words = found.best.pipeline, []
    moved = next(case.moved for case in found.cases if case.answer is found.best)
    if "stages" in moved:
        words.append(f"'pipeline.layers_per_stage={pipeline.layers_per_stage}'")
    if "micro_batch" in moved:
        words += [f"train.micro_batch_size={found.best.sequences}", f"train.micro_batches={pipeline.microbatches}"]
        words.append(f"pipeline.microbatches={pipeline.microbatches}")
    if "schedule" in moved:
        words += [f"pipeline.schedule={pipeline.schedule}", f"pipeline.interleave={pipeline.interleave}"]
        words.append(f"pipeline.split_backward={str(pipeline.split_backward).lower()}")
    return " ".join(words)


def recipe(cfg: SearchConfig, planner: Planner, layout: LayoutSettings) -> str:
    """The whole answer as a recipe: a file for the config group ``recipe``."""
    pipeline = planner.pipeline
    single = {"microbatches": 1} if pipeline.stages == 1 else {}
    train = asdict(cfg.train) | {
        "micro_batch_size": planner.work.sequences,
        "micro_batches": pipeline.microbatches,
    }
    data = {
        "name": f"{cfg.name}_search",
        "engine": cfg.engine,
        "model": asdict(cfg.model),
        "parallel": asdict(cfg.parallel),
        "pipeline": asdict(pipeline) | single,
        "layout": _layout(layout),
        "train": train,
    }
    head = "# @package _global_\n# A plan that a search found: put it into the folder of recipes, configs/recipe.\n"
    return head + "defaults:\n  - override /layout: full\n  - _self_\n\n" + yaml.safe_dump(data, sort_keys=False)


def _layout(layout: LayoutSettings) -> dict[str, Any]:
    layers = [{k: v for k, v in asdict(entry).items() if v is not None} for entry in layout.layers]
    return {"name": layout.name, "default": layout.default, "layers": layers}


def to_dict(found: Found, budget: int, points: list[tuple[int, float]]) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "budget": budget,
        "cost_model": "time",
        "seconds": found.best.step.seconds,
        "bound": found.bound,
        "gap": found.gap,
        "proven": found.proven,
        "overrides": f"{override_of(found.best.layout)} {overrides(found)}".rstrip(),
        "cases": [
            {
                "what": case.answer.in_words(),
                "moved": sorted(case.moved),
                "seconds": case.answer.step.seconds,
                "bound": case.bound,
                "peak": case.answer.peak,
            }
            for case in found.cases
        ],
        "curve": [{"budget": at, "seconds": seconds} for at, seconds in points],
    }
