"""The report of a training run: its losses beside the text's unigram entropy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hp_memory.report.figures import figure_file, new_figure
from hp_memory.report.page import Picture, Text, write_page
from hp_memory.report.table import Table
from hp_memory.runs.progress import read_progress


def write_report(run_dir: Path, result: dict[str, Any]) -> Table:
    """Writes ``report.json``, ``report.html`` and ``loss.png`` into the run directory; returns the table shown.

    Args:
        run_dir: holds ``plan.txt``, ``environment.json`` and ``progress/``.
        result: ``result.json`` of the rank that has the losses: its ``rank``, 0 where it names none.
    """
    records = [record for record in read_progress(run_dir, result.get("rank", 0)) if "loss" in record]
    environment = json.loads((run_dir / "environment.json").read_text())
    table = _table(result, records)
    data = {"result": result, "losses": [[r["step"], r["loss"]] for r in records], "environment": environment}
    (run_dir / "report.json").write_text(json.dumps(data, indent=1))
    picture = _draw(records, result.get("unigram_entropy"), run_dir / "loss.png")
    plan = Text("Plan", (run_dir / "plan.txt").read_text())
    write_page(
        run_dir / "report.html",
        f"Training {run_dir.name}",
        [table, picture, plan, Text("Environment", json.dumps(environment, indent=1))],
    )
    return table


def _table(result: dict[str, Any], records: Sequence[dict[str, Any]]) -> Table:
    seconds = sorted(r["seconds"] for r in records[1:]) or [float("nan")]
    rows = []
    if "unigram_entropy" in result:
        rows.append(["unigram entropy of the text", f"{result['unigram_entropy']:.3f} nats/token"])
    if records:
        rows.append(["loss of the first step", f"{records[0]['loss']:.3f}"])
    # A job that was killed after its last checkpoint has no step left to do.
    if "mean_of_last_10" in result:
        rows.append(["mean loss of the last 10 steps", f"{result['mean_of_last_10']:.3f}"])
    if "validation_loss" in result:
        rows.append(["loss on text never trained on", f"{result['validation_loss']:.3f}"])
    rows.append(["median time of a step", f"{seconds[len(seconds) // 2]:.3f} s"])
    return Table("Training", ["what", "found"], rows, "loss in nats per token")


def _draw(records: Sequence[dict[str, Any]], entropy: float | None, path: Path) -> Picture:
    figure, axes = new_figure()
    axes.plot([r["step"] for r in records], [r["loss"] for r in records], label="training loss")
    if entropy is not None:
        axes.axhline(entropy, color="grey", linestyle="--", label="unigram entropy of the text")
    axes.set(xlabel="step", ylabel="nats per token")
    axes.legend()
    return figure_file(figure, path, "Loss by step, with the entropy a model of single tokens would reach")
