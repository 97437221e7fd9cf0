"""MindFormers' own DeepSeek-V3 at full size on the meta device: counts, checks, times; prints them as JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hp_memory.config.app import checked, to_object
from hp_memory.errors import ConfigError
from hp_memory.layout import build_plan

GIB = 2**30
LAYOUTS = ("none", "full", "op_exclude", "region_exclude", "chain_exclude")


def config(command: str, *overrides: str) -> Any:
    return to_object(checked(command, list(overrides)))


def layout(name: str) -> Any:
    return config("layout_only", f"layout={name}").layout


def full_size() -> dict[str, Any]:
    from hp_memory.estimate.engines.choice import check, trace
    from hp_memory.estimate.ranks import estimate
    from hp_memory.experiment.workload import pipeline_of, workload

    cfg = config("dryrun", "recipe=deepseek_v3_671b")
    work = workload(cfg, cfg.estimate)
    begun = time.perf_counter()
    traced = trace(work)
    seconds = {"trace": time.perf_counter() - begun}
    peaks, checks, replans = {}, {}, []
    for name in LAYOUTS:
        plan = build_plan(layout(name), work.fingerprint())
        begun = time.perf_counter()
        found = estimate(work, plan, pipeline_of(cfg), cfg.estimate)
        replans.append(time.perf_counter() - begun)
        peaks[name] = {"peak": found.worst.peak / GIB, "replayed": found.replayed_share, "when": found.worst.when()}
        checks[name] = {c.kind: c.agrees for c in check(work, plan)}
    return {
        "parameters": traced.total_parameters,
        "operations": {kind: len(layer.ops) for kind, layer in traced.layers.items()},
        "flops": {kind: layer.flops("forward") for kind, layer in traced.layers.items()},
        "outside": {kind: outside_regions(layer) for kind, layer in traced.layers.items()},
        "seconds": seconds | {"replan": sorted(replans)},
        "resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "peaks": peaks,
        "checks": checks,
    }


def outside_regions(layer: Any) -> dict[str, int]:
    """How often which operation of a forward runs outside every region, views aside."""
    from hp_memory.estimate.tracing.record import BARE

    bare = Counter(op.name for op in layer.of_phase("forward") if op.region == BARE)
    return {name: count for name, count in bare.items() if name != "Reshape"}


def local_shapes() -> dict[str, Any]:
    """Bytes that one MoE layer holds without a plan, under other sizes of one rank."""
    from hp_memory.estimate.account.held import held_by
    from hp_memory.estimate.engines.choice import trace
    from hp_memory.experiment.workload import workload

    cfg = config("dryrun", "recipe=deepseek_v3_671b")
    base = workload(cfg, cfg.estimate)
    cases = {
        "base": base,
        "half the sequences": replace(base, sequences=1),
        "imbalance": replace(base, imbalance=2.0),
        "tensor": replace(base, parallel=replace(base.parallel, data=32, fsdp=32, tensor=2)),
        "colossal": replace(base, parallel=replace(base.parallel, context=4)),
        "ulysses": replace(base, parallel=replace(base.parallel, context=4, context_method="ulysses")),
        "fewer experts' ranks": replace(base, parallel=replace(base.parallel, expert=32)),
    }
    found = {}
    for name, work in cases.items():
        layer = trace(work).layers["moe"]
        regions: dict[str, int] = {}
        for entry in held_by(layer, ()):
            regions[entry.region] = regions.get(entry.region, 0) + layer.storages[entry.storage].nbytes
        experts = sum(p.size for p in layer.parameters if p.expert)
        attention = sum(op.flops for op in layer.of_phase("forward") if op.region == "attention.core")
        found[name] = {
            "held": sum(regions.values()),
            "regions": regions,
            "expert_parameters": experts,
            "attention_flops": attention,
        }
    return found


def backward_over_forward() -> dict[str, float]:
    """FLOPs of backward over those of forward, with and without expert parallelism: 2 if every gradient is computed."""
    from hp_memory.estimate.engines.choice import trace
    from hp_memory.experiment.workload import workload

    found = {}
    for recipe in ("deepseek_v3_671b", "tiny_deepseek_v3"):
        cfg = config("dryrun", f"recipe={recipe}")
        for kind, layer in trace(workload(cfg, cfg.estimate)).layers.items():
            found[f"{recipe}, {kind}"] = layer.flops("backward") / layer.flops("forward")
    return found


def commands(folder: Path) -> dict[str, Any]:
    """``dryrun``, ``dryrun yaml=``, ``compare-run`` and ``search`` on a tiny model, as their commands run them."""
    from hp_memory.commands import dryrun, search
    from hp_memory.commands.export import render

    tiny = ("recipe=tiny_deepseek_v3", "estimate=ascend_32g")
    codes = {"dryrun": dryrun.run(config("dryrun", *tiny, f"run_dir={folder / 'a'}"))}
    report = json.loads((folder / "a" / "report.json").read_text())
    exported = render(config("export", "recipe=tiny_deepseek_v3", "layout=full", "to=mindformers-2.0"))
    (folder / "exported.yaml").write_text(exported)
    overrides = [f"yaml={folder / 'exported.yaml'}", "estimate=ascend_32g", f"run_dir={folder / 'b'}"]
    codes["yaml"] = dryrun.run(config("dryrun", *overrides))
    from_yaml = json.loads((folder / "b" / "report.json").read_text())
    measured = {"ranks": [{"pipeline_rank": 0, "allocated": 10**9, "reserved": 11 * 10**8}]}
    (folder / "run.json").write_text(json.dumps(measured))
    overrides = [*tiny, f"report={folder / 'run.json'}", f"run_dir={folder / 'c'}"]
    codes["compare-run"] = dryrun.run(config("dryrun", *overrides), "compare-run")
    stage = report["stages"][0]
    peaks = stage["peak"]
    overrides = [f"yaml={folder / 'exported.yaml'}", "estimate=ascend_32g", f"budget={peaks + 10**6}B"]
    overrides += ["search.curve=2", f"run_dir={folder / 'd'}"]
    codes["search"] = search.run(config("search", *overrides))
    plan = yaml.safe_load((folder / "d" / "layout.yaml").read_text())
    codes["nothing fits"] = search.run(config("search", *tiny, "budget=1MiB", f"run_dir={folder / 'e'}"))
    theirs = [exported, (folder / "d" / "exported.yaml").read_text()]
    found = {"codes": codes, "theirs": theirs, "stage": stage, "yaml_stage": from_yaml["stages"][0], "plan": plan}
    found["files"] = sorted(p.name for p in (folder / "d").iterdir())
    return found | {"search": json.loads((folder / "d" / "search.json").read_text())}


def refusals(folder: Path) -> dict[str, str]:
    """What isn't modelled, and the words it is refused with."""
    from hp_memory.experiment import experiment
    from hp_memory.experiment.workload import workload
    from hp_memory.mindformers.trainer_yaml.applied import applied

    found = {}
    cases = {
        "parallel.context": ["parallel.context=3"],
        "parallel.context, ulysses": ["parallel.context=256", "parallel.context_method=ulysses"],
        "pipeline.overlap_b_f": ["pipeline.overlap_b_f=true"],
        "estimate.imbalance": ["estimate.imbalance=0.5"],
        "engine": ["engine=reference"],
    }
    for name, overrides in cases.items():
        cfg = config("dryrun", "recipe=deepseek_v3_671b", *overrides)
        found[name] = _refusal(lambda cfg=cfg: (experiment.of("dryrun", cfg), workload(cfg, cfg.estimate)))
    plain = yaml.safe_load((folder / "exported.yaml").read_text())
    changes = {
        "swap.enable": {"swap": {"enable": True}},
        "model.fancy_norm": {"model": plain["model"] | {"fancy_norm": 1}},
        "model.hidden_act": {"model": plain["model"] | {"hidden_act": "gelu"}},
        "model.use_attn_mask_compression": {"parallelism": plain["parallelism"] | {"context_parallel": 2}},
        "recompute.select_module": {"recompute": {"mode": "select", "select_module": {"mlp.nothing": ["0"]}}},
    }
    for name, change in changes.items():
        (folder / "changed.yaml").write_text(yaml.safe_dump(plain | change))
        cfg = config("dryrun", f"yaml={folder / 'changed.yaml'}")
        found[name] = _refusal(lambda cfg=cfg: applied(cfg))
    return found


def _refusal(call: Any) -> str:
    try:
        call()
    except ConfigError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    where = Path(sys.argv[1])
    result = {"full": full_size(), "shapes": local_shapes(), "backward": backward_over_forward()}
    result |= {"commands": commands(where), "refusals": refusals(where)}
    print("RESULT " + json.dumps(result))
