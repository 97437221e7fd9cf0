"""Where the regions are in a MindFormers PyNative model (2.0 and 2.1): DeepSeek-V3, Qwen3 and Qwen3-MoE.

Dispatch and combine of expert parallelism run in hooks around ``mlp.experts``, outside ``construct``, as methods that
an ``ExpertParallel`` object looks up on itself; so that object owns those regions. What one call computes there is
split over several methods, each a place of its own. No place covers the whole way through the experts under expert
parallelism: a layout that excludes it as one gets the widest place there is, the two grouped matmuls with the
activation, and the exchanges by themselves.

Where MindFormers computes several regions in one method, parts of ours run in its stead (``seams``). Names are in
``names``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hp_memory.errors import InstallError
from hp_memory.layout.regions import QKV_REGIONS
from hp_memory.mindformers import names
from hp_memory.mindformers.attention_map import GroupedAttention, Kernel, LatentAttention
from hp_memory.mindformers.exchange_context import keep_for_the_call
from hp_memory.mindformers.experts_map import ExpertsPath
from hp_memory.mindformers.mlp_map import Mlp, SharedExperts
from hp_memory.mindformers.names import Place
from hp_memory.mindformers.router_map import Router
from hp_memory.mindformers.seams import part_of
from hp_memory.models.sites import BlockSites, Site

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

    Methods that compute several regions are replaced by equal ones made of methods (see ``seams``).

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
    sites = _attention_sites(block, path)
    if moe:
        sites += _moe_sites(block, mlp, path)
    else:
        sites += _sites(names.DENSE, path, block=block, mlp=part_of(mlp, Mlp, f"{path}.mlp"))
    return BlockSites(layer, "mtp" if mtp else "moe" if moe else "dense", container, key, path, tuple(sites))


def _attention_sites(block: Any, path: str) -> list[Site]:
    attention = _attribute(block, "self_attention", path)
    where = f"{path}.self_attention"
    kernel = part_of(_attribute(attention, "core_attention", where), Kernel, f"{where}.core_attention")
    if hasattr(attention, "linear_kvb"):
        latent = part_of(attention, LatentAttention, where)
        span = Site(QKV_REGIONS, latent, "qkv", f"{where}.qkv")
        return [*_sites(names.LATENT_ATTENTION, path, block=block, attention=latent, kernel=kernel), span]
    grouped = part_of(attention, GroupedAttention, where)
    return _sites(names.GROUPED_ATTENTION, path, block=block, attention=grouped, kernel=kernel)


def _moe_sites(block: Any, mlp: Any, path: str) -> list[Site]:
    router, experts = (_attribute(mlp, name, f"{path}.mlp") for name in ("router", "experts"))
    inside = part_of(experts, ExpertsPath, f"{path}.mlp.experts")
    middle = _sites(names.EXPERTS, path, experts=inside)
    span = tuple(place.region for place in names.EXPERTS)
    middle.append(Site(span, inside, names.EXPERTS_SPAN, f"{path}.mlp.experts.{names.EXPERTS_SPAN}"))
    sites = _sites(names.ROUTER, path, block=block, router=part_of(router, Router, f"{path}.mlp.router"))
    exchange = _expert_parallel(experts)
    if exchange is None:
        before, after = (_sites([place], path, grouped_mlp=experts) for place in names.ALONE)
    else:
        before, after = _exchange_sites(exchange, f"{path}.mlp.experts.{type(exchange).__name__}")
    sites += [*before, *middle, *after]
    shared = getattr(mlp, "shared_experts", None)
    if shared is not None:
        part = part_of(shared, SharedExperts, f"{path}.mlp.shared_experts")
        sites += _sites(names.SHARED_EXPERTS, path, shared_experts=part)
    return sites


def _sites(places: Sequence[Place], path: str, **parts: Any) -> list[Site]:
    """A site for each place; ``parts`` are the objects that ``Place.part`` names."""
    found = []
    for place in places:
        where = ".".join(name for name in (path, names.PARTS[place.part]) if name)
        _attribute(parts[place.part], place.attr, where)
        found.append(Site((place.region,), parts[place.part], place.attr, f"{where}.{place.attr}"))
    return found


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
        for version, methods in names.EXCHANGE.items()
    }
    version = min(missing, key=lambda v: len(missing[v]))
    if missing[version]:
        raise InstallError(
            f"{path}.{missing[version][0]}: this MindFormers has no such method (looked for {version}'s)"
        )
    keep_for_the_call(exchange)
    before, after = (
        [Site((region,), exchange, name, f"{path}.{name}") for region, name in methods]
        for methods in (names.EXCHANGE[version], names.EXCHANGE_BACK)
    )
    for site in after:
        _attribute(exchange, site.attr, path)
    return before, after


def _refuse(part: Any, path: str) -> None:
    for cls in type(part).__mro__:
        if cls.__name__ in _REFUSED:
            raise InstallError(f"{path} is a {cls.__name__}: {_REFUSED[cls.__name__]}")


def _attribute(owner: Any, name: str, path: str) -> Any:
    value = getattr(owner, name, None)
    if value is None:
        where = f"{path}.{name}" if path else name
        raise InstallError(f"{where}: this MindFormers' {type(owner).__name__} has no {name!r}")
    return value
