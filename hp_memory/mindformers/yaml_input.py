"""A MindFormers YAML as this package's config: for people who have nothing else. Nothing in it is left out silently.

Both kinds are read: the PyNative Trainer's (``parallelism``, ``training``, ``recompute``) and the graph Trainer's
(``parallel_config``, ``runner_config``, ``recompute_config``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from hp_memory.errors import ConfigError
from hp_memory.layout import LayerOverride, LayoutSettings
from hp_memory.mindformers.families import FAMILIES
from hp_memory.models.settings import ModelSettings, ParallelSettings
from hp_memory.pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from hp_memory.config.schema import DryrunConfig, SearchConfig

Config = TypeVar("Config", bound="DryrunConfig | SearchConfig")
Section = Mapping[str, Any]

_SIZES = {
    "vocab_size": "vocab_size",
    "seq_length": "seq_length",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_layers",
    "num_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "n_kv_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "ffn_size",
    "first_k_dense_replace": "first_dense_layers",
    "n_routed_experts": "num_experts",
    "num_experts": "num_experts",
    "num_experts_per_tok": "top_k",
    "moe_intermediate_size": "expert_ffn_size",
    "n_shared_experts": "shared_experts",
    "num_nextn_predict_layers": "mtp_layers",
    "rope_theta": "rope_theta",
    "rms_norm_eps": "norm_eps",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "scoring_func": "scoring",
    "moe_router_score_function": "scoring",
    "n_group": "n_group",
    "topk_group": "topk_group",
    "routed_scaling_factor": "routed_scaling_factor",
    "moe_aux_loss_coeff": "aux_loss_coeff",
    "initializer_range": "init_std",
}
# What the traced model is built with; another value gives other operations, which weren't traced.
_BUILT_WITH: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "gated_linear_unit": (True,),
    "add_bias_linear": (False,),
    "use_flash_attention": (True,),
    "attention_dropout": (0, 0.0),
    "hidden_dropout": (0, 0.0),
    "moe_grouped_gemm": (True,),
    "moe_permute_fusion": (False,),
    "apply_rope_fusion": (False,),
    "moe_token_dispatcher_type": ("alltoall",),
    "params_dtype": ("bfloat16",),
    "compute_dtype": ("bfloat16",),
    "tie_word_embeddings": (False,),
}
_NO_MEMORY = (
    *(
        "model_type",
        "architectures",
        "max_position_embeddings",
        "position_embedding_type",
        "qk_layernorm",
        "eos_token_id",
    ),
    *("layernorm_compute_dtype", "softmax_compute_dtype", "rotary_dtype", "router_dense_type", "pad_token_id", "type"),
    *(
        "bos_token_id",
        "norm_topk_prob",
        "moe_router_load_balancing_type",
        "moe_router_enable_expert_bias",
        "rope_scaling",
    ),
    *("moe_router_bias_update_rate", "mtp_loss_scaling_factor", "multi_latent_attention", "mla_qkv_concat", "seed"),
    *("moe_shared_expert_intermediate_size", "topk_method", "attention_bias", "use_past", "checkpoint_name_or_path"),
    *("param_init_type", "offset", "ignore_token_id", "batch_size", "moe_layer_freq", "n_layers"),
    "moe_router_enable_expert_bias",
    "use_attn_mask_compression",  # see _check_mask
)
_EXPERTS = (
    *("dispatch.permute", "all2all.in", "compute.resort", "gmm.up", "compute.act", "gmm.down"),
    *("combine.unsort", "all2all.out", "combine.unpermute"),
)
# What MindFormers replays by a module's path, and excludes by a part of an operation's name.
_PATHS: dict[str, tuple[str, ...]] = {
    "self_attention": ("attention.qkv", "attention.core", "attention.out"),
    "self_attention.core_attention": ("attention.core",),
    "self_attention.linear_proj": ("attention.out",),
    "input_layernorm": ("attention.norm",),
    "pre_mlp_layernorm": ("mlp.norm",),
    "mlp.experts": _EXPERTS,
    "mlp.shared_experts": ("shared_experts",),
    "mlp.linear_fc1": ("mlp.up",),
    "mlp.linear_fc2": ("mlp.down",),
}
_OPERATIONS: dict[str, tuple[str, ...]] = {
    "topk": (),  # the routing decision, which is always saved
    "alltoall": ("all2all.in", "all2all.out"),
    "groupedmatmul": ("gmm.up", "gmm.down"),
    "flashattention": ("attention.core",),
}
# Settings that move or keep memory in a way that isn't modelled, with the values that mean "off".
_MUST_BE_OFF = {
    "parallelism.cpu_offload": (False,),
    "parallelism.pipeline_parallel_overlap_b_f": (False,),
    "parallelism.dense_fsdp_shard_size": (None,),
    "swap.enable": (False,),
    "recompute_comm.enable": (False,),
    "swap_config.swap": (False,),
    "recompute_config.select_recompute": (False,),
    "recompute_config.select_comm_recompute": (False,),
}


def applied(cfg: Config) -> Config:
    """The config with what its ``yaml`` says in place of the recipe's model, sizes, pipeline and layout.

    Raises:
        ConfigError: for a key that isn't known, or a setting that isn't modelled.
    """
    if cfg.yaml is None:
        return cfg
    data = _load(cfg.yaml)
    for key, off in _MUST_BE_OFF.items():
        value = _find(data, key, off[0])
        if value not in off:
            raise ConfigError(f"yaml:{key}", value, "isn't modelled by the dry run", off)
    model = model_of(data)
    parallel, pipeline = parallel_of(data), pipeline_of(data)
    _check_mask(data, parallel)
    batch = _find(data, "training.local_batch_size", _find(data, "runner_config.batch_size", 1))
    train = replace(cfg.train, micro_batch_size=int(batch), micro_batches=max(pipeline.microbatches, 1))
    layout = layout_of(data, model)
    name = Path(cfg.yaml).stem
    return replace(
        cfg,
        name=name,
        engine="mindformers",
        model=model,
        parallel=parallel,
        pipeline=pipeline,
        layout=layout,
        train=train,
    )


def _check_mask(data: Section, parallel: ParallelSettings) -> None:
    """MindFormers' context parallel ranks need the compressed causal mask; the others are traced without it."""
    compressed, wanted = bool(_find(data, "model.use_attn_mask_compression", False)), parallel.context > 1
    if compressed != wanted:
        how = "with" if wanted else "without"
        why = f"with context_parallel={parallel.context} the dry run traces the model {how} it"
        raise ConfigError("yaml:model.use_attn_mask_compression", compressed, why, (wanted,))


def _load(path: str) -> Section:
    try:
        data = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError("yaml", path, f"can't be read: {str(error).splitlines()[0]}") from error
    if not isinstance(data, dict) or "model" not in data:
        raise ConfigError("yaml", path, "has no model section: not a MindFormers training config")
    return data


def _find(data: Section, key: str, default: Any) -> Any:
    node: Any = data
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return default
        node = node[part]
    return node


def model_of(data: Section) -> ModelSettings:
    """The model's sizes.

    Raises:
        ConfigError: for a family or a key that isn't known, or a value the traced model isn't built with.
    """
    section = data["model"].get("model_config", data["model"])
    named = {entry.model_type: name for name, entry in FAMILIES.items()}
    kind = section.get("model_type", section.get("type"))
    if kind not in named:
        raise ConfigError("yaml:model.model_type", kind, "no such family here", named)
    values: dict[str, Any] = {}
    for key, value in section.items():
        if key in _SIZES:
            values[_SIZES[key]] = value or 0
        elif key in _BUILT_WITH:
            if value not in _BUILT_WITH[key]:
                why = "the dry run traces the model without it: its memory would be another"
                raise ConfigError(f"yaml:model.{key}", value, why, _BUILT_WITH[key])
        elif key not in _NO_MEMORY:
            raise ConfigError(f"yaml:model.{key}", value, "isn't known to the dry run", (*_SIZES, *_BUILT_WITH))
    return _complete(ModelSettings(family=named[kind]), values)


def _complete(model: ModelSettings, values: dict[str, Any]) -> ModelSettings:
    values.setdefault("num_kv_heads", values.get("num_heads", 0))
    latent = values.get("qk_nope_head_dim", 0) + values.get("qk_rope_head_dim", 0)
    values.setdefault("head_dim", latent or values.get("hidden_size", 0) // max(values.get("num_heads", 1), 1))
    if not values.get("num_experts"):
        values |= {"num_experts": 0, "top_k": 0, "expert_ffn_size": 0}
        values["first_dense_layers"] = values.get("num_layers", 0)
    values.setdefault("ffn_size", 0)
    return replace(model, **values)


def parallel_of(data: Section) -> ParallelSettings:
    """The parallel sizes; FSDP's is the graph Trainer's optimizer sharding."""
    new = data.get("parallelism", {})
    if new:
        shard = int(new.get("data_parallel_shard", 1))
        expert, tensor = int(new.get("expert_parallel", 1)), int(new.get("tensor_parallel", 1))
        data_ranks = int(new.get("data_parallel", max(shard, expert)))
        fsdp = shard if shard > 0 else data_ranks
        sizes = (data_ranks, tensor, expert, new.get("pipeline_parallel", 1), new.get("context_parallel", 1), fsdp)
        method = str(new.get("context_parallel_method", "colossal")).lower()
        return ParallelSettings(*(int(size) for size in sizes), context_method=method)
    old = data.get("parallel_config", {})
    names = ("data_parallel", "model_parallel", "expert_parallel", "pipeline_stage", "context_parallel")
    sizes = [int(old.get(name, 1)) for name in names]
    sharded = bool(_find(data, "parallel.enable_parallel_optimizer", False))
    return ParallelSettings(*sizes, sizes[0] if sharded else 1)


def pipeline_of(data: Section) -> PipelineSettings:
    """Stages, schedule and micro-batches."""
    new = data.get("parallelism", {})
    parallel = parallel_of(data)
    stages = parallel.pipeline
    if not new:
        micros = int(_find(data, "parallel_config.micro_batch_num", stages))
        return PipelineSettings(stages=stages, microbatches=micros if stages > 1 else 1)
    local = int(_find(data, "training.local_batch_size", 1))
    micros = max(1, int(_find(data, "training.global_batch_size", local)) // (local * parallel.data))
    if stages == 1:
        return PipelineSettings(microbatches=micros)
    interleave = int(new.get("pipeline_parallel_interleave_num", 1))
    schedule = new.get("pipeline_parallel_schedule", "1f1b")
    return PipelineSettings(
        stages=stages,
        layers_per_stage=new.get("pipeline_parallel_layers_per_stage", "auto"),
        microbatches=micros,
        schedule="interleaved_1f1b" if interleave > 1 and schedule == "1f1b" else schedule,
        interleave=interleave,
        split_backward=bool(new.get("pipeline_parallel_enable_dxdw_split", False)),
    )


def layout_of(data: Section, model: ModelSettings) -> LayoutSettings:
    """MindFormers' recompute settings as a layout.

    Raises:
        ConfigError: for a module path or an operation that no region means.
    """
    old = data.get("recompute_config")
    if old is not None:
        if not isinstance(old.get("recompute", False), bool):
            raise ConfigError("yaml:recompute_config.recompute", old["recompute"], "only true or false is modelled")
        return LayoutSettings(name="yaml", default="recompute" if old.get("recompute") else "save")
    section = data.get("recompute") or {}
    mode = str(section.get("mode", "None"))
    if mode not in ("None", "full", "select"):
        raise ConfigError("yaml:recompute.mode", mode, "no such mode", ("None", "full", "select"))
    overrides = []
    if section.get("full_recompute_layer"):
        saved = _saved_names(section.get("exclude_op"))
        overrides += [
            LayerOverride(str(ids), default="recompute", save=saved) for ids in section["full_recompute_layer"]
        ]
    for path, layers in (section.get("select_module") or {}).items():
        regions = _regions_of(path)
        overrides += [LayerOverride(str(ids), recompute=regions) for ids in layers]
    return LayoutSettings(name="yaml", default="save", layers=overrides if mode != "None" else [])


def _saved_names(names: Any) -> list[str]:
    if names is None:
        return []
    if not isinstance(names, list):
        raise ConfigError("yaml:recompute.exclude_op", names, "only 2.0's list of operation names is read")
    regions: list[str] = []
    for name in names:
        meant = [groups for word, groups in _OPERATIONS.items() if word in str(name).lower()]
        if not meant:
            raise ConfigError("yaml:recompute.exclude_op", name, "no region means this operation", _OPERATIONS)
        regions += [region for groups in meant for region in groups if region not in regions]
    return regions


def _regions_of(path: str) -> list[str]:
    if path not in _PATHS:
        raise ConfigError("yaml:recompute.select_module", path, "no region means this path", _PATHS)
    return list(_PATHS[path])
