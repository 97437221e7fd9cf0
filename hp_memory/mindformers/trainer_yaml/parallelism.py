"""Parallel sizes, stages, micro-batches and what is sharded: from both Trainers' sections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hp_memory.config.estimate import RESHARD
from hp_memory.mindformers.trainer_yaml.document import Document
from hp_memory.models.settings import CONTEXT_METHODS, ModelSettings, ParallelSettings
from hp_memory.pipeline.settings import PipelineSettings

SCHEDULES = ("1f1b", "interleaved_1f1b", "gpipe")
# The graph Trainer's `pipeline_scheduler`; with whole sequences `seqpipe` runs the steps of 1f1b.
_GRAPH_SCHEDULES = ("1f1b", "gpipe", "seqpipe")


@dataclass(frozen=True)
class Spread:
    """How a file spreads a model.

    Attributes:
        micro_batch: sequences of one rank's micro-batch.
        shard: see ``EstimateSettings.shard``.
        reshard: see ``EstimateSettings.reshard_after_forward``.
        accumulation: see ``EstimateSettings.gradient_accumulation``.
        optimizer_on_host: see ``EstimateSettings.optimizer_on_host``.
    """

    parallel: ParallelSettings
    pipeline: PipelineSettings
    micro_batch: int
    shard: str = "optim_grads_params"
    reshard: str = "default"
    accumulation: str = "default"
    optimizer_on_host: bool = False


def spread_of(document: Document, model: ModelSettings, devices: int | None) -> Spread:
    """The sizes; what doesn't fit is noted in the document."""
    made = _graph(document, model, devices) if document.trainer == "graph" else _pynative(document, devices)
    _check_mask(document, made.parallel)
    return made


def _pynative(document: Document, devices: int | None) -> Spread:
    parallel = _pynative_sizes(document, devices)
    local = document.whole("training.local_batch_size")
    micros = _micro_batches(document, local * parallel.data, local)
    shard = document.choice(
        "parallelism.data_parallel_shard_strategy", "optim_grads_params", ("optim", "optim_grads", "optim_grads_params")
    )
    reshard = document.choice("parallelism.reshard_after_forward_policy", "default", RESHARD)
    if parallel.tensor > 1 and not document.flag("parallelism.enable_loss_parallel"):
        why = "the dry run takes the loss over each tensor parallel rank's part of the vocabulary"
        document.refuse("parallelism.enable_loss_parallel", False, why, (True,))
    return Spread(parallel, _pynative_pipeline(document, parallel.pipeline, micros), local, shard, reshard)


def _pynative_sizes(document: Document, devices: int | None) -> ParallelSettings:
    """MindFormers divides the ranks that tensor, context and pipeline leave into replicas of one sharded copy each."""
    read = {
        name: document.whole(f"parallelism.{name}_parallel") for name in ("tensor", "context", "pipeline", "expert")
    }
    shard = document.get("parallelism.data_parallel_shard", -1)
    if isinstance(shard, bool) or not isinstance(shard, int) or (shard < 1 and shard != -1):
        document.refuse(
            "parallelism.data_parallel_shard", shard, "must be a whole number, at least 1, or -1 for all ranks"
        )
        shard = 1
    rest = read["tensor"] * read["context"] * read["pipeline"]
    if devices is not None:
        data = _divided(document, devices, rest)
    elif shard > 0:
        data = shard
        document.notes.append(
            f"devices={shard * rest}: the fewest that parallelism allows; give devices=N for replicas"
        )
    else:
        why = "means all ranks, whose number isn't in the file: give devices=N"
        document.refuse("parallelism.data_parallel_shard", -1, why)
        data = read["expert"]
    replicas = 1 if shard < 0 else max(data // shard, 1)
    if data % replicas or (shard > 0 and data // replicas != shard):
        document.refuse("parallelism.data_parallel_shard", shard, f"doesn't divide the {data} data parallel ranks")
        replicas = 1
    fsdp = data // replicas
    if fsdp * read["context"] * read["tensor"] % read["expert"]:
        why = f"must divide the {fsdp * read['context'] * read['tensor']} ranks of one sharded copy in a stage"
        document.refuse("parallelism.expert_parallel", read["expert"], why)
    method = str(document.get("parallelism.context_parallel_method", "colossal")).lower()
    if method not in CONTEXT_METHODS:
        document.refuse("parallelism.context_parallel_method", method, "isn't modelled", CONTEXT_METHODS)
    return ParallelSettings(
        data,
        read["tensor"],
        read["expert"],
        read["pipeline"],
        read["context"],
        fsdp,
        context_method=method if read["context"] > 1 and method in CONTEXT_METHODS else CONTEXT_METHODS[0],
    )


def _divided(document: Document, devices: int, rest: int) -> int:
    if devices % rest or devices < 1:
        document.refuse(
            "parallelism", devices, f"devices={devices} isn't a multiple of tensor x context x pipeline = {rest}"
        )
        return 1
    return devices // rest


def _micro_batches(document: Document, at_once: int, local: int) -> int:
    total = document.whole("training.global_batch_size")
    if total % at_once:
        why = f"isn't a multiple of the {at_once} sequences that all data parallel ranks take at once ({local} each)"
        document.refuse("training.global_batch_size", total, why)
    return max(1, total // at_once)


def _pynative_pipeline(document: Document, stages: int, micros: int) -> PipelineSettings:
    if stages == 1:
        return PipelineSettings(microbatches=micros)
    interleave = document.whole("parallelism.pipeline_parallel_interleave_num")
    schedule = str(document.get("parallelism.pipeline_parallel_schedule", "1f1b")).lower()
    if schedule not in SCHEDULES:
        document.refuse(
            "parallelism.pipeline_parallel_schedule", schedule, "isn't a schedule of MindFormers", SCHEDULES
        )
        schedule = "1f1b"
    return PipelineSettings(
        stages=stages,
        layers_per_stage=document.get("parallelism.pipeline_parallel_layers_per_stage", "auto"),
        microbatches=micros,
        schedule="interleaved_1f1b" if interleave > 1 and schedule == "1f1b" else schedule,
        interleave=interleave,
        split_backward=document.flag("parallelism.pipeline_parallel_enable_dxdw_split"),
        overlap_p2p=document.flag("parallelism.pipeline_parallel_overlap_p2p"),
    )


def _graph(document: Document, model: ModelSettings, devices: int | None) -> Spread:
    names = ("data_parallel", "model_parallel", "expert_parallel", "pipeline_stage", "context_parallel")
    data, tensor, expert, stages, context = (document.whole(f"parallel_config.{name}") for name in names)
    fsdp = _optimizer_shards(document, data)
    method = document.choice("parallel_config.context_parallel_algo", "colossalai_cp", ("colossalai_cp", "ulysses_cp"))
    parallel = ParallelSettings(data, tensor, expert, stages, context, fsdp)
    if context > 1:
        parallel.context_method = {"colossalai_cp": "colossal", "ulysses_cp": "ulysses"}[method]
    if devices is not None and devices != parallel.world_size:
        why = f"devices={devices}, but data x model x context x stages = {parallel.world_size}"
        document.refuse("parallel_config", parallel.world_size, why)
    if tensor > 1 and not document.flag("parallel_config.use_seq_parallel"):
        why = f"the dry run traces model_parallel={tensor} with the sequence shared between the layers"
        document.refuse("parallel_config.use_seq_parallel", False, why, (True,))
    if tensor > 1 and fsdp == 1 and document.flag("parallel_config.vocab_emb_dp", True):
        document.notes.append(
            "not in the figures: vocab_emb_dp keeps the whole embedding on each model parallel rank of the first stage"
        )
    accumulated = document.flag("parallel.parallel_optimizer_config.gradient_accumulation_shard", False)
    document.notes.append("the graph Trainer's model is traced as MindFormers' PyNative one, kernel by kernel")
    return Spread(
        parallel,
        _graph_pipeline(document, model, stages),
        document.whole("runner_config.batch_size"),
        "optim_grads_params" if accumulated or fsdp == 1 else "optim_params",
        accumulation="sharded",  # what `shard` says holds in a compiled graph under a pipeline too
        optimizer_on_host=document.flag("optimizer.swap"),
    )


def _optimizer_shards(document: Document, data: int) -> int:
    """Ranks that share one copy of the parameters: the data parallel ones, or ``optimizer_weight_shard_size``."""
    if not document.flag("parallel.enable_parallel_optimizer"):
        return 1
    limit = document.get("parallel.parallel_optimizer_config.optimizer_weight_shard_size", -1)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit == 0 or limit < -1:
        document.refuse(
            "parallel.parallel_optimizer_config.optimizer_weight_shard_size", limit, "must be -1 or at least 1"
        )
        return data
    return data if limit < 0 else min(limit, data)


def _graph_pipeline(document: Document, model: ModelSettings, stages: int) -> PipelineSettings:
    steps = document.whole("runner_config.gradient_accumulation_steps")
    if stages == 1:
        return PipelineSettings(microbatches=steps)
    interleave = _interleave(document)
    settings = document.get("parallel.pipeline_config", {})
    scheduler = str(settings.get("pipeline_scheduler", "1f1b")) if isinstance(settings, Mapping) else "1f1b"
    if scheduler not in _GRAPH_SCHEDULES:
        document.refuse("parallel.pipeline_config.pipeline_scheduler", scheduler, "isn't modelled", _GRAPH_SCHEDULES)
    elif scheduler == "gpipe" and interleave > 1:
        document.refuse(
            "parallel.pipeline_config.pipeline_scheduler", scheduler, "isn't modelled with pp_interleave_num"
        )
    schedule = "interleaved_1f1b" if interleave > 1 else "gpipe" if scheduler == "gpipe" else "1f1b"
    return PipelineSettings(
        stages=stages,
        layers_per_stage=_layers_of_offset(document, model, stages, interleave),
        microbatches=document.whole("parallel_config.micro_batch_num"),
        schedule=schedule,
        interleave=interleave,
    )


def _interleave(document: Document) -> int:
    """Chunks per rank. MindFormers takes them only where the pipeline is told to interleave."""
    for name in ("pp_interleave_num", "virtual_pipeline_model_parallel_size"):
        path = f"model.model_config.{name}"
        chunks = document.whole(path)
        if chunks > 1 and not document.get("parallel.pipeline_config.pipeline_interleave", False):
            document.refuse(path, chunks, "has no effect without parallel.pipeline_config.pipeline_interleave: True")
            return 1
        if chunks > 1:
            return chunks
    return 1


def _layers_of_offset(document: Document, model: ModelSettings, stages: int, interleave: int) -> Any:
    """Layers of each chunk: the even share, rounded down, and each chunk's offset."""
    path = "model.model_config.offset"
    offset: Any = document.get(path, 0)
    even = model.num_layers // (stages * interleave)
    if isinstance(offset, int) and not isinstance(offset, bool):
        rows = [[offset] * stages] * interleave
    else:
        rows = offset if isinstance(offset, list) and offset and isinstance(offset[0], list) else [offset] * interleave
    shape_fits = len(rows) == interleave and all(isinstance(row, list) and len(row) == stages for row in rows)
    if not shape_fits or any(isinstance(n, bool) or not isinstance(n, int) for row in rows for n in row):
        document.refuse(path, offset, f"must be 0, a list of {stages} numbers, or {interleave} such lists")
        return "auto"
    layers = [even + n for row in rows for n in row]
    if sum(layers) != model.num_layers or min(layers) < 1:
        why = f"makes stages of {layers} layers, which aren't the model's {model.num_layers}"
        document.refuse(path, offset, why)
        return "auto"
    return layers


def _check_mask(document: Document, parallel: ParallelSettings) -> None:
    """PyNative context parallel ranks need the compressed causal mask; the others are traced without it."""
    if document.trainer == "graph":
        return
    path = "model.use_attn_mask_compression"
    compressed, wanted = bool(document.get(path, False)), parallel.context > 1
    if compressed != wanted:
        how = "with" if wanted else "without"
        why = f"with context_parallel={parallel.context} the dry run traces the model {how} it"
        document.refuse(path, compressed, why, (wanted,))
