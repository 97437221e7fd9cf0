"""``engine=mindformers``: trains with MindFormers' own Trainer and model, our plan installed by the callback."""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hp_memory.layout import ActivationPlan
from hp_memory.mindformers import agreement, conflicts, environment, limits, megatron, mindrecord, standin
from hp_memory.mindformers.recorder import Recorder
from hp_memory.mindformers.trainer_yaml.train_config import train_config
from hp_memory.models.settings import ParallelSettings
from hp_memory.runs import mindformers_checkpoints as checkpoints
from hp_memory.runs import ranks
from hp_memory.train.data import Batches, Corpus, load_corpus

if TYPE_CHECKING:
    from hp_memory.config.schema import HPConfig

REPORT = "mindformers_report.json"


class Steps:
    """Every step's batch by its number, as a MindSpore dataset source: tokens and labels, each (B, S) int32."""

    def __init__(self, batches: Batches, steps: int) -> None:
        self.batches, self.steps = batches, steps

    def __getitem__(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        micro = self.batches.step(int(step))
        return np.concatenate([m.tokens for m in micro]), np.concatenate([m.labels for m in micro])

    def __len__(self) -> int:
        return self.steps


def run(cfg: HPConfig, plan: ActivationPlan, run_dir: Path) -> dict[str, Any]:
    """Trains ``cfg.train.steps`` steps in this process.

    Args:
        cfg: the experiment.
        plan: made for this model (see ``hp_memory.mindformers.families.fingerprint``).
        run_dir: receives MindFormers' logs, checkpoints, the progress and the callback's report.

    Returns:
        Losses and seconds per step, what this machine needed, and the callback's report; JSON-ready.

    Raises:
        ConfigError: for a family that MindFormers can't train, or settings that clash.
        NeedsHyperParallel: for several processes without the real package.
    """
    # MindFormers reads it while it is imported.
    os.environ.setdefault("LOCAL_DEFAULT_PATH", str(run_dir / "mindformers"))
    config = _config(cfg, run_dir)
    conflicts.refuse(config, with_plan=True)
    if not standin.installed():
        limits.refuse_without_the_package(cfg)
    lines = _prepare()
    from mindformers.pynative.trainer.trainer import Trainer

    from hp_memory.mindformers.callback import HPMemoryCallback

    callback = HPMemoryCallback(plan.to_dict(), report=str(run_dir / REPORT), host=asdict(cfg.host))
    corpus = None if cfg.data.of_tokens else load_corpus(cfg.data)
    agreement.same("data", _data_digest(cfg, corpus))
    # Without one, MindFormers builds the dataset that the config names.
    dataset = None if corpus is None else _dataset(cfg, corpus)
    trainer = Trainer(config=config, train_dataset=dataset, callbacks=[callback])
    # MindFormers counts whole epochs, and then can't continue in the last one.
    trainer.train_num_epochs = -(-cfg.train.steps // trainer.train_epoch_step)
    callback.recorder = Recorder(run_dir, ranks.rank())
    # Ahead of MindFormers' own callbacks: what saves a checkpoint mustn't run after a loss that isn't finite.
    trainer.callback_handler.callbacks.sort(key=lambda other: other is not callback)
    trainer.train()
    return summary(trainer.state.global_step, callback.recorder.losses, corpus) | {
        "engine": "mindformers",
        "rank": ranks.rank(),
        "seconds": callback.recorder.seconds,
        "environment": lines,
        **callback.to_dict(),
    }


def reporting_rank(parallel: ParallelSettings) -> int:
    """The first rank of the last pipeline stage: it has the losses."""
    return parallel.world_size // parallel.pipeline * (parallel.pipeline - 1)


def summary(steps: int, losses: list[float], corpus: Corpus | None) -> dict[str, Any]:
    """What the reference trainer's result says of a run, for the same report; losses in nats per token.

    Args:
        steps: done in all, also before a resume.
        losses: of this process's steps; none where it was resumed at the end.
        corpus: the text that was trained on; None for a dataset of tokens.
    """
    last = losses[-10:]
    found: dict[str, Any] = {"steps": steps, "losses": losses}
    if corpus is not None:
        found["unigram_entropy"] = corpus.unigram_entropy
    if last:
        found |= {"first_loss": losses[0], "last_loss": losses[-1], "mean_of_last_10": sum(last) / len(last)}
    return found


def _prepare() -> list[str]:
    import mindspore as ms

    ms.set_context(mode=ms.PYNATIVE_MODE)
    lines = environment.prepare(ranks.world_size())
    for line in lines:
        print(line, flush=True)
    return lines


def _config(cfg: HPConfig, run_dir: Path) -> dict[str, Any]:
    import mindspore as ms

    device = ms.get_context("device_target")
    # No CPU kernel of MindSpore 2.10 trains in bfloat16.
    config = train_config(cfg, "float32" if device == "CPU" else "bfloat16")
    checkpoint = {
        "enable_save": cfg.train.save_last or cfg.train.save_every > 0,
        "save_path": str(run_dir / checkpoints.FOLDER),
        # It has no word for all of them.
        "save_max": cfg.train.keep_last or cfg.train.steps,
        "save_interleaved_steps": cfg.train.save_every or cfg.train.steps,
        "load_path": checkpoints.to_load(cfg.train.resume_from),
    }
    data = _data_section(cfg, run_dir)
    return config | {"checkpoint": checkpoint, "train_dataset": data, "context": {"device_target": device}}


def _data_section(cfg: HPConfig, run_dir: Path) -> dict[str, Any]:
    if cfg.data.mindrecord is not None:
        return mindrecord.section(cfg.data.mindrecord)
    if cfg.data.megatron is not None:
        return megatron.section(cfg, run_dir / "dataset")
    return {"dataloader": {"type": "GeneratorDataset"}}


def _data_digest(cfg: HPConfig, corpus: Corpus | None) -> str:
    """Of the tokens, or of a dataset's size and index: equal where the ranks read the same."""
    if corpus is not None:
        return hashlib.sha256(corpus.train.tobytes()).hexdigest()[:16]
    data, index = (cfg.data.mindrecord, ".db") if cfg.data.mindrecord else (cfg.data.megatron, ".idx")
    size = Path(f"{data}.bin" if index == ".idx" else str(data)).stat().st_size
    return hashlib.sha256(str(size).encode() + Path(f"{data}{index}").read_bytes()).hexdigest()[:16]


def _dataset(cfg: HPConfig, corpus: Corpus) -> Any:
    import mindspore.dataset as ds

    place = data_rank(cfg.parallel, ranks.rank())
    batches = Batches(corpus.train, cfg.model.seq_length, cfg.train, place, cfg.parallel.data, cfg.data.seed)
    return ds.GeneratorDataset(Steps(batches, cfg.train.steps), ["input_ids", "labels"], shuffle=False)


def data_rank(parallel: ParallelSettings, rank: int) -> int:
    """Whose part of the data a rank has: ranks of one sequence (tensor, context) and all stages have the same.

    The order of dimensions is MindFormers' (``pynative/distributed/parallel_dims.py: build_mesh``).
    """
    per_stage = parallel.world_size // parallel.pipeline
    return rank % per_stage // (parallel.tensor * parallel.context)
