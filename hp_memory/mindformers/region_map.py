"""Where the regions are in a MindFormers PyNative model (2.0 and 2.1): DeepSeek-V3, Qwen3 and Qwen3-MoE.

Dispatch and combine of expert parallelism run in hooks around ``mlp.experts``, outside ``construct``, as methods that
an ``ExpertParallel`` object looks up on itself; so that object owns those regions. What one call computes there is
split over several methods, each a place of its own. No place covers the whole way through the experts under expert
parallelism: a layout that excludes it as one gets the widest place there is, the two grouped matmuls with the
activation, and the exchanges by themselves.
"""

from __future__ import annotations

from typing import Any

from hp_memory.errors import InstallError
from hp_memory.mindformers.exchange_context import keep_for_the_call
from hp_memory.mindformers.experts_map import experts_path
from hp_memory.models.sites import BlockSites, Site

_ATTENTION = (
    ("attention.norm", "input_layernorm"),
    ("attention.qkv", "self_attention.get_query_key_value_tensors"),
    ("attention.core", "self_attention.core_attention"),
    ("attention.out", "self_attention.linear_proj"),
    ("mlp.norm", "pre_mlp_layernorm"),
)
_DENSE = (("mlp.up", "mlp.linear_fc1"), ("mlp.act", "mlp.activation_func"), ("mlp.down", "mlp.linear_fc2"))
_ALONE = (("dispatch.permute", "permute"), ("combine.unpermute", "unpermute"))

# Methods of ``ExpertParallel``, by version, in the order in which a forward calls them.
_EXPERT_PARALLEL: dict[str, tuple[tuple[str, str], ...]] = {
    "2.0": (
        ("dispatch.permute", "_pad_inputs"),
        ("dispatch.permute", "_permute"),
        ("dispatch.counts", "_count_tokens_per_expert"),
        ("dispatch.counts", "_counts_a2a"),
        ("dispatch.counts", "_compute_token_splits"),
        ("dispatch.counts", "_build_resort_index"),
        ("all2all.in", "_main_a2a"),
        ("compute.resort", "_resort_after_dispatch"),
    ),
    "2.1": (
        ("dispatch.permute", "_add_safe_tokens"),
        ("dispatch.permute", "_permute"),
        ("dispatch.counts", "_count_tokens_per_expert"),
        ("dispatch.counts", "_counts_a2a"),
        ("dispatch.counts", "_compute_group_list"),
        ("dispatch.counts", "_host_token_splits"),
        ("all2all.in", "_main_a2a"),
        ("compute.resort", "_resort_after_dispatch"),
    ),
}
_EXPERT_PARALLEL_BACK = (
    ("combine.unsort", "_unsort_for_combine"),
    ("all2all.out", "_combine_a2a"),
    ("combine.unpermute", "_finalize_combine"),
)

# Classes whose forward has no place for these regions, and why.
_REFUSED = {
    "DeredundancyExpertParallel": "alltoall_deredundancy dispatches and combines in bodies without regions",
    "HyperConnectionTransformerLayer": "hyper-connections mix residual streams between the regions",
}


def gpt_model(model: Any) -> Any:
    """MindFormers' ``GPTModel`` inside a model class.

    Raises:
        InstallError: if there is none.
    """
    for _, cell in model.cells_and_names():
        if type(cell).__name__ == "GPTModel":
            return cell
    raise InstallError(
        f"{type(model).__name__} has no GPTModel inside: only MindFormers' PyNative GPT models are mapped"
    )


def region_map(model: Any) -> tuple[BlockSites, ...]:
    """Every block of this process's part of the model, with its regions; see ``blocks_of``."""
    gpt = gpt_model(model)
    return blocks_of(_attribute(gpt, "decoder", ""), getattr(gpt, "mtp", None))


def blocks_of(decoder: Any, mtp: Any | None = None) -> tuple[BlockSites, ...]:
    """The blocks of a decoder (a pipeline stage holds some of them only) and of the MTP layers after it.

    The experts' forward is replaced by an equal one made of methods (see ``mindformers_experts``).

    Raises:
        InstallError: for a model, a dispatch or a version of MindFormers that isn't mapped, naming the attribute.
    """
    layers = _attribute(decoder, "layers", "decoder")._cells
    blocks = [_block(decoder.layers, key, int(key), f"decoder.layers.{key}", layer) for key, layer in layers.items()]
    for key, layer in mtp.layers._cells.items() if mtp is not None else ():
        path = f"mtp.layers.{key}.transformer_layer"
        inner = _attribute(layer, "transformer_layer", f"mtp.layers.{key}")
        # MTP layers follow the decoder's in the numbering, as in MindFormers' own recompute settings.
        blocks.append(_block(layer, "transformer_layer", decoder.config.num_layers + int(key), path, inner, mtp=True))
    return tuple(blocks)


def _block(container: Any, key: str, layer: int, path: str, block: Any, mtp: bool = False) -> BlockSites:
    _refuse(block, path)
    mlp = _attribute(block, "mlp", path)
    moe = hasattr(mlp, "router")
    sites = [_site(block, path, region, name) for region, name in _ATTENTION]
    sites += _moe_sites(mlp, f"{path}.mlp") if moe else [_site(block, path, region, name) for region, name in _DENSE]
    return BlockSites(layer, "mtp" if mtp else "moe" if moe else "dense", container, key, path, tuple(sites))


def _moe_sites(mlp: Any, path: str) -> list[Site]:
    experts = _attribute(mlp, "experts", path)
    inside = experts_path(experts, f"{path}.experts")
    names = (("gmm.up", "gmm_up"), ("compute.act", "act"), ("gmm.down", "gmm_down"))
    middle = [Site((region,), inside, name, f"{path}.experts.{name}") for region, name in names]
    middle.append(Site(tuple(region for region, _ in names), inside, "path", f"{path}.experts.path"))
    exchange = _expert_parallel(experts)
    sites = [_site(mlp, path, "router", "router")]
    if exchange is None:
        before, after = ([_site(experts, f"{path}.experts", *place)] for place in _ALONE)
    else:
        before, after = _exchange_sites(exchange, f"{path}.experts.{type(exchange).__name__}")
    sites += [*before, *middle, *after]
    if getattr(mlp, "shared_experts", None) is not None:
        sites.append(_site(mlp, path, "shared_experts", "shared_experts"))
    return sites


def _expert_parallel(experts: Any) -> Any | None:
    """The object whose methods dispatch and combine around ``experts``, or None without expert parallelism."""
    hooks = getattr(experts, "_forward_pre_hook", {})
    for hook in hooks.values():
        owner = getattr(getattr(hook, "func", hook), "__self__", None)
        if hasattr(owner, "_token_dispatch"):
            return owner
    return None


def _exchange_sites(exchange: Any, path: str) -> tuple[list[Site], list[Site]]:
    _refuse(exchange, path)
    if getattr(exchange, "enable_async_d2h", False):
        raise InstallError(
            f"{path}: expert_parallel_async_d2h reads split sizes on a second stream, outside every region"
        )
    missing: dict[str, list[str]] = {
        version: [name for _, name in methods if not hasattr(exchange, name)]
        for version, methods in _EXPERT_PARALLEL.items()
    }
    version = min(missing, key=lambda v: len(missing[v]))
    if missing[version]:
        raise InstallError(
            f"{path}.{missing[version][0]}: this MindFormers has no such method (looked for {version}'s)"
        )
    keep_for_the_call(exchange)
    return tuple(
        [_site(exchange, path, *place) for place in places]
        for places in (_EXPERT_PARALLEL[version], _EXPERT_PARALLEL_BACK)
    )


def _refuse(part: Any, path: str) -> None:
    for cls in type(part).__mro__:
        if cls.__name__ in _REFUSED:
            raise InstallError(f"{path} is a {cls.__name__}: {_REFUSED[cls.__name__]}")


def _site(owner: Any, path: str, region: str, name: str) -> Site:
    *parents, attr = name.split(".")
    for parent in parents:
        owner, path = _attribute(owner, parent, path), f"{path}.{parent}"
    _attribute(owner, attr, path)
    return Site((region,), owner, attr, f"{path}.{attr}")


def _attribute(owner: Any, name: str, path: str) -> Any:
    value = getattr(owner, name, None)
    if value is None:
        where = f"{path}.{name}" if path else name
        raise InstallError(f"{where}: this MindFormers' {type(owner).__name__} has no {name!r}")
    return value
