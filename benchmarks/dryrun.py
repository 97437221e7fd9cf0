"""What a dry run costs, whether its peaks are right where a peak can be measured, and what its search is worth.

    python benchmarks/dryrun.py cost        # DeepSeek-V3 671B: time, memory, growth with layers and experts
    python benchmarks/dryrun.py peak        # the reference model on a CPU: estimated and measured peak of a layer
    python benchmarks/dryrun.py kernels     # MindFormers on a CPU and on the meta device: what each region saves
    python benchmarks/dryrun.py recipes     # hand-written recomputation recipes against the search, no more memory each

A CPU has no allocator statistics: there the peak is the growth of the process' high-water mark between the inputs and
the end of backward, one process per layout. It is an upper bound: it holds what the pool loses between blocks of
different sizes, the kernels' transposed copies, and what Python's local variables keep inside the stand-in kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0", GLOG_v="3")

MIB, GIB = 2**20, 2**30
LAYOUTS = ("none", "full", "op_exclude", "chain_exclude")
RECIPE = "recipe=deepseek_v3_671b"

# Recomputed modules of published DeepSeek-V3 recipes, as our regions. Megatron-Bridge names them mla_up_proj, mlp,
# layernorm, moe_act (perf_recipes/deepseek); whole-layer recomputation is MindFormers' and MindSpeed-LLM's.
PUBLISHED = {
    "whole layer (MindFormers, MindSpeed-LLM)": {"default": "recompute"},
    "mla_up_proj + mlp (Megatron-Bridge, H100)": {"recompute": ["attention.qkv", "mlp.up", "mlp.act", "mlp.down"]},
    "mla_up_proj (Megatron-Bridge, B200)": {"recompute": ["attention.qkv"]},
    "mla_up_proj + layernorm + moe_act (Megatron-Bridge)": {
        "recompute": ["attention.norm", "attention.qkv", "mlp.norm", "compute.act"]
    },
    "moe_act (Megatron-Bridge, GB300)": {"recompute": ["compute.act"]},
}


def config(*overrides: str) -> Any:
    from hp_memory.hydra_app import compose, to_object

    return to_object(compose("dryrun", list(overrides)))


def layout(name: str) -> Any:
    from hp_memory.hydra_app import compose, to_object

    return to_object(compose("layout_only", [f"layout={name}"])).layout


def cost() -> None:
    """Seconds from the start of the process, and growth with the model's size."""
    import resource

    begun = time.perf_counter()
    from hp_memory.estimate.estimate import estimate
    from hp_memory.estimate.mindformers_engine import prepare
    from hp_memory.estimate.model import trace
    from hp_memory.estimate.request import pipeline_of, workload
    from hp_memory.layout import build_plan

    cfg = config(RECIPE)
    prepare()
    imported = time.perf_counter()
    work = workload(cfg, cfg.estimate)
    trace(work)
    traced = time.perf_counter()
    plans = [build_plan(layout(name), work.fingerprint()) for name in LAYOUTS]
    estimate(work, plans[0], pipeline_of(cfg), cfg.estimate, installed=True)
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"imports of MindSpore and MindFormers {imported - begun:.2f} s, build and trace {traced - imported:.2f} s")
    print(f"in all {time.perf_counter() - begun:.2f} s, RSS {resident} MiB")
    for name, plan in zip(LAYOUTS, plans, strict=True):
        at = time.perf_counter()
        found = estimate(work, plan, pipeline_of(cfg), cfg.estimate)
        print(f"  {name:14} re-planned in {time.perf_counter() - at:.2f} s: {found.worst.peak / GIB:.1f} GiB")
    for name, sizes in {"layers": (16, 61, 122), "experts": (64, 256, 1024)}.items():
        for size in sizes:
            key = "num_layers" if name == "layers" else "num_experts"
            at = time.perf_counter()
            found = trace(replace(work, model=replace(work.model, **{key: size})))
            print(
                f"  {size:5} {name}: {time.perf_counter() - at:.2f} s, {found.total_parameters / 1e9:.0f} B parameters"
            )


def high_water() -> int:
    """Largest resident size of this process so far, bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def _large() -> Any:
    cfg = config("recipe=tiny_moe", "estimate=cpu")
    sizes = {
        "hidden_size": 512,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 128,
        "seq_length": 512,
        "ffn_size": 2048,
    }
    model = replace(cfg.model, **sizes, num_layers=1, first_dense_layers=1)
    return replace(cfg, model=model, parallel=type(cfg.parallel)())


SEQUENCES = 16


def peak_of(name: str) -> None:
    """One layout in this process: the measured growth, and the estimate."""
    import mindspore as ms
    import numpy as np

    from hp_memory.estimate.liveness import backward_peak, forward_peak
    from hp_memory.estimate.model import Workload, trace
    from hp_memory.install import install
    from hp_memory.layout import build_plan
    from hp_memory.models.fingerprint import fingerprint
    from hp_memory.models.reference import build, region_map

    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    ms.set_context(runtime_num_threads=1)
    cfg = _large()
    part = build(cfg.model, cfg.parallel)
    plan = build_plan(layout(name), fingerprint(cfg.model))
    install(part, plan, region_map(part))
    block = next(iter(part.layers))
    rows = np.ones((SEQUENCES * cfg.model.seq_length, cfg.model.hidden_size), np.float32)
    x = ms.ops.zeros(rows.shape, ms.float32) + 1
    weights = ms.ParameterTuple(block.trainable_params())
    base = high_water()
    ms.value_and_grad(block, 0, weights)(x)
    grown = high_water() - base
    traced = trace(Workload(cfg.model, cfg.parallel, SEQUENCES, "float32", "copied")).layers["dense"]
    replayed = plan.layers[0].layout.replays(traced.regions)
    gradients = sum(p.nbytes for p in traced.parameters)
    entered = traced.nbytes(traced.inputs)
    estimated = max(f(traced, replayed).nbytes for f in (forward_peak, backward_peak)) - entered + gradients
    print("RESULT " + json.dumps({"measured": grown, "estimated": estimated}))


def peak() -> None:
    """Estimated and measured peaks, side by side."""
    print("one dense layer, forward and backward with all gradients kept, MiB over the parameters and the input")
    for name in ("none", "full"):
        command = [sys.executable, __file__, "peak", "--layout", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
        found = json.loads(line.removeprefix("RESULT "))
        off = found["estimated"] / found["measured"] - 1
        print(
            f"  {name:6} estimated {found['estimated'] / MIB:.0f}, measured {found['measured'] / MIB:.0f} ({off:+.1%})"
        )


TINY = ("recipe=tiny_deepseek_v3", "estimate.dtype=float32")


def saved_on_cpu() -> None:
    """What each region of MindFormers' MoE layer saves with the CPU's stand-in kernels, as bytes per storage."""
    import importlib

    import mindspore as ms
    import numpy as np

    from hp_memory.activation import observe
    from hp_memory.estimate.mindformers_engine import build
    from hp_memory.install import install
    from hp_memory.layout import build_plan
    from hp_memory.mindformers import environment
    from hp_memory.models.mindformers_map import gpt_model, region_map
    from hp_memory.models.mindformers_settings import fingerprint

    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    cfg = config(*TINY)
    environment.prepare(1)
    trainer = importlib.import_module("mindformers.pynative.trainer.trainer")
    trainer.patch_pynative_modules()
    trainer.enable_mindspore_backward_compat()
    gpt = gpt_model(build(cfg.model, "float32"))
    gpt.set_train(True)
    for parameter in gpt.get_parameters():
        parameter.set_data(ms.Tensor(np.full(parameter.shape, 0.01, np.float32)).astype(parameter.dtype))
    install(gpt, build_plan(layout("none"), fingerprint(cfg.model, cfg.parallel)), region_map(gpt))
    ids = ms.ops.ones((cfg.train.micro_batch_size, cfg.model.seq_length), ms.int32)
    with observe() as seen:
        loss = gpt(input_ids=ids, labels=ids)[0]
        held = [h for h in seen.held if h.region.startswith("layers.1/")]
    assert np.isfinite(loss.asnumpy()).all()
    print("RESULT " + json.dumps([[h.region.partition("/")[2], h.nbytes, h.dtype, list(h.shape)] for h in held]))


def kernels() -> None:
    """A row per region where the two differ."""
    from collections import Counter

    from hp_memory.estimate.held import held_by
    from hp_memory.estimate.model import Workload, trace

    command = [sys.executable, __file__, "kernels", "--layout", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    real: dict[str, Counter] = {}
    for region, nbytes, dtype, _ in json.loads(line.removeprefix("RESULT ")):
        real.setdefault(region, Counter())[nbytes, dtype] += 1
    cfg = config(*TINY)
    traced = trace(Workload(cfg.model, cfg.parallel, cfg.train.micro_batch_size, "float32")).layers["moe"]
    meta: dict[str, Counter] = {}
    for entry in held_by(traced, ()):
        storage = traced.storages[entry.storage]
        meta.setdefault(entry.region, Counter())[storage.nbytes, storage.dtype] += 1
    print("| region | only with the CPU's kernels | only on the meta device |\n|---|---|---|")
    for region in traced.regions:
        a, b = real.get(region, Counter()), meta.get(region, Counter())
        if a != b:
            print(f"| {region} | {_words(a - b)} | {_words(b - a)} |")
    same = [r for r in traced.regions if real.get(r) == meta.get(r)]
    print(f"equal: {', '.join(same)}")


def _words(storages: Any) -> str:
    return ", ".join(f"{n} x {nbytes} B {dtype}" for (nbytes, dtype), n in sorted(storages.items())) or "-"


def recipes() -> None:
    """For each published recipe, the search with each rank's memory under that recipe as its budget."""
    from hp_memory.estimate.planner import Planner
    from hp_memory.estimate.request import pipeline_of, workload
    from hp_memory.estimate.settings import SearchSettings
    from hp_memory.layout import LayoutSettings

    cfg = config(RECIPE)
    planner = Planner(workload(cfg, cfg.estimate), pipeline_of(cfg), cfg.estimate, SearchSettings())
    print("| recipe | peak GiB | replay ms | search: peak GiB | replay ms |\n|---|---:|---:|---:|---:|")
    for name, words in PUBLISHED.items():
        chosen = LayoutSettings(name="published", **{"default": "save"} | words)
        found = planner.estimate(chosen)
        plan = planner.solve_each([stage.peak for stage in found.stages])
        best = planner.estimate(plan.layout)
        assert all(b.peak <= a.peak for a, b in zip(found.stages, best.stages, strict=True)), name
        print(
            f"| {name} | {found.worst.peak / GIB:.1f} | {planner.cost_of(chosen) * 1e3:.0f} "
            f"| {best.worst.peak / GIB:.1f} | {plan.cost * 1e3:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "peak", "kernels", "recipes"))
    parser.add_argument("--layout", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.layout:
        saved_on_cpu() if asked.layout == "cpu" else peak_of(asked.layout)
    else:
        {"cost": cost, "peak": peak, "kernels": kernels, "recipes": recipes}[asked.what]()
