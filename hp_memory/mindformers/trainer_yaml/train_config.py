"""A config of ours as MindFormers' training config. No MindSpore here."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hp_memory.errors import ConfigError
from hp_memory.host.settings import HostSettings
from hp_memory.layout import ActivationPlan, LayoutSettings
from hp_memory.mindformers import conflicts
from hp_memory.mindformers.families import model_section
from hp_memory.mindformers.trainer_yaml import native_settings

if TYPE_CHECKING:
    from hp_memory.config.schema import HPConfig

CALLBACK = "HPMemoryCallback"
SCHEDULES = ("1f1b", "interleaved_1f1b", "gpipe")


def train_config(cfg: HPConfig, dtype: str = "bfloat16") -> dict[str, Any]:
    """Every section but what says how activations are kept. Of the dataset only the kind of loader is named.

    Args:
        cfg: the experiment.
        dtype: of parameters and compute.

    Raises:
        ConfigError: for a pipeline that MindFormers has no name for, and for what it has no setting for.
    """
    train = cfg.train
    if train.decay_steps not in (0, train.steps):
        raise ConfigError("train.decay_steps", train.decay_steps, "MindFormers' cosine ends at train.steps", (0,))
    return {
        "training": {
            "steps": train.steps,
            "local_batch_size": train.micro_batch_size,
            "global_batch_size": train.micro_batch_size * train.micro_batches * cfg.parallel.data,
            "seed": cfg.seed,
        },
        "optimizer": {
            "type": "AdamW",
            "betas": [train.beta1, train.beta2],
            "eps": train.epsilon,
            "weight_decay": train.weight_decay,
        },
        "lr_scheduler": {
            "type": "CosineWithWarmUpLR",
            "learning_rate": train.learning_rate,
            "lr_end": train.min_learning_rate,
            "warmup_steps": train.warmup_steps,
        },
        "train_dataset": {"dataloader": {"type": "MindDataset"}},
        "parallelism": _parallelism(cfg),
        "model": model_section(cfg.model, dtype, cfg.parallel),
    }


def _parallelism(cfg: HPConfig) -> dict[str, Any]:
    parallel = cfg.parallel
    copy = parallel.fsdp * parallel.context * parallel.tensor
    if copy % parallel.expert:
        why = f"MindFormers spreads experts over one sharded copy: must divide fsdp * context * tensor = {copy}"
        raise ConfigError("parallel.expert", parallel.expert, why)
    section: dict[str, Any] = {
        "data_parallel_shard": parallel.fsdp,
        "tensor_parallel": parallel.tensor,
        # MindFormers 2.1 refuses tensor parallelism without it, 2.0 takes both.
        "sequence_parallel": parallel.tensor > 1,
        "context_parallel": parallel.context,
        "expert_parallel": parallel.expert,
        "pipeline_parallel": parallel.pipeline,
    }
    if parallel.tensor > 1:
        # As the dry run has it: each rank takes the loss over its own part of the vocabulary.
        section["enable_loss_parallel"] = True
    if parallel.context > 1:
        section["context_parallel_method"] = parallel.context_method
    if parallel.pipeline == 1 and cfg.pipeline.stages != 1:
        raise ConfigError("pipeline.stages", cfg.pipeline.stages, "parallel.pipeline is 1")
    return section | (_pipeline(cfg) if parallel.pipeline > 1 else {})


def _pipeline(cfg: HPConfig) -> dict[str, Any]:
    pipeline = cfg.pipeline
    if pipeline.stages != cfg.parallel.pipeline:
        raise ConfigError("pipeline.stages", pipeline.stages, f"parallel.pipeline is {cfg.parallel.pipeline}")
    if pipeline.schedule not in SCHEDULES:
        raise ConfigError("pipeline.schedule", pipeline.schedule, "MindFormers has no such schedule", SCHEDULES)
    if pipeline.microbatches != cfg.train.micro_batches:
        why = f"is train.micro_batches={cfg.train.micro_batches} in MindFormers, which has one number for both"
        raise ConfigError("pipeline.microbatches", pipeline.microbatches, why)
    for name, only in (("prefire_recompute", False), ("session", "share")):
        if getattr(pipeline, name) != only:
            why = "MindFormers has no such setting: HyperParallel replays and shares as it does"
            raise ConfigError(f"pipeline.{name}", getattr(pipeline, name), why, (only,))
    return {
        "pipeline_parallel_schedule": pipeline.schedule,
        "pipeline_parallel_interleave_num": pipeline.interleave,
        "pipeline_parallel_layers_per_stage": _layers_per_stage(cfg),
        "pipeline_parallel_overlap_p2p": pipeline.overlap_p2p,
        "pipeline_parallel_overlap_b_f": pipeline.overlap_b_f,
        "pipeline_parallel_enable_dxdw_split": pipeline.split_backward,
    }


def _layers_per_stage(cfg: HPConfig) -> str | list[str]:
    """One string per rank, its chunks separated by commas: ``["0-1,4-5", "2-3,6-7"]``.

    Layouts of stages are written out per layer by our own even split, so MindFormers is told it then.
    """
    if cfg.pipeline.layers_per_stage == "auto" and not cfg.pipeline.layouts:
        return "auto"
    chunks = cfg.pipeline.layers_of_chunks(cfg.model.num_layers)
    ranks: list[list[str]] = [[] for _ in range(cfg.pipeline.stages)]
    for rank, layers in zip(cfg.pipeline.placement, chunks, strict=True):
        ranks[rank].append(str(layers[0]) if len(layers) == 1 else f"{layers[0]}-{layers[-1]}")
    return [",".join(rank) for rank in ranks]


def with_callback(config: dict[str, Any], layout: LayoutSettings, host: HostSettings) -> dict[str, Any]:
    """The config with our callback and the layout in it, which is a plan for every model of the same kind.

    Raises:
        ConfigError: for settings that clash with a plan or with each other.
    """
    conflicts.refuse(config, with_plan=True)
    return config | {"callbacks": [stanza(layout, host)]}


def stanza(layout: LayoutSettings, host: HostSettings, callback: str = CALLBACK) -> dict[str, Any]:
    """Our callback's entry, with the layout in it. What is left to its defaults isn't written."""
    plan = _said(layout, LayoutSettings())
    if layout.layers:
        plan["layers"] = [{k: v for k, v in asdict(entry).items() if v is not None} for entry in layout.layers]
    said = _said(host, HostSettings())
    return {"type": callback, "plan": plan, **({"host": said} if said else {})}


def _said(settings: Any, default: Any) -> dict[str, Any]:
    return {key: value for key, value in asdict(settings).items() if value != getattr(default, key)}


def with_native_settings(config: dict[str, Any], plan: ActivationPlan, version: str) -> dict[str, Any]:
    """The config with the plan in MindFormers' own settings.

    Raises:
        ConfigError: for what this version can't say, and for settings that clash.
    """
    config = config | native_settings.sections(plan, version)
    conflicts.refuse(config, with_plan=False)
    return config
