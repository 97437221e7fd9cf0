"""The model that a YAML means: sizes from the file, a config.json beside it, or MindFormers' own defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hp_memory.mindformers.families import FAMILIES, SIZES, Family
from hp_memory.mindformers.trainer_yaml.document import Document
from hp_memory.mindformers.trainer_yaml.keys import Table
from hp_memory.mindformers.trainer_yaml.keys_model import MODEL
from hp_memory.models.settings import ModelSettings

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_DTYPES |= {name: name for name in ("bfloat16", "float16", "float32")}
_WORDS = ("scoring",)
_FRACTIONS = ("rope_theta", "norm_eps", "routed_scaling_factor", "aux_loss_coeff", "init_std")
_LEAST = {"vocab_size": 1, "seq_length": 1, "hidden_size": 1, "num_layers": 1, "num_heads": 1}


@dataclass(frozen=True)
class ModelRead:
    """The model of a file, and the dtypes of its compute and parameters."""

    model: ModelSettings
    dtype: str
    parameters_dtype: str


def model_of(document: Document) -> ModelRead | None:
    """The model; what can't be read is noted in the document. None where not even its family can be told."""
    prefix = "model.model_config" if document.trainer == "graph" else "model"
    given = document.get(prefix, {})
    if not isinstance(given, Mapping):
        document.refuse(prefix, given, "must be a section with keys")
        return None
    beside, named = _beside(document)
    found = _family(document, prefix, given, beside)
    if found is None:
        return None
    name, family = found
    values = _sizes(document, prefix, family, beside, named)
    _check_built(document, prefix, family, beside)
    _check_norms(document, prefix, family, beside)
    values = _complete(family, values)
    _shared_width(document, prefix, values)
    _layer_pattern(document, prefix, values)
    activation = _activation(document, prefix, beside)
    model = replace(ModelSettings(family=name), activation=activation, **values)
    dtype = _dtype(document, f"{prefix}.compute_dtype", "bfloat16")
    path = f"{prefix}.params_dtype"
    if document.get(path) is None and document.get(f"{prefix}.param_init_type") is not None:
        path = f"{prefix}.param_init_type"
    return ModelRead(model, dtype, _dtype(document, path, "float32"))


def _beside(document: Document) -> tuple[Mapping[str, Any], str]:
    """What a Hugging Face config.json says, and the folder that the file names for it."""
    named = document.get("pretrained_model_dir") or ""
    places = [Path(str(named)) / "config.json"] if named else []
    for place in (*places, Path(document.file).parent / "config.json"):
        if place.is_file():
            try:
                data = json.loads(place.read_text())
            except (OSError, ValueError) as error:
                document.refuse("pretrained_model_dir", str(place), f"can't be read as JSON: {error}")
                return {}, str(named)
            if isinstance(data, dict):
                document.notes.append(f"sizes that the file leaves out come from {place}")
                return data, ""
    return {}, str(named)


def _family(
    document: Document, prefix: str, given: Mapping[str, Any], beside: Mapping[str, Any]
) -> tuple[str, Family] | None:
    kind = given.get("model_type") or given.get("type") or beside.get("model_type")
    classes = given.get("architectures")
    classes = classes if isinstance(classes, list) else [classes]
    named = {name: name for name in FAMILIES}
    for name, family in FAMILIES.items():
        if family.model_type == kind and family.architecture in classes:
            return name, family
    if kind is None:
        why = "is missing, and there is no config.json of the model beside the file or in pretrained_model_dir"
        document.refuse(f"{prefix}.model_type", None, why, named)
        return None
    if kind not in named:
        why = "isn't a family that is mapped; docs/extending.md says what a new one needs"
        document.refuse(f"{prefix}.model_type", kind, why, named)
        return None
    return named[kind], FAMILIES[named[kind]]


def _sizes(
    document: Document, prefix: str, family: Family, beside: Mapping[str, Any], elsewhere: str
) -> dict[str, Any]:
    """Each size of the family, from the first place that says it."""
    values: dict[str, Any] = {}
    assumed = []
    for size in SIZES:
        stated = [name for name in size.names if document.get(f"{prefix}.{name}") is not None]
        null = any(name in document.get(prefix, {}) for name in size.names)
        if len(stated) > 1:
            why = f"says the same as {stated[0]}: MindFormers refuses both"
            document.refuse(f"{prefix}.{stated[1]}", document.get(f"{prefix}.{stated[1]}"), why)
        if stated:
            values[size.ours] = _number(document, f"{prefix}.{stated[0]}", size.ours)
        elif null and size.ours in ("q_lora_rank", "shared_experts", "mtp_layers", "num_experts"):
            values[size.ours] = 0
        elif size.ours == "seq_length" and (length := _dataset_length(document)) is not None:
            values["seq_length"] = length
        elif any(beside.get(name) is not None for name in size.names):
            values[size.ours] = next(beside[name] for name in size.names if beside.get(name) is not None)
        elif size.ours in family.defaults:
            values[size.ours] = family.defaults[size.ours]
            assumed.append(family.name_of(size))
    if elsewhere and assumed:
        for name in (name for name in assumed if name != "seq_length"):
            why = f"is missing: it stands in the config.json of {elsewhere!r}; put that config.json beside the file"
            document.refuse(f"{prefix}.{name}", None, why)
    elif assumed:
        document.notes.append(f"the defaults of MindFormers' {family.config_class} stand for {', '.join(assumed)}")
    return values


def _number(document: Document, path: str, ours: str) -> Any:
    value = document.get(path)
    if ours in _WORDS:
        return ("softmax", "sigmoid")[value] if isinstance(value, bool) else value
    if ours in _FRACTIONS:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            document.refuse(path, value, "must be a number")
            return 1.0
        return float(value)
    return document.whole(path, 1, _LEAST.get(ours, 0))


def _dataset_length(document: Document) -> int | None:
    """The length of the sequences that the dataset returns, which MindFormers wants equal to the model's."""
    loader = "data_loader" if document.trainer == "graph" else "dataloader"
    path = f"train_dataset.{loader}.config.seq_length"
    if document.get(path) is not None:
        return document.whole(path)
    handlers = document.get(f"train_dataset.{loader}.handler", [])
    lengths = [h["seq_length"] for h in handlers if isinstance(h, Mapping) and isinstance(h.get("seq_length"), int)]
    return lengths[-1] if lengths else None


def _check_built(document: Document, prefix: str, family: Family, beside: Mapping[str, Any]) -> None:
    """Values that must be one of those modelled, where only a default or config.json says them."""
    given = document.get(prefix, {})
    table: Table = MODEL
    for name, key in table.items():
        if key.use != "only" or name in given or (key.part and key.part not in family.parts):
            continue
        value = beside.get(name, family.built_with.get(name))
        if value is None or name == "quantization_config" or key.takes(value) or _said_otherwise(name, given):
            continue
        where = "config.json" if name in beside else f"MindFormers' {family.config_class}"
        document.refuse(f"{prefix}.{name}", value, f"is the default of {where}: {key.why}", key.shown)


_SAME = {"moe_grouped_gemm": "use_gmm"}


def _check_norms(document: Document, prefix: str, family: Family, beside: Mapping[str, Any]) -> None:
    """Whether queries and keys are normalised is fixed by the family."""
    given = document.get(prefix, {})
    name = "use_qk_norm" if "use_qk_norm" in given else "qk_layernorm"
    said = given.get(name, beside.get("use_qk_norm"))
    value = family.built_with["qk_layernorm"] if said is None else said
    wanted = family.fixed.get("qk_layernorm", True)
    if value != wanted:
        how = "with" if wanted else "without"
        document.refuse(f"{prefix}.{name}", value, f"the dry run traces {family.architecture} {how} it", (wanted,))


def _said_otherwise(name: str, given: Mapping[str, Any]) -> bool:
    return _SAME.get(name) in given


def _complete(family: Family, values: dict[str, Any]) -> dict[str, Any]:
    """What follows from the other sizes."""
    values = dict(values)
    heads = max(values["num_heads"], 1)
    values.setdefault("num_kv_heads", values["num_heads"])
    if "mla" in family.parts:
        # Latent attention has no groups of heads, whatever the file or a default says of them.
        values["num_kv_heads"] = values["num_heads"]
        values["head_dim"] = values["qk_nope_head_dim"] + values["qk_rope_head_dim"]
    else:
        values.setdefault("head_dim", values["hidden_size"] // heads)
        for size in (size for size in SIZES if size.part == "mla"):
            values.pop(size.ours, None)
    if "moe" not in family.parts or not values.get("num_experts"):
        values |= {"num_experts": 0, "top_k": 0, "expert_ffn_size": 0, "shared_experts": 0}
        values |= {"first_dense_layers": values["num_layers"], "n_group": 1, "topk_group": 1, "mtp_layers": 0}
    values.setdefault("ffn_size", 0)
    if values.get("first_dense_layers", 0) > values["num_layers"]:
        values["first_dense_layers"] = values["num_layers"]
    return values


def _shared_width(document: Document, prefix: str, values: dict[str, Any]) -> None:
    """Shared experts are one MLP: its width is what counts, in experts."""
    path = f"{prefix}.moe_shared_expert_intermediate_size"
    width = document.get(path)
    if width is None or not values.get("shared_experts"):
        return
    expert = values["expert_ffn_size"]
    if not isinstance(width, int) or isinstance(width, bool) or width % max(expert, 1):
        document.refuse(path, width, f"only multiples of an expert's width are modelled ({expert})")
    else:
        values["shared_experts"] = width // expert


def _layer_pattern(document: Document, prefix: str, values: dict[str, Any]) -> None:
    """Which layers have experts: the first few are dense, all others aren't."""
    path = f"{prefix}.moe_layer_freq"
    pattern = document.get(path, 1)
    if pattern == 1 or not values["num_experts"]:
        return
    if (
        isinstance(pattern, list)
        and len(pattern) == values["num_layers"]
        and pattern == sorted(pattern)
        and set(pattern) <= {0, 1}
    ):
        values["first_dense_layers"] = pattern.count(0)
        return
    why = "only dense layers first and experts in all others are modelled"
    document.refuse(path, pattern if not isinstance(pattern, list) else "...", why, (1, "[0, 0, 0, 1, 1, ...]"))


def _activation(document: Document, prefix: str, beside: Mapping[str, Any]) -> str:
    graph = document.trainer == "graph"
    accepted = ("silu", "swiglu", "fusedswiglu") if graph else ("silu", "fusedswiglu")
    path = f"{prefix}.hidden_act"
    act = document.choice(path, "silu", accepted)
    fused = graph and any(document.get(f"{prefix}.{name}") for name in ("bias_swiglu_fusion", "use_fused_swiglu"))
    return "fusedswiglu" if act == "fusedswiglu" or (fused and act == "swiglu") else "silu"


def _dtype(document: Document, path: str, default: str) -> str:
    return _DTYPES[document.choice(path, default, _DTYPES)]
