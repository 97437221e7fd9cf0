"""Draws ``docs/images/moe_layer.png`` and prints its table: what one MoE layer of DeepSeek-V3 holds, by region.

    python docs/make_moe_layer.py

The figures are TRACED: MindFormers' own layer runs on the meta device with the shapes of one rank.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", GLOG_v="3")

MIB = 2**20
PICTURE = Path(__file__).parent / "images" / "moe_layer.png"
RECIPE = "deepseek_v3_671b"
LAYOUTS = ("none", "full", "op_exclude", "region_exclude", "chain_exclude")
SINGLE = ("compute.act", "attention.qkv")  # layouts that replay these and nothing else
# Regions that are one to a reader; the rest by name.
PARTS = ("block input", "attention", "router", "dispatch", "all2all", "compute", "gmm", "combine", "shared_experts")


def part_of(region: str) -> str:
    """Where a held storage belongs in the picture."""
    return next((part for part in PARTS if region.split(".")[0] == part), "norms and additions")


def held() -> dict[str, dict[str, float]]:
    """MiB per micro-batch by layout and part."""
    from hp_memory.config.app import compose, to_object
    from hp_memory.estimate.account.held import held_by
    from hp_memory.estimate.engines.choice import trace
    from hp_memory.experiment.workload import workload
    from hp_memory.layout import LayoutSettings, build_plan

    cfg = to_object(compose("dryrun", [f"recipe={RECIPE}"]))
    work = workload(cfg, cfg.estimate)
    layer = trace(work).layers["moe"]
    settings = {name: to_object(compose("layout_only", [f"layout={name}"])).layout for name in LAYOUTS}
    settings |= {f"replay only {one}": LayoutSettings("one", "save", recompute=[one]) for one in SINGLE}
    found: dict[str, dict[str, float]] = {}
    for name, chosen in settings.items():
        plan = next(p for p in build_plan(chosen, work.fingerprint()).layers if p.kind == "moe")
        parts = found.setdefault(name, {})
        for entry in held_by(layer, plan.layout.replays(layer.regions), chosen.keep_outputs):
            part = part_of("block input" if entry.reason == "block input" else entry.region)
            parts[part] = parts.get(part, 0.0) + layer.storages[entry.storage].nbytes / MIB
    return found


def draw(found: dict[str, dict[str, float]]) -> None:
    """Bars side by side, one for each layout, the first one's height drawn through."""
    from hp_memory.report.figures import figure_file, new_figure

    figure, axes = new_figure(9, 4.2)
    names = list(found)[::-1]
    left = dict.fromkeys(names, 0.0)
    for part in (*PARTS, "norms and additions"):
        sizes = [found[name].get(part, 0.0) for name in names]
        axes.barh(names, sizes, left=list(left.values()), label=part)
        left = {name: left[name] + size for name, size in zip(names, sizes, strict=True)}
    axes.axvline(sum(found["none"].values()), color="black", linestyle=":", linewidth=1)
    axes.set_xlabel("MiB held by one MoE layer per micro-batch (TRACED)")
    axes.legend(fontsize=8, ncols=2)
    figure_file(figure, PICTURE, "")


def main() -> None:
    """The picture, and the same as a Markdown table."""
    found = held()
    draw(found)
    plain = sum(found["none"].values())
    parts = [p for p in (*PARTS, "norms and additions") if any(p in row for row in found.values())]
    print("| layout |", " | ".join(parts), "| all | / none |")
    print("|---|" + "---:|" * (len(parts) + 2))
    for name, row in found.items():
        cells = [f"{row.get(part, 0.0):.0f}" for part in parts]
        total = sum(row.values())
        print(f"| {name} |", " | ".join(cells), f"| {total:.0f} | {total / plain:.2f} |")


if __name__ == "__main__":
    main()
