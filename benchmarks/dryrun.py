"""What a dry run costs, whether its peaks are right where a peak can be measured, and what its search is worth.

    python benchmarks/dryrun.py cost        # DeepSeek-V3 671B: time, memory, growth with layers and experts
    python benchmarks/dryrun.py peak        # the reference model on a CPU: estimated and measured peak of a layer
    python benchmarks/dryrun.py kernels     # MindFormers on a CPU and on the meta device: what each region saves
    python benchmarks/dryrun.py recipes     # hand-written recomputation recipes against the search, no more memory each

A CPU has no allocator statistics. The peaks are MindSpore's own record of every block of device memory (its debug log,
hp_memory.estimate.tracing.device_log), in the second of two equal steps.
"""

from __future__ import annotations

import argparse
import itertools
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
    from hp_memory.config.app import compose, to_object

    return to_object(compose("dryrun", list(overrides)))


def layout(name: str) -> Any:
    from hp_memory.config.app import compose, to_object

    return to_object(compose("layout_only", [f"layout={name}"])).layout


def cost() -> None:
    """Seconds from the start of the process, and growth with the model's size."""
    import resource

    begun = time.perf_counter()
    from hp_memory.estimate.engines.choice import trace
    from hp_memory.estimate.engines.mindformers import prepare
    from hp_memory.estimate.ranks import estimate
    from hp_memory.experiment.workload import pipeline_of, workload
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
    for name, sizes in {"layers": (8, 31, 122), "experts": (64, 128, 1024)}.items():
        for size in sizes:
            key = "num_layers" if name == "layers" else "num_experts"
            at = time.perf_counter()
            found = trace(replace(work, model=replace(work.model, **{key: size})))
            print(
                f"  {size:5} {name}: {time.perf_counter() - at:.2f} s, {found.total_parameters / 1e9:.0f} B parameters"
            )


SEQUENCES = 4
PARTS = ("dense", "moe", "model")


def _large() -> Any:
    """A reference model whose tensors dwarf the tables of its kernels."""
    cfg = config("recipe=tiny_moe", "estimate=cpu")
    heads = {"num_heads": 4, "num_kv_heads": 4, "head_dim": 64}
    sizes = {"hidden_size": 256, "seq_length": 256, "ffn_size": 1024, "vocab_size": 1024}
    model = replace(cfg.model, **heads, **sizes, num_layers=4, first_dense_layers=1)
    return replace(cfg, model=model, parallel=type(cfg.parallel)())


def run_for_real(layouts: list[str]) -> None:
    """Runs each part of a model under these layouts in this process, whose standard error is the log."""
    import gc

    import mindspore as ms
    import numpy as np

    from hp_memory.estimate.tracing.device_log import recording
    from hp_memory.install import install
    from hp_memory.layout import build_plan
    from hp_memory.models.fingerprint import fingerprint
    from hp_memory.models.reference import build, region_map
    from hp_memory.models.reference.model import next_token_loss

    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    ms.set_context(runtime_num_threads=1)
    cfg = _large()
    made = np.random.default_rng(0)
    rows = made.standard_normal((SEQUENCES * cfg.model.seq_length, cfg.model.hidden_size)).astype(np.float32)
    ids = made.integers(0, cfg.model.vocab_size, (SEQUENCES, cfg.model.seq_length)).astype(np.int32)
    for name, part in itertools.product(layouts, PARTS):
        model = build(cfg.model, cfg.parallel)
        install(model, build_plan(layout(name), fingerprint(cfg.model)), region_map(model))
        cell = model if part == "model" else model.layers[cfg.model.kinds.index(part)]
        weights = ms.ParameterTuple(cell.trainable_params())
        if part == "model":
            step, x = ms.value_and_grad(lambda x: next_token_loss(model(x), x), None, weights), ms.Tensor(ids)  # noqa: B023
        else:
            step, x = ms.value_and_grad(cell, 0, weights), ms.Tensor(rows)
        # The first run makes the kernels' tables.
        step(x)
        gc.collect()
        with recording(f"{name}/{part}") as returned:
            results = step(x)
            returned()
            del results


def estimated(name: str, part: str) -> int:
    """The estimate of one case, bytes beyond the parameters and the block's input."""
    from hp_memory.estimate.account.liveness import curve
    from hp_memory.estimate.engines.choice import trace
    from hp_memory.estimate.ranks import estimate
    from hp_memory.estimate.workload import Workload
    from hp_memory.experiment.workload import pipeline_of
    from hp_memory.layout import build_plan

    cfg = _large()
    work = Workload(cfg.model, cfg.parallel, SEQUENCES, "float32", "copied")
    plan = build_plan(layout(name), work.fingerprint())
    if part == "model":
        return estimate(work, plan, pipeline_of(cfg), cfg.estimate).stages[0].worst.nbytes
    traced = trace(work).layers[part]
    kept = {*traced.inputs, *traced.outputs, *traced.weight_gradients}
    alive = curve(traced, plan.layers[cfg.model.kinds.index(part)].layout, kept)[1]
    return int(alive.max()) - traced.nbytes(traced.inputs)


def _compared(name: str, part: str, run: Any) -> dict[str, Any]:
    # Gradients of parameters belong to the trainer, where a whole model is measured.
    measured = int(run.alive(results=part != "model").max())
    return {"layout": name, "part": part, "estimated": estimated(name, part), "measured": measured}


def peak(layouts: list[str]) -> None:
    """Estimated and measured peaks, side by side, as JSON in the last line."""
    import tempfile

    from hp_memory.estimate.tracing.device_log import ENVIRONMENT, read

    with tempfile.TemporaryFile("w+", errors="replace") as log:
        command = [sys.executable, __file__, "peak", "--real", "--layouts", *layouts]
        subprocess.run(command, env=os.environ | ENVIRONMENT, stderr=log, check=True)
        log.seek(0)
        recorded = read(log)
    rows = [_compared(name, part, recorded[f"{name}/{part}"]) for name, part in itertools.product(layouts, PARTS)]
    print("MiB beyond the parameters and the block's input; of a layer also the results, of the model none")
    for row in rows:
        off = row["estimated"] / row["measured"] - 1
        sizes = " ".join(f"{row[key] / MIB:8.2f}" for key in ("estimated", "measured"))
        print(f"  {row['layout']:14} {row['part']:6} {sizes} {off:+.1%}")
    print(json.dumps(rows))


TINY = ("recipe=tiny_deepseek_v3", "estimate.dtype=float32")


def saved_on_cpu() -> None:
    """What each region of MindFormers' MoE layer saves with the CPU's stand-in kernels, as bytes per storage."""
    import importlib

    import mindspore as ms
    import numpy as np

    from hp_memory.activation import observe
    from hp_memory.estimate.engines.mindformers import build
    from hp_memory.install import install
    from hp_memory.layout import build_plan
    from hp_memory.mindformers import environment
    from hp_memory.mindformers.families import fingerprint
    from hp_memory.mindformers.region_map import gpt_model, region_map

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

    from hp_memory.estimate.account.held import held_by
    from hp_memory.estimate.engines.choice import trace
    from hp_memory.estimate.workload import Workload

    command = [sys.executable, __file__, "kernels", "--real"]
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
    from hp_memory.config.estimate import SearchSettings
    from hp_memory.estimate.search.budget import Planner
    from hp_memory.experiment.workload import pipeline_of, workload
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
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS, help="of peak")
    parser.add_argument("--real", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.what == "peak":
        (run_for_real if asked.real else peak)(asked.layouts)
    elif asked.real:
        saved_on_cpu()
    else:
        {"cost": cost, "kernels": kernels, "recipes": recipes}[asked.what]()
