"""MindFormers' model families: our settings as its ``model:`` section, and back. No MindSpore here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.layout import ModelFingerprint
from hp_memory.models.fingerprint import fingerprint as model_fingerprint
from hp_memory.models.settings import ModelSettings, ParallelSettings


@dataclass(frozen=True)
class Family:
    """What MindFormers calls a family, and why we can't train it where we can't.

    Attributes:
        model_type: MindFormers' ``model.model_type``.
        architecture: MindFormers' ``model.architectures``.
        plan_only: empty where it can be trained, else the reason why it can only be planned.
    """

    model_type: str
    architecture: str
    plan_only: str = ""


FAMILIES: dict[str, Family] = {
    "deepseek_v3": Family("deepseek_v3", "DeepseekV3ForCausalLM"),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM"),
    # No MindFormers release has a PyNative class for it; ours is registered under its own name.
    "qwen3_moe": Family("qwen3_moe", "HPMemoryQwen3MoeForCausalLM"),
    "glm4_moe": Family("glm4_moe", "Glm4MoeForCausalLM", "MindFormers 2.0 has this family for inference only"),
}

# Regions that exist only where experts are spread over ranks.
_EXPERT_PARALLEL_ONLY = ("dispatch.counts", "all2all.in", "compute.resort", "combine.unsort", "all2all.out")


def fingerprint(model: ModelSettings, parallel: ParallelSettings) -> ModelFingerprint:
    """The regions that MindFormers' blocks have at these parallel sizes.

    Raises:
        ConfigError: for a family MindFormers doesn't have.
    """
    family(model)
    mark = model_fingerprint(model)
    if parallel.expert > 1 or not {"moe", "mtp"} & set(mark.kinds):
        return mark
    why = "MindFormers exchanges no tokens at parallel.expert=1"
    regions = {kind: tuple(r for r in names if r not in _EXPERT_PARALLEL_ONLY) for kind, names in mark.regions.items()}
    return replace(mark, regions=regions, absent=dict.fromkeys(_EXPERT_PARALLEL_ONLY, why))


def family(model: ModelSettings, path: str = "model.family") -> Family:
    """The family's entry in ``FAMILIES``."""
    if model.family not in FAMILIES:
        raise ConfigError(path, model.family, "not a model family of MindFormers", FAMILIES)
    return FAMILIES[model.family]


# What all families have in common and no recipe changes.
_FIXED: dict[str, Any] = {
    "position_embedding_type": "rope",
    "hidden_act": "silu",
    "gated_linear_unit": True,
    "add_bias_linear": False,
    "use_flash_attention": True,
    "qk_layernorm": True,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "layernorm_compute_dtype": "float32",
    "softmax_compute_dtype": "float32",
    "rotary_dtype": "float32",
    "router_dense_type": "float32",
    "pad_token_id": 0,
}


def model_section(
    model: ModelSettings, dtype: str = "bfloat16", parallel: ParallelSettings | None = None
) -> dict[str, Any]:
    """MindFormers' ``model:`` section for the PyNative Trainer.

    Args:
        model: the sizes.
        dtype: of parameters and compute, ``bfloat16`` or ``float32``.
        parallel: context parallel ranks can't do without the compressed causal mask.
    """
    entry = family(model)
    section = {
        "model_type": entry.model_type,
        "architectures": entry.architecture,
        "vocab_size": model.vocab_size,
        "seq_length": model.seq_length,
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "max_position_embeddings": model.seq_length,
        "rms_norm_eps": model.norm_eps,
        "initializer_range": model.init_std,
        "rope_theta": model.rope_theta,
        "params_dtype": dtype,
        "compute_dtype": dtype,
        **_FIXED,
    }
    if parallel is not None and parallel.context > 1:
        section["use_attn_mask_compression"] = True
    if model.family == "deepseek_v3":
        return section | _latent_attention(model) | _deepseek_experts(model)
    section |= {"head_dim": model.head_dim, "intermediate_size": model.ffn_size or 4 * model.hidden_size}
    if model.family == "qwen3":
        return section
    return section | (_qwen_experts(model) if model.family == "qwen3_moe" else _deepseek_experts(model))


def _latent_attention(model: ModelSettings) -> dict[str, Any]:
    return {
        "multi_latent_attention": True,
        "mla_qkv_concat": True,
        "q_lora_rank": model.q_lora_rank or None,
        "kv_lora_rank": model.kv_lora_rank,
        "qk_nope_head_dim": model.qk_nope_head_dim,
        "qk_rope_head_dim": model.qk_rope_head_dim,
        "v_head_dim": model.v_head_dim,
    }


def _deepseek_experts(model: ModelSettings) -> dict[str, Any]:
    return _experts(model) | {
        "intermediate_size": model.ffn_size,
        "first_k_dense_replace": model.first_dense_layers,
        "n_routed_experts": model.num_experts,
        "n_shared_experts": model.shared_experts,
        "moe_shared_expert_intermediate_size": model.shared_experts * model.expert_ffn_size,
        "scoring_func": model.scoring,
        "moe_router_enable_expert_bias": model.scoring == "sigmoid",
        "moe_router_bias_update_rate": 0.001,
        "n_group": model.n_group,
        "topk_group": model.topk_group,
        "num_nextn_predict_layers": model.mtp_layers,
        "mtp_loss_scaling_factor": 0.3,
    }


def _qwen_experts(model: ModelSettings) -> dict[str, Any]:
    return _experts(model) | {
        "num_experts": model.num_experts,
        "moe_router_score_function": model.scoring,
        "moe_router_enable_expert_bias": False,
        "n_shared_experts": 0,
    }


def _experts(model: ModelSettings) -> dict[str, Any]:
    return {
        "num_experts_per_tok": model.top_k,
        "moe_intermediate_size": model.expert_ffn_size,
        "moe_grouped_gemm": True,
        "norm_topk_prob": True,
        "routed_scaling_factor": model.routed_scaling_factor,
        "moe_router_load_balancing_type": "seq_aux_loss",
        "moe_aux_loss_coeff": model.aux_loss_coeff,
    }


# Our name of a size, and MindFormers' in the TransformerConfig that every family is converted to.
_TRANSFORMER_CONFIG = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_query_groups",
    "head_dim": "kv_channels",
    "ffn_size": "ffn_hidden_size",
    "first_dense_layers": "first_k_dense_replace",
    "num_experts": "num_moe_experts",
    "top_k": "moe_router_topk",
    "expert_ffn_size": "moe_ffn_hidden_size",
    "shared_experts": "shared_expert_num",
    "vocab_size": "vocab_size",
    "seq_length": "seq_length",
    "mtp_layers": "mtp_num_layers",
    "rope_theta": "rotary_base",
    "norm_eps": "layernorm_epsilon",
    "scoring": "moe_router_score_function",
    "n_group": "moe_router_num_groups",
    "topk_group": "moe_router_group_topk",
    "routed_scaling_factor": "moe_router_topk_scaling_factor",
}
_LATENT_ATTENTION = {
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_head_dim",
    "qk_rope_head_dim": "qk_pos_emb_head_dim",
    "v_head_dim": "v_head_dim",
}
_DEFAULTS = {name: field.default for name, field in ModelSettings.__dataclass_fields__.items()}


def settings_of(config: Any, family_name: str) -> ModelSettings:
    """The sizes in a built model's TransformerConfig, for a plan made without a config of ours.

    A part that the model lacks (experts, latent attention) has size 0, as in ``ModelSettings``.
    """
    names: Mapping[str, str] = _TRANSFORMER_CONFIG
    latent = bool(getattr(config, "multi_latent_attention", False))
    if latent:
        names = names | _LATENT_ATTENTION
    values = {ours: _read(config, theirs, ours) for ours, theirs in names.items()}
    if latent:
        values["head_dim"] = values["qk_nope_head_dim"] + values["qk_rope_head_dim"]
    if not values["num_experts"]:
        values |= {"first_dense_layers": values["num_layers"], "top_k": 0, "expert_ffn_size": 0, "shared_experts": 0}
    return ModelSettings(family=family_name, **values)


def _read(config: Any, theirs: str, ours: str) -> Any:
    value = getattr(config, theirs, None)
    if value is None:
        return _DEFAULTS[ours] if isinstance(_DEFAULTS[ours], (int, float, str)) and _DEFAULTS[ours] != "???" else 0
    return value
