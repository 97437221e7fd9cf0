"""What a dry run shows: tables, memory over time as a picture, an HTML page, JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hp_memory.estimate.account.liveness import GRADIENTS
from hp_memory.estimate.account.stage import Unit
from hp_memory.estimate.ranks import Estimate, Stage
from hp_memory.estimate.times import host_show, show
from hp_memory.layout.layers import format_layers
from hp_memory.pipeline.schedule import Schedule
from hp_memory.pipeline.simulate import Held, levels
from hp_memory.report.figures import figure_file, new_figure
from hp_memory.report.page import Part, Picture, Text, write_page
from hp_memory.report.table import Table

GIB = 2**30
_SHOWN = 60
_STATIC, _REST = "#b0b0b0", "#606060"
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#eeca3b", "#b279a2", "#ff9da6", "#9d755d")
ERROR_BAND = (
    "Held bytes and working sets are those of the operations that ran; where the same kernels run on a CPU, held bytes "
    "equal what storage probes find and peaks are within 5% of MindSpore's own record of its blocks. "
    "Not modelled: kernels' workspaces, and what Ascend kernels save that the traced backward doesn't read; they are "
    "what the reserve is for. No Ascend run has confirmed these figures: `hp-memory dryrun compare-run` does."
)


def gib(nbytes: float) -> str:
    """Bytes in GiB with two decimals."""
    return f"{nbytes / GIB:.2f}"


def stage_table(found: Estimate) -> Table:
    """A row per pipeline rank."""
    rows = [
        [
            str(stage.rank),
            format_layers(stage.layers),
            *(gib(_term(stage, name)) for name in ("parameters", "gathered parameters", "gradients")),
            gib(_term(stage, "optimizer states")),
            gib(sum(t.nbytes for t in stage.static if t.name in _OTHER)),
            gib(stage.held),
            f"{stage.in_flight:.1f}",
            gib(stage.worst.nbytes),
            gib(stage.peak),
            stage.when(),
        ]
        for stage in found.stages
    ]
    columns = ["rank", "layers", "params", "gathered", "grads", "optimizer", "other", "held/micro", "in flight"]
    caption = (
        f"GiB. held, in flight, activations: TRACED with one rank's shapes; the rest MODELLED. other: "
        f"{', '.join(_OTHER)}. Device {found.settings.device.memory}: {'fits' if found.fits else 'DOES NOT FIT'}"
    )
    return Table("Memory per pipeline rank", [*columns, "activations", "peak", "at the peak"], rows, caption)


_OTHER = ("gradients being reduced", "communicators", "pipeline messages", "reserve")


def _term(stage: Stage, name: str) -> int:
    return sum(t.nbytes for t in stage.static if t.name == name)


def term_table(found: Estimate) -> Table:
    """The terms of the worst rank: how each came about and how it scales."""
    stage = found.worst
    rows = [[t.name, gib(t.nbytes), t.kind, t.scales] for t in stage.static]
    tokens = "tokens / context; heads / tensor; experts' rows x imbalance; micro-batches in flight"
    rows.append(["activations at the peak", gib(stage.worst.nbytes), "TRACED", tokens])
    rows.append(["fragmentation", gib(stage.fragmentation), "MODELLED", f"{found.settings.fragmentation:.0%} of these"])
    rows.append(["optimizer step", gib(stage.optimizer_step), "MODELLED", "the largest shard; no activations then"])
    return Table(f"Terms of rank {stage.rank}, the worst", ["term", "GiB", "kind", "scales with"], rows, stage.when())


def _distinct_units(found: Estimate) -> dict[str, Unit]:
    """One unit for each kind of layer and layout, by its name."""
    kinds: dict[str, Unit] = {}
    for stage in found.stages:
        for unit in (u for units in stage.units.values() for u in units):
            name = unit.name.partition("(")[2].rstrip(")") or unit.name
            layout = found.plan.layers[unit.layer].layout.name if unit.layer is not None else "not replayed"
            kinds.setdefault(f"{name}, {layout}", unit)
    return kinds


def region_table(found: Estimate) -> Table:
    """What one micro-batch holds, by kind of layer, region and reason."""
    kinds = _distinct_units(found)
    parts = list(dict.fromkeys(part for unit in kinds.values() for part in unit.parts))
    rows = [[*part, *(f"{unit.parts.get(part, 0) / 2**20:.1f}" for unit in kinds.values())] for part in parts]
    rows.append(["in all", "", *(f"{unit.held / 2**20:.1f}" for unit in kinds.values())])
    caption = "MiB per micro-batch after the forward, TRACED; a storage belongs to the region that saves it"
    return Table("Held by region", ["region", "why", *kinds], rows, caption)


def check_table(found: Estimate) -> Table | None:
    """Layers that ran with their plan installed: what the wrappers kept beside the rules, None if none ran."""
    if not found.checks:
        return None
    rows = [
        [c.kind, c.layout, *(f"{sum(s[2] for s in group) / 2**20:.2f}" for group in (c.held, c.expected)),
         f"{c.replay_flops / 1e12:.3f}", "yes" if c.agrees else "NO"]
        for c in found.checks
    ]  # fmt: skip
    columns = ["kind", "layout", "MiB kept by the wrappers", "MiB by the rules", "replayed TFLOPs", "equal"]
    return Table("Plan installed and run on the meta device", columns, rows, found.checks[0].receipt)


def summary(found: Estimate) -> str:
    """A few lines: the model, the parallel sizes, the assumptions, the verdict."""
    model, parallel, s = found.work.model, found.work.parallel, found.settings
    sizes = ", ".join(
        f"{n} {getattr(parallel, n)}" for n in ("data", "tensor", "expert", "pipeline", "context", "fsdp")
    )
    verdict = "fits" if found.fits else "does not fit"
    return "\n".join([
        f"{model.family}: {found.total_parameters / 1e9:.2f} B parameters (MTP layers apart), {sizes}",
        f"micro-batch {found.work.sequences} x {model.seq_length} tokens, {found.schedule.name} with "
        f"{found.schedule.microbatches} micro-batches; expert imbalance x{s.imbalance:g}, reserve {s.reserve}, "
        f"fragmentation {s.fragmentation:.0%}, {s.shard} sharding, {s.dtype}",
        f"worst rank {found.worst.rank}: {gib(found.worst.peak)} GiB of {s.device.memory} ({verdict}); "
        f"replayed {found.replayed_share:.1%} of the forward's FLOPs",
        show.in_words(found.time, s),
        *(f"doesn't pay: {entry.in_words()}" for entry in found.not_worth),
    ])  # fmt: skip


def to_dict(found: Estimate) -> dict[str, Any]:
    """The result as JSON-ready data."""
    return {
        "summary": summary(found),
        "fits": found.fits,
        "total_parameters": found.total_parameters,
        "replayed_share": found.replayed_share,
        "plan": found.plan.to_dict(),
        "error_band": ERROR_BAND,
        "notes": list(found.notes),
        "checks": [
            {"kind": c.kind, "layout": c.layout, "agrees": c.agrees, "replay_flops": c.replay_flops}
            for c in found.checks
        ],
        "time": show.to_dict(found.time, found.settings),
        "host": host_show.to_dict(found.copies),
        "not_worth": [entry.in_words() for entry in found.not_worth],
        "held": [
            {"layer": name, "region": region, "reason": reason, "bytes": nbytes}
            for name, unit in _distinct_units(found).items()
            for (region, reason), nbytes in unit.parts.items()
        ],
        "stages": [_stage_dict(stage) for stage in found.stages],
    }


def _stage_dict(stage: Stage) -> dict[str, Any]:
    return {
        "rank": stage.rank,
        "layers": list(stage.layers),
        "peak": stage.peak,
        "when": stage.when(),
        "terms": {t.name: {"bytes": t.nbytes, "kind": t.kind, "scales": t.scales} for t in stage.static},
        "activations": {"bytes": stage.worst.nbytes, "kind": "TRACED"},
        "fragmentation": {"bytes": stage.fragmentation, "kind": "MODELLED"},
        "optimizer_step": {"bytes": stage.optimizer_step, "kind": "MODELLED"},
        "held_per_micro_batch": stage.held,
        "timeline": [{"step": str(m.step), "peak": m.nbytes, "after": m.after, "unit": m.unit} for m in stage.moments],
    }


def timeline_picture(found: Estimate, path: Path) -> Picture:
    """Memory of the worst rank over the schedule's steps, stacked: static terms, then what is held by region."""
    stage = found.worst
    figure, axes = new_figure(11, 5)
    # The middle of a long schedule repeats itself.
    shown = stage.moments[: max(_SHOWN, 4 * found.schedule.ranks)]
    steps = range(len(shown))
    parts = _by_region_over_time(found.schedule, stage, len(shown))
    colours = [_STATIC, *_COLOURS[: len(parts) - 1], _REST]
    static = [stage.static_bytes / GIB] * len(steps)
    axes.stackplot(steps, static, *parts.values(), labels=["static", *parts], colors=colours, step="post", linewidth=0)
    peaks = [(stage.static_bytes + m.nbytes) / GIB for m in shown]
    axes.plot(steps, peaks, color="black", linewidth=0.8, label="peak within the step", drawstyle="steps-post")
    axes.axhline(
        found.device / GIB, color="red", linestyle="--", linewidth=1, label=f"device {found.device / GIB:g} GiB"
    )
    axes.set(xlabel="step of the schedule", ylabel="GiB", xlim=(0, len(steps) - 1))
    axes.legend(fontsize=7, ncols=2, loc="upper left", bbox_to_anchor=(1, 1))
    words = f"Rank {stage.rank}, layout {_layouts(found)}: held after the first {len(shown)} of {len(stage.moments)} "
    return figure_file(figure, path, f"{words}steps of {found.schedule.name}")


def _step_picture(found: Estimate, path: Path) -> Picture:
    worst = found.worst
    memory = [(worst.static_bytes + m.nbytes) / GIB for m in worst.moments]
    return show.step_picture(found.time, found.time.replays, memory, worst.rank, path)


def _host_picture(found: Estimate, path: Path) -> Picture:
    rank = max(range(len(found.copies)), key=lambda rank: found.copies[rank].peak)
    stage = found.stages[rank]
    memory = [(stage.static_bytes + m.nbytes) / GIB for m in stage.moments]
    return host_show.host_picture(found.time, found.copies[rank], memory, rank, path)


def _device_line(axes: Axes, nbytes: int) -> None:
    axes.axhline(nbytes / GIB, color="red", linestyle="--", linewidth=1, label=f"device {nbytes / GIB:g} GiB")


def _layouts(found: Estimate) -> str:
    # An override's name is that of its layout, a plus and its layers.
    return ", ".join(dict.fromkeys(layer.layout.name.partition("+")[0] for layer in found.plan.layers))


def _by_region_over_time(schedule: Schedule, stage: Stage, count: int) -> dict[str, np.ndarray]:
    """Held GiB after each of the first steps: the regions that hold most, and one part for all that is left.

    That is the other regions, what a replay ahead of backward made, and what waits between dx and dw.
    """
    regions: Counter[str] = Counter()
    for unit in (u for units in stage.units.values() for u in units):
        regions.update(unit.by_region)
    largest = [region for region, nbytes in regions.most_common(len(_COLOURS)) if nbytes]
    found = {region: np.array(_in_flight(schedule, stage, region)[:count]) / GIB for region in largest}
    after = np.array([m.after for m in stage.moments[:count]]) / GIB
    return found | {"all else": np.maximum(after - sum(found.values()), 0)}


def _in_flight(schedule: Schedule, stage: Stage, region: str) -> tuple[float, ...]:
    """Bytes of one region that all micro-batches hold, after each step."""
    held = {chunk: sum(u.by_region.get(region, 0) for u in units) for chunk, units in stage.units.items()}
    return levels(schedule, stage.rank, lambda chunk, _: Held(held[chunk], held[chunk], held[chunk]))


def peak_picture(found: Estimate, path: Path) -> Picture:
    """What is alive at the peak of the working set: by region of the layer that runs."""
    peak = found.worst.worst.peak
    parts = sorted(peak.by_region.items(), key=lambda pair: pair[1])
    figure, axes = new_figure(8, 1.6 + 0.3 * len(parts))
    names = [name or "between regions" for name, _ in parts]
    colours = ["#d62728" if name == GRADIENTS else "#4c78a8" for name, _ in parts]
    axes.barh(names, [nbytes / GIB for _, nbytes in parts], color=colours)
    axes.set_xlabel("GiB")
    return figure_file(figure, path, f"The layer that runs at the peak: {found.worst.when()}")


def comparison(found: Sequence[Estimate], path: Path) -> tuple[Table, Picture]:
    """Several dry runs side by side: a table and a picture of their worst ranks."""
    names = [_layouts(e) for e in found]
    rows = [
        [name, gib(e.worst.peak), gib(e.worst.static_bytes), gib(e.worst.worst.nbytes), f"{e.replayed_share:.1%}",
         str(e.worst.rank), "yes" if e.fits else "no", f"{e.time.seconds:.1f}"]
        for name, e in zip(names, found, strict=True)
    ]  # fmt: skip
    columns = ["layout", "peak GiB", "static GiB", "activations GiB", "replayed FLOPs", "worst rank", "fits", "step s"]
    figure, axes = new_figure(9, 4)
    axes.bar(names, [e.worst.static_bytes / GIB for e in found], label="parameters, gradients, optimizer, buffers")
    axes.bar(
        names,
        [(e.worst.peak - e.worst.static_bytes) / GIB for e in found],
        bottom=[e.worst.static_bytes / GIB for e in found],
        label="activations at the peak",
    )
    for limit in dict.fromkeys(e.device for e in found):
        _device_line(axes, limit)
    axes.set_ylabel("GiB on the worst rank")
    axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.25), ncols=3)
    picture = figure_file(figure, path, "Worst rank of each layout")
    return (
        Table("Layouts side by side", columns, rows, "worst pipeline rank; MODELLED and TRACED as in each run"),
        picture,
    )


def write(found: Estimate, run_dir: Path) -> list[Table]:
    """Writes ``report.json``, ``report.html`` and the pictures; returns the tables for the terminal."""
    tables = [stage_table(found), show.time_table(found.time), term_table(found), region_table(found)]
    tables += [t for t in (check_table(found), show.speeds_table(found.settings.device)) if t]
    pictures = [
        timeline_picture(found, run_dir / "timeline.png"),
        peak_picture(found, run_dir / "peak.png"),
        _step_picture(found, run_dir / "step.png"),
    ]
    on_host = host_show.host_table(found.copies, found.time.seconds, found.settings.device)
    if on_host is not None:
        tables.insert(2, on_host)
        pictures.append(_host_picture(found, run_dir / "host.png"))
    (run_dir / "report.json").write_text(json.dumps(to_dict(found), indent=1))
    texts = [Text("Plan", found.plan.in_words()), Text("How far to trust it", ERROR_BAND)]
    texts.append(Text("What was replaced to trace the code", "\n".join(found.notes)))
    parts: list[Part] = [Text("In short", summary(found)), tables[0], *pictures, *tables[1:], *texts]
    write_page(run_dir / "report.html", "Dry run", parts)
    return tables
