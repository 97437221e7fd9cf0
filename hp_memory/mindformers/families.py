"""MindFormers' model families: our settings as its ``model:`` section, and back. No MindSpore here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.layout import ModelFingerprint
from hp_memory.mindformers.names import EXPERT_PARALLEL_ONLY
from hp_memory.models.fingerprint import fingerprint as model_fingerprint
from hp_memory.models.settings import ModelSettings, ParallelSettings


@dataclass(frozen=True)
class Size:
    """One size and its names.

    Attributes:
        ours: in ``ModelSettings``.
        built: MindFormers' in the TransformerConfig that every family is converted to.
        names: MindFormers' in a YAML, the one that is written first.
        part: which models have it: ``moe``, ``mla`` or, empty, all.
    """

    ours: str
    built: str
    names: tuple[str, ...]
    part: str = ""


SIZES: tuple[Size, ...] = (
    Size("vocab_size", "vocab_size", ("vocab_size",)),
    Size("seq_length", "seq_length", ("seq_length",)),
    Size("hidden_size", "hidden_size", ("hidden_size",)),
    Size("num_layers", "num_layers", ("num_hidden_layers", "num_layers", "n_layer")),
    Size("num_heads", "num_attention_heads", ("num_attention_heads", "num_heads", "n_head")),
    Size("num_kv_heads", "num_query_groups", ("num_key_value_heads", "n_kv_heads", "num_query_groups")),
    Size("head_dim", "kv_channels", ("head_dim", "kv_channels")),
    Size("ffn_size", "ffn_hidden_size", ("intermediate_size", "ffn_hidden_size")),
    Size("first_dense_layers", "first_k_dense_replace", ("first_k_dense_replace",), "moe"),
    Size("num_experts", "num_moe_experts", ("n_routed_experts", "num_experts", "expert_num", "num_moe_experts"), "moe"),
    Size("top_k", "moe_router_topk", ("num_experts_per_tok", "num_experts_chosen", "moe_router_topk"), "moe"),
    Size("expert_ffn_size", "moe_ffn_hidden_size", ("moe_intermediate_size", "moe_ffn_hidden_size"), "moe"),
    Size("shared_experts", "shared_expert_num", ("n_shared_experts", "shared_expert_num"), "moe"),
    Size("mtp_layers", "mtp_num_layers", ("num_nextn_predict_layers", "mtp_depth", "mtp_num_layers")),
    Size("rope_theta", "rotary_base", ("rope_theta", "theta", "rotary_base")),
    Size("norm_eps", "layernorm_epsilon", ("rms_norm_eps", "layernorm_epsilon", "layer_norm_epsilon")),
    Size("q_lora_rank", "q_lora_rank", ("q_lora_rank",), "mla"),
    Size("kv_lora_rank", "kv_lora_rank", ("kv_lora_rank",), "mla"),
    Size("qk_nope_head_dim", "qk_head_dim", ("qk_nope_head_dim", "qk_head_dim"), "mla"),
    Size("qk_rope_head_dim", "qk_pos_emb_head_dim", ("qk_rope_head_dim", "qk_pos_emb_head_dim"), "mla"),
    Size("v_head_dim", "v_head_dim", ("v_head_dim",), "mla"),
    Size(
        "scoring",
        "moe_router_score_function",
        ("scoring_func", "moe_router_score_function", "use_gating_sigmoid"),
        "moe",
    ),
    Size("n_group", "moe_router_num_groups", ("n_group", "moe_router_num_groups"), "moe"),
    Size("topk_group", "moe_router_group_topk", ("topk_group", "moe_router_group_topk"), "moe"),
    Size(
        "routed_scaling_factor",
        "moe_router_topk_scaling_factor",
        ("routed_scaling_factor", "moe_router_topk_scaling_factor"),
        "moe",
    ),
    Size("aux_loss_coeff", "moe_aux_loss_coeff", ("moe_aux_loss_coeff",), "moe"),
    Size("init_std", "init_method_std", ("initializer_range", "init_method_std")),
)


@dataclass(frozen=True)
class Family:
    """What MindFormers calls a family, and what it is made of.

    Attributes:
        model_type: MindFormers' ``model.model_type``.
        architecture: MindFormers' ``model.architectures``.
        config_class: MindFormers' class of it, whose defaults stand for what a YAML leaves out.
        parts: of ``mla`` and ``moe``, what it has.
        sizes: what a YAML of ours says of it: our names of sizes.
        names: where it goes by another name in this family than ``Size.names`` says first.
        fixed: what a YAML of ours says besides.
        defaults: the config class's sizes, by our names.
        built_with: the config class's values of keys that must have one value.
    """

    model_type: str
    architecture: str
    config_class: str
    parts: tuple[str, ...]
    sizes: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    built_with: Mapping[str, Any] = field(default_factory=dict)

    def name_of(self, size: Size) -> str:
        """The size's name in a YAML of this family."""
        return self.names.get(size.ours, size.names[0])


_ENDS = ("vocab_size", "seq_length", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "norm_eps", "init_std",
         "rope_theta")  # fmt: skip
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_GROUPED = ("head_dim", "ffn_size")
_EXPERTS = ("top_k", "expert_ffn_size", "num_experts", "scoring", "routed_scaling_factor", "aux_loss_coeff")
_DENSE_FIRST = ("ffn_size", "first_dense_layers", "shared_experts", "n_group", "topk_group", "mtp_layers")

# What all families have in common and no recipe changes.
_FIXED: dict[str, Any] = {
    "position_embedding_type": "rope",
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
_FIXED_EXPERTS = {"moe_grouped_gemm": True, "norm_topk_prob": True, "moe_router_load_balancing_type": "seq_aux_loss"}
_FIXED_MTP = {"moe_router_bias_update_rate": 0.001, "mtp_loss_scaling_factor": 0.3}

# MindFormers 2.0's defaults, where a family's config class says nothing else.
_BUILT_WITH: dict[str, Any] = {
    "hidden_dropout": 0.1,
    "attention_dropout": 0.0,
    "moe_grouped_gemm": False,
    "qk_layernorm": False,
}

_QWEN3_DEFAULTS: dict[str, Any] = {
    **{"vocab_size": 151936, "seq_length": 4096, "hidden_size": 4096, "num_layers": 32, "num_heads": 32},
    **{"num_kv_heads": 32, "head_dim": 128, "ffn_size": 22016, "rope_theta": 10000.0, "norm_eps": 1e-6},
    "init_std": 0.02,
}

FAMILIES: dict[str, Family] = {
    "deepseek_v3": Family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        ("mla", "moe"),
        (*_ENDS, *_LATENT, *_EXPERTS, *_DENSE_FIRST),
        fixed=_FIXED | _FIXED_EXPERTS | _FIXED_MTP | {"multi_latent_attention": True, "mla_qkv_concat": True},
        defaults={
            **{"vocab_size": 129280, "seq_length": 4096, "hidden_size": 7168, "num_layers": 61, "num_heads": 128},
            **{"num_kv_heads": 128, "ffn_size": 18432, "first_dense_layers": 3, "num_experts": 256, "top_k": 8},
            **{"expert_ffn_size": 2048, "shared_experts": 1, "mtp_layers": 1, "q_lora_rank": 1536, "kv_lora_rank": 512},
            **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_group": 8, "topk_group": 4},
            **{"scoring": "sigmoid", "routed_scaling_factor": 2.5, "aux_loss_coeff": 0.0, "rope_theta": 10000.0},
            **{"norm_eps": 1e-6, "init_std": 0.02},
        },
        built_with=_BUILT_WITH | {"hidden_dropout": 0.0},
    ),
    "qwen3": Family(
        "qwen3",
        "Qwen3ForCausalLM",
        "Qwen3Config",
        (),
        (*_ENDS, *_GROUPED),
        fixed=_FIXED,
        defaults=_QWEN3_DEFAULTS,
        # The model normalises queries and keys whatever the config says.
        built_with=_BUILT_WITH | {"qk_layernorm": True},
    ),
    # No MindFormers release has a PyNative class for this one and the next: ours are registered under their own names.
    "qwen3_moe": Family(
        "qwen3_moe",
        "HPMemoryQwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        ("moe",),
        (*_ENDS, *_GROUPED, *_EXPERTS),
        names={"num_experts": "num_experts", "scoring": "moe_router_score_function"},
        fixed=_FIXED | _FIXED_EXPERTS | {"moe_router_enable_expert_bias": False, "n_shared_experts": 0},
        defaults={
            **{"vocab_size": 151936, "seq_length": 4096, "hidden_size": 2048, "num_layers": 24, "num_heads": 32},
            **{"num_kv_heads": 4, "ffn_size": 6144, "num_experts": 128, "top_k": 8, "expert_ffn_size": 768},
            **{"scoring": "softmax", "rope_theta": 10000.0, "norm_eps": 1e-6, "init_std": 0.02},
            **{"first_dense_layers": 0, "shared_experts": 0, "aux_loss_coeff": 0.0},
        },
        built_with=_BUILT_WITH | {"qk_layernorm": True},
    ),
    "glm4_moe": Family(
        "glm4_moe",
        "HPMemoryGlm4MoeForCausalLM",
        "Glm4MoeConfig",
        ("moe",),
        (*_ENDS, *_GROUPED, *_EXPERTS, *_DENSE_FIRST),
        # Its config class knows no `num_nextn_predict_layers`, and asks for `use_qk_norm`.
        names={"scoring": "moe_router_score_function", "mtp_layers": "mtp_num_layers"},
        fixed={k: v for k, v in _FIXED.items() if k != "qk_layernorm"}
        | _FIXED_EXPERTS
        | _FIXED_MTP
        | {"use_qk_norm": True},
        defaults={
            **{"vocab_size": 151552, "seq_length": 4096, "hidden_size": 4096, "num_layers": 46, "num_heads": 96},
            **{"num_kv_heads": 8, "ffn_size": 10944, "first_dense_layers": 1, "num_experts": 128, "top_k": 8},
            **{"expert_ffn_size": 1408, "shared_experts": 1, "scoring": "sigmoid", "rope_theta": 10000.0},
            **{"norm_eps": 1e-5, "init_std": 0.02, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0},
            "aux_loss_coeff": 0.0,
        },
        # The model normalises queries and keys whatever the config says.
        built_with=_BUILT_WITH | {"qk_layernorm": True},
    ),
    # Llama and other dense models without norms of queries and keys; MindFormers trains them as legacy models only.
    "llama": Family(
        "qwen3",
        "HPMemoryLlamaForCausalLM",
        "Qwen3Config",
        (),
        (*_ENDS, *_GROUPED),
        fixed=_FIXED | {"qk_layernorm": False},
        defaults=_QWEN3_DEFAULTS,
        built_with=_BUILT_WITH,
    ),
}


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
    regions = {kind: tuple(r for r in names if r not in EXPERT_PARALLEL_ONLY) for kind, names in mark.regions.items()}
    return replace(mark, regions=regions, absent=dict.fromkeys(EXPERT_PARALLEL_ONLY, why))


def family(model: ModelSettings, path: str = "model.family") -> Family:
    """The family's entry in ``FAMILIES``."""
    if model.family not in FAMILIES:
        raise ConfigError(path, model.family, "not a model family of MindFormers", FAMILIES)
    return FAMILIES[model.family]


def model_section(
    model: ModelSettings, dtype: str = "bfloat16", parallel: ParallelSettings | None = None, parameters: str = ""
) -> dict[str, Any]:
    """MindFormers' ``model:`` section for the PyNative Trainer.

    Args:
        model: the sizes.
        dtype: of compute, ``bfloat16`` or ``float32``.
        parallel: context parallel ranks can't do without the compressed causal mask.
        parameters: their dtype; empty for that of compute.
    """
    entry = family(model)
    section: dict[str, Any] = {"model_type": entry.model_type, "architectures": entry.architecture}
    section |= {entry.name_of(size): getattr(model, size.ours) for size in SIZES if size.ours in entry.sizes}
    section |= {"max_position_embeddings": model.seq_length, "hidden_act": model.activation}
    section |= {"params_dtype": parameters or dtype, "compute_dtype": dtype, **entry.fixed}
    if parallel is not None and parallel.context > 1:
        section["use_attn_mask_compression"] = True
    return section | _computed(model, entry)


def _computed(model: ModelSettings, entry: Family) -> dict[str, Any]:
    """What follows from several sizes, or goes by another value."""
    found: dict[str, Any] = {}
    if "shared_experts" in entry.sizes:
        found["moe_shared_expert_intermediate_size"] = model.shared_experts * model.expert_ffn_size
        found["moe_router_enable_expert_bias"] = model.scoring == "sigmoid"
    if "mla" in entry.parts:
        found["q_lora_rank"] = model.q_lora_rank or None
    else:
        found["intermediate_size"] = model.ffn_size or 4 * model.hidden_size
    return found


_DEFAULTS = {name: field.default for name, field in ModelSettings.__dataclass_fields__.items()}


def settings_of(config: Any, family_name: str) -> ModelSettings:
    """The sizes in a built model's TransformerConfig, for a plan made without a config of ours.

    A part that the model lacks (experts, latent attention) has size 0, as in ``ModelSettings``.
    """
    latent = bool(getattr(config, "multi_latent_attention", False))
    sizes = [size for size in SIZES if latent or size.part != "mla"]
    values = {size.ours: _read(config, size) for size in sizes}
    if latent:
        values["num_kv_heads"] = values["num_heads"]  # no groups of heads, whatever the config says
        values["head_dim"] = values["qk_nope_head_dim"] + values["qk_rope_head_dim"]
    if not values["num_experts"]:
        values |= {"first_dense_layers": values["num_layers"], "top_k": 0, "expert_ffn_size": 0, "shared_experts": 0}
    activation = "fusedswiglu" if getattr(config, "hidden_act", "silu") == "fusedswiglu" else "silu"
    return ModelSettings(family=family_name, activation=activation, **values)


def _read(config: Any, size: Size) -> Any:
    value = getattr(config, size.built, None)
    if value is None:
        default = _DEFAULTS[size.ours]
        return default if isinstance(default, (int, float, str)) and default != "???" else 0
    return value
