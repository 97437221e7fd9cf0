"""The report of a comparison: what each layout held, replayed and took, and whether the bits agree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hp_memory.layout import REGIONS
from hp_memory.report.figures import figure_file, new_figure
from hp_memory.report.page import Part, Picture, Text, write_page
from hp_memory.report.table import Table, mebibytes

Layouts = Mapping[str, Mapping[str, Any]]
_LAYER = re.compile(r"layers\.(\d+)(?:/(.+))?")
OUTSIDE, BLOCK_INPUT = "outside the blocks", "block input"
TAKEN = "MEASURED on rank 0 after one micro-batch's forward; storages counted once, parameters left out"


def write_report(run_dir: Path, reports: Mapping[int, Mapping[str, Any]], layers: Sequence[int]) -> list[Table]:
    """Writes ``report.json``, ``report.html`` and the pictures; returns the tables for the terminal.

    Args:
        reports: each rank's ``reports/rank_<r>.json``.
        layers: the ids of the MoE layers, over which figures per layer are averaged.
    """
    layouts: Layouts = reports[0]["layouts"]
    differences = {name: _worst(reports, name) for name in layouts}
    held = {name: held_by_region(found["held"], layers) for name, found in layouts.items()}
    tables = [
        _summary(layouts, held, differences, len(layers)),
        _by_region("MiB held per MoE layer and region", held, TAKEN, mebibytes),
        _by_region("Replays per region", {n: replays_by_region(f["runs"], layers) for n, f in layouts.items()},
                   "MEASURED: runs of the region's body in backward, per MoE layer and micro-batch", "{:g}".format),
    ]  # fmt: skip
    tables += [_chain(reports[0]["chain"]), *_expected(layouts)]
    environment = json.loads((run_dir / "environment.json").read_text())
    plans = {name: found["plan"] for name, found in layouts.items() if "plan" in found}
    data = {
        "command": "compare",
        "environment": environment,
        "moe_layers": list(layers),
        "differences": differences,
        "held_per_moe_layer": held,
        "ranks": reports,
    }
    (run_dir / "report.json").write_text(json.dumps(data, indent=1))
    parts: list[Part] = [tables[0], _draw(layouts, held, run_dir / "layouts.png"), *tables[1:]]
    parts += [Text(f"Plan {name}", words) for name, words in plans.items()]
    write_page(run_dir / "report.html", "Layouts side by side", [*parts, Text("Environment", json.dumps(environment))])
    return tables


def held_by_region(held: Sequence[Mapping[str, Any]], layers: Sequence[int]) -> dict[str, float]:
    """Bytes held per region, averaged over ``layers``; what belongs to no such layer isn't counted."""
    found: dict[str, float] = {}
    for item in held:
        match = _LAYER.fullmatch(item["region"])
        if match and int(match[1]) in layers:
            region = match[2] or BLOCK_INPUT
            found[region] = found.get(region, 0.0) + item["nbytes"] / len(layers)
    return dict(sorted(found.items(), key=lambda pair: _place(pair[0])))


def replays_by_region(runs: Mapping[str, Mapping[str, int]], layers: Sequence[int]) -> dict[str, float]:
    """Replays per region, averaged over ``layers``."""
    found: dict[str, float] = {}
    for name, counts in runs.items():
        match = _LAYER.fullmatch(name)
        if match and match[2] and int(match[1]) in layers:
            found[match[2]] = found.get(match[2], 0.0) + counts["replays"] / len(layers)
    return dict(sorted(found.items(), key=lambda pair: _place(pair[0])))


def unexpected(reports: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """A line for each rank and layout that held something else than the table written by hand."""
    lines = []
    for rank, report in reports.items():
        lines += [
            f"rank {rank}: chain, {c['case']}: not what the table says" for c in report["chain"] if not c["agrees"]
        ]
        for name, found in report["layouts"].items():
            wrong = sum(e["expected"] != e["found"] for e in found.get("table") or ())
            lines += [f"rank {rank}: {name}: {wrong} storages differ from the table"] if wrong else []
    return lines


def _place(region: str) -> tuple[int, str]:
    first = region.split("..")[0]
    return (REGIONS.index(first) if first in REGIONS else -1, region)


def _worst(reports: Mapping[int, Mapping[str, Any]], name: str) -> str | None:
    found = [(rank, report["layouts"][name]["difference"]) for rank, report in reports.items()]
    return next((f"rank {rank}: {difference}" for rank, difference in found if difference), None)


def _summary(layouts: Layouts, held: Mapping[str, Mapping[str, float]], differences: Mapping[str, str | None],
             moe_layers: int) -> Table:  # fmt: skip
    first = next(iter(layouts))
    base = layouts[first]["seconds"]["steps"]
    rows = []
    for name, found in layouts.items():
        time, held_here = found["seconds"], sum(held[name].values())
        ratios = [a / b for a, b in zip(time["steps"], base, strict=True)]
        rows.append([
            name,
            mebibytes(held_here),
            f"{held_here / sum(held[first].values()):.2f}",
            mebibytes(sum(item["nbytes"] for item in found["held"])),
            mebibytes(found["on_host"]),
            mebibytes(found["resident_growth"]),
            str(sum(runs["replays"] > 0 for runs in found["runs"].values())),
            f"{time['median'] * 1e3:.0f} [{time['q25'] * 1e3:.0f}-{time['q75'] * 1e3:.0f}]",
            f"{median(ratios):.2f}",
            "yes" if differences[name] is None else "NO",
        ])  # fmt: skip
    columns = ["layout", "MiB/MoE layer", f"/ {first}", "MiB total", "on host", "RSS growth", "replayed",
               "ms/step [quartiles]", f"/ {first}", "same bits"]  # fmt: skip
    caption = (
        f"{TAKEN}. on host: MiB that wait there for backward. "
        "RSS growth: MiB the process grows by per forward kept, an independent measure. replayed: regions of "
        f"the model that ran again. ms/step: {len(base)} steps of each layout in turns, the ratio of paired steps."
    )
    return Table(f"Layouts side by side ({moe_layers} MoE layers)", columns, rows, caption)


def _by_region(title: str, values: Mapping[str, Mapping[str, float]], caption: str, show: Any) -> Table:
    regions = sorted({r for by_region in values.values() for r in by_region}, key=_place)
    rows = [[r, *(show(by[r]) if r in by else "" for by in values.values())] for r in regions]
    return Table(title, ["region", *values], rows, caption)


def _chain(cases: Sequence[Mapping[str, Any]]) -> Table:
    """The design document's counts: op_exclude 3, region_exclude 2, chain_exclude 3, and 1 output after elision."""
    rows = []
    for case in cases:
        outputs = [h for h in case["found"] if h["reason"] == "output kept for replay"]
        wanted = ", ".join(f"{e['tensor']} ({e['reason']})" for e in case["expected"])
        found = f"{len(case['found'])} activations"
        rows.append([case["case"], found, str(len(outputs)), wanted, "yes" if case["agrees"] else "NO"])
    return Table(
        "all2all, resort, gmm alone",
        ["case", "held", "outputs kept", "what should be held, by hand", "agrees"],
        rows,
        "MEASURED after forward, between a replayed norm and a replayed activation; metadata left out",
    )


def _expected(layouts: Layouts) -> list[Table]:
    known = {name: found["table"] for name, found in layouts.items() if found.get("table") is not None}
    if not known:
        return []
    rows = []
    for name, entries in known.items():
        wanted, found = (sum(e[key] for e in entries) for key in ("expected", "found"))
        missing = [e["tensor"] for e in entries if not e["found"]]
        extra = [f"{e['region']} {e['shape']}" for e in entries if not e["expected"]]
        rows.append([name, str(wanted), str(found), ", ".join(missing) or "none", ", ".join(extra) or "none"])
    columns = ["layout", "by hand", "found", "missing", "not in the table"]
    counts = Table("Storages in all blocks, beside the table written by hand", columns, rows, TAKEN)
    return [counts, _tensors(known)]


def _tensors(known: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """The first MoE block tensor by tensor: bytes where a layout should hold it and does."""
    layer = max(e["layer"] for entries in known.values() for e in entries)
    tensors: dict[tuple[str, str, str], dict[str, str]] = {}
    for name, entries in known.items():
        for entry in (e for e in entries if e["layer"] == layer and e["expected"]):
            cell = f"{entry['bytes']:,}" if entry["found"] else "MISSING"
            tensors.setdefault((entry["tensor"], entry["producer"], entry["reader"]), {})[name] = cell
    rows = [[*key, *(cells.get(name, "") for name in known)] for key, cells in tensors.items()]
    caption = f"bytes; layer {layer}; written by hand from the gradients' formulas, found by the probe"
    return Table("What a MoE block should hold, and does", ["tensor", "producer", "reader", *known], rows, caption)


def _draw(layouts: Layouts, held: Mapping[str, Mapping[str, float]], path: Path) -> Picture:
    figure, axes = new_figure(10, 5)
    bottoms = dict.fromkeys(layouts, 0.0)
    regions = sorted({r for by_region in held.values() for r in by_region}, key=_place)
    for i, region in enumerate(regions):
        sizes = [held[name].get(region, 0.0) / 2**20 for name in layouts]
        # Two runs through the palette are distinguished by hatching.
        axes.bar(list(layouts), sizes, bottom=list(bottoms.values()), label=region, color=f"C{i % 10}",
                 hatch="//" if i >= 10 else None, width=0.6)  # fmt: skip
        bottoms = {name: bottoms[name] + size for name, size in zip(layouts, sizes, strict=True)}
    for x, (name, found) in enumerate(layouts.items()):
        axes.annotate(f"{found['seconds']['median'] * 1e3:.0f} ms/step", (x, bottoms[name]), ha="center", va="bottom")
    axes.set(ylabel="MiB held per MoE layer after forward")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    return figure_file(figure, path, f"Activations each layout holds per MoE layer, by region. {TAKEN}.")
