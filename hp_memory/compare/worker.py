"""One rank of a comparison: ``python -m hp_memory.compare.worker --run-dir DIR``, started by the launcher.

Reads ``config.yaml`` and ``compare.json`` in the run directory, and writes ``reports/rank_<r>.json`` there.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
from mindspore import Tensor

from hp_memory.activation import observe, report
from hp_memory.compare.bits import first_difference
from hp_memory.compare.chain import measure_chain
from hp_memory.compare.expected import against_table
from hp_memory.compare.job import Job, read_job
from hp_memory.compare.memory import growth_per_forward
from hp_memory.install import install, receipt_of, window_of
from hp_memory.layout import ActivationPlan
from hp_memory.models.reference import build, next_token_loss, region_map
from hp_memory.runs.progress import Progress
from hp_memory.train.data import Batches, MicroBatch, load_corpus
from hp_memory.train.process import Groups, require_agreement, run_worker, start
from hp_memory.train.run_files import RunSettings, read_settings
from hp_memory.train.trainer import Trainer

log = logging.getLogger(__name__)


def compare(run_dir: Path) -> None:
    """Runs the same steps under every layout from one initial state, and reports what each held, replayed and took."""
    settings, job = read_settings(run_dir), read_job(run_dir)
    groups = start(settings.parallel)
    require_agreement(next(iter(job.plans.values())).fingerprint.digest, "model", groups.world)
    progress = Progress(run_dir, groups.world.index)
    batches = _batches(settings, groups)
    trainers = {name: _trainer(settings, groups, plan) for name, plan in job.plans.items()}
    chain = [asdict(case) | {"agrees": case.agrees} for case in measure_chain(settings.model, groups.experts)]
    found = {name: _observe(name, trainer, settings, batches.step(0)[0]) for name, trainer in trainers.items()}
    differences = _same_steps(trainers, batches, job.steps, progress)
    seconds = _alternate(trainers, batches, job, progress)
    progress.write(phase="resident set", step=job.steps + job.timed_steps)
    for name, trainer in trainers.items():
        receipt = receipt_of(trainer.model)
        assert receipt is not None, "every trainer here has a plan"
        found[name] |= {
            "receipt": receipt.to_dict(),
            "difference": differences[name],
            "seconds": _spread(seconds[name]),
            "resident_growth": _resident_growth(trainer, batches.step(0)[0]),
        }
    file = run_dir / "reports" / f"rank_{groups.world.index}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"chain": chain, "layouts": found}, indent=1))


def _batches(settings: RunSettings, groups: Groups) -> Batches:
    corpus, world = load_corpus(settings.data), groups.world
    return Batches(corpus.train, settings.model.seq_length, settings.train, world.index, world.size, settings.data.seed)


def _trainer(settings: RunSettings, groups: Groups, plan: ActivationPlan) -> Trainer:
    require_agreement(plan.hash(), "activation plan", groups.world)
    model = build(settings.model, settings.parallel, group=groups.experts, seed=settings.train.seed)
    install(model, plan, region_map(model), host=settings.host)
    return Trainer(model, settings.train, groups)


def _observe(layout: str, trainer: Trainer, settings: RunSettings, micro: MicroBatch) -> dict[str, Any]:
    """What one micro-batch holds after forward, and how often each region ran by the end of its backward."""
    window = window_of(trainer.model)
    on_host = 0

    def freeze() -> None:
        nonlocal on_host
        if window is not None:
            window.settle()
            on_host = window.pool.used
        seen.freeze()

    with observe() as seen:
        trainer.loss_and_grads([micro], freeze)
    if window is not None:
        window.refuse_idle()
    rows = {i: block.moe.received_rows for i, block in enumerate(trainer.model.layers) if block.kind == "moe"}
    ranks = trainer.groups.experts.size
    return {
        "held": [asdict(item) for item in seen.held],
        "table": against_table(layout, settings.model, seen.held, len(micro.tokens), rows, ranks),
        "runs": {name: asdict(runs) for name, runs in seen.runs.items()},
        "on_host": on_host,
        "report": report(seen).to_dict(),
    }


def _same_steps(
    trainers: Mapping[str, Trainer], batches: Batches, steps: int, progress: Progress
) -> dict[str, str | None]:
    """The first difference of each layout's losses, gradients and parameters from the first layout's, or None."""
    found: dict[str, str | None] = dict.fromkeys(trainers)
    for step in range(steps):
        reference: dict[str, np.ndarray] = {}
        for name, trainer in trainers.items():
            began = time.perf_counter()
            arrays = _step_arrays(trainer, batches.step(step))
            reference = reference or arrays
            if found[name] is None and (difference := first_difference(reference, arrays)):
                found[name] = f"step {step + 1}: {difference}"
            seconds = round(time.perf_counter() - began, 3)
            progress.write(phase=f"same steps, {name}", step=step + 1, loss=float(arrays["loss"]), seconds=seconds)
    return found


def _step_arrays(trainer: Trainer, batch: Sequence[MicroBatch]) -> dict[str, np.ndarray]:
    """One whole step; its loss, every gradient, and every parameter and optimizer state after it."""
    loss, grads = trainer.loss_and_grads(batch)
    arrays = {f"gradient of {p.name}": g.asnumpy() for p, g in zip(trainer.parameters, grads, strict=True)}
    trainer.apply(grads)
    state = {f"{name} after the step": array for name, array in trainer.state().items()}
    return {"loss": np.float64(loss).reshape(()), **arrays, **state}


def _alternate(
    trainers: Mapping[str, Trainer], batches: Batches, job: Job, progress: Progress
) -> dict[str, list[float]]:
    """Seconds of whole steps. The layouts take turns, so that whatever else the machine does meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for step in range(job.steps, job.steps + job.timed_steps):
        for name, trainer in trainers.items():
            batch = batches.step(step)
            began = time.perf_counter()
            loss = trainer.train_step(batch)
            seconds[name].append(time.perf_counter() - began)
            progress.write(phase=f"timed, {name}", step=step + 1, loss=loss, seconds=round(seconds[name][-1], 3))
    return seconds


def _spread(seconds: list[float]) -> dict[str, Any]:
    low, _, high = quantiles(seconds, n=4) if len(seconds) > 1 else (seconds * 3 or [0.0] * 3)
    return {"median": median(seconds) if seconds else 0.0, "q25": low, "q75": high, "steps": seconds}


def _resident_growth(trainer: Trainer, micro: MicroBatch) -> float:
    tokens, labels = Tensor(micro.tokens), Tensor(micro.labels)
    return growth_per_forward(lambda: next_token_loss(trainer.model(tokens), labels))


if __name__ == "__main__":
    run_worker(compare)
