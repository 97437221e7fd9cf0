"""One rank of a training run: ``python -m hp_memory.train.worker --run-dir DIR``, started by the launcher.

Reads ``config.yaml`` and ``plan.json`` there, appends to ``progress/``, writes ``checkpoints/`` and the receipt of the
plan, and on rank 0 ``result.json``.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

from hp_memory.install import install, window_of
from hp_memory.layout import plan_file
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.reference import Model, build, region_map
from hp_memory.runs import checkpoint
from hp_memory.runs.checkpoint import CheckpointInfo
from hp_memory.runs.files import FileSum
from hp_memory.runs.progress import Progress
from hp_memory.runs.rank_report import device_memory, device_peaks, write_rank_report
from hp_memory.runs.variables import RESUME
from hp_memory.train.data import Batches, Corpus, check_vocabulary, load_corpus
from hp_memory.train.process import Groups, gather_bytes, require_agreement, run_worker, start
from hp_memory.train.run_files import RunSettings, read_settings
from hp_memory.train.trainer import Trainer

log = logging.getLogger(__name__)


def train(run_dir: Path) -> None:
    """Trains the reference model as the run directory's config says."""
    settings = read_settings(run_dir)
    groups = start(settings.parallel)
    check_vocabulary(settings.data, settings.model.vocab_size)
    trainer = make_trainer(settings, groups)
    install_plan(trainer, settings, run_dir, groups)
    resume(trainer, settings, groups)
    corpus = load_corpus(settings.data)
    progress = Progress(run_dir, groups.world.index)
    losses = run_steps(trainer, settings, corpus, progress, run_dir)
    result = summary(trainer, settings, corpus, losses)
    window = window_of(trainer.model)
    moves = {} if window is None else {"host": window.moves.to_dict()}
    write_rank_report(run_dir, groups.world.index, peaks=device_peaks(), **moves)
    if groups.world.index == 0:
        (run_dir / "result.json").write_text(json.dumps(result, indent=2))
        log.info("%s", json.dumps(result))


def make_trainer(settings: RunSettings, groups: Groups) -> Trainer:
    """The model with its first parameters, and its optimizer."""
    model = build(settings.model, settings.parallel, group=groups.experts, seed=settings.train.seed)
    return Trainer(model, settings.train, groups)


def install_plan(trainer: Trainer, settings: RunSettings, run_dir: Path, groups: Groups) -> None:
    """Applies ``plan.json``, after asking all ranks whether it is the same there, and files the receipt."""
    plan = plan_file.read(run_dir / plan_file.NAME)
    require_agreement(plan.hash(), "activation plan", groups.world)
    receipt = install(trainer.model, plan, region_map(trainer.model), host=settings.host)
    (run_dir / f"receipt_rank_{groups.world.index}.json").write_text(json.dumps(receipt.to_dict(), indent=2))
    log.info("%s", receipt.in_words())


def resume(trainer: Trainer, settings: RunSettings, groups: Groups) -> None:
    """Loads this rank's part of the checkpoint that the launcher's restart or ``train.resume_from`` names, if any."""
    wanted = os.environ.get(RESUME) or settings.train.resume_from
    if wanted is None:
        return
    # Which one is whole was found out before the start; here each rank reads its own file, and checks that.
    folder = Path(wanted)
    info = checkpoint.read_info(folder)
    sizes = (groups.world.size, groups.experts.size)
    checkpoint.refuse_misfit(info, folder, fingerprint(settings.model).digest, sizes)
    trainer.load_state(checkpoint.load_rank(folder, groups.world.index), info.step)
    log.info("continues after step %d of %s", trainer.step, folder)


def run_steps(
    trainer: Trainer, settings: RunSettings, corpus: Corpus, progress: Progress, run_dir: Path
) -> list[float]:
    """The remaining steps, with checkpoints; returns their losses."""
    world, sizes = trainer.groups.world, settings.train
    batches = Batches(corpus.train, settings.model.seq_length, sizes, world.index, world.size, settings.data.seed)
    tokens = sizes.micro_batch_size * sizes.micro_batches * settings.model.seq_length * world.size
    losses: list[float] = []
    window = window_of(trainer.model)
    progress.write(phase="train", step=trainer.step, steps=sizes.steps)
    while trainer.step < sizes.steps:
        began = time.perf_counter()
        losses.append(trainer.train_step(batches.step(trainer.step)))
        if window is not None and len(losses) == 1:
            window.refuse_idle()
        seconds = time.perf_counter() - began
        busiest = round(busiest_expert(trainer.model), 3)
        progress.write(
            step=trainer.step,
            loss=losses[-1],
            seconds=round(seconds, 4),
            tokens=tokens,
            busiest=busiest,
            **device_memory(),
        )
        if is_due(trainer.step, settings):
            progress.write(phase="checkpoint", step=trainer.step)
            save(trainer, settings, run_dir)
            progress.write(phase="train", step=trainer.step)
    return losses


def busiest_expert(model: Model) -> float:
    """How many times its fair share the busiest expert got of this rank's tokens since the last call; 1 is even."""
    loads = model.take_expert_loads()
    return float(max((load.max() / load.mean() for load in loads if load.any()), default=1.0))


def is_due(step: int, settings: RunSettings) -> bool:
    """Whether a checkpoint is to be written after this step."""
    every, last = settings.train.save_every, settings.train.save_last
    return bool(every and step % every == 0) or (last and step == settings.train.steps)


def save(trainer: Trainer, settings: RunSettings, run_dir: Path) -> None:
    """Writes every rank's part, and then, on rank 0, what makes the checkpoint valid."""
    world = trainer.groups.world
    folder = checkpoint.folder_of(run_dir, trainer.step)
    own = checkpoint.save_rank(folder, world.index, trainer.step, trainer.state())
    digest = fingerprint(settings.model).digest
    require_agreement(digest, "model", world)
    sums = tuple(map(FileSum.unpacked, gather_bytes(own.packed(), world)))  # also the barrier: every rank has saved
    if world.index == 0:
        info = CheckpointInfo(trainer.step, digest, world.size, trainer.groups.experts.size, sums)
        checkpoint.mark_complete(folder, info)
        checkpoint.keep_last(run_dir, settings.train.keep_last)
        log.info("saved %s", folder)


def summary(trainer: Trainer, settings: RunSettings, corpus: Corpus, losses: list[float]) -> dict[str, object]:
    """Summary of a finished run; losses in nats per token."""
    world, sizes = trainer.groups.world, settings.train
    result: dict[str, object] = {"steps": trainer.step, "unigram_entropy": corpus.unigram_entropy}
    if losses:
        result |= {
            "first_loss": losses[0],
            "last_loss": losses[-1],
            "mean_of_last_10": sum(losses[-10:]) / len(losses[-10:]),
        }
    if sizes.eval_batches and corpus.validation.size > settings.model.seq_length:
        held_out = Batches(corpus.validation, settings.model.seq_length, sizes, world.index, world.size, 0)
        result["validation_loss"] = trainer.evaluate(list(held_out.first(sizes.eval_batches)))
    return result


if __name__ == "__main__":
    run_worker(train)
