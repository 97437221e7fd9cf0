"""Where each region of the reference model is."""

from __future__ import annotations

from hp_memory.layout.regions import EXPERT_PATH
from hp_memory.models.reference.model import Block, Model
from hp_memory.models.sites import BlockSites, Site

# region -> path of the attribute below the block
_ATTENTION = {
    "attention.norm": "attention_norm",
    "attention.qkv_proj": "attention.qkv_proj",
    "attention.rope": "attention.rope",
    "attention.core": "attention.core",
    "attention.out": "attention.out",
    "mlp.norm": "mlp_norm",
}
_DENSE = {"mlp.up": "mlp.up", "mlp.act": "mlp.act", "mlp.down": "mlp.down"}
_MOE = {
    "router.gate": "moe.router.gate",
    "router.choose": "moe.router.choose",
    "dispatch.counts": "moe.counts",
    "dispatch.permute": "moe.permute",
    "all2all.in": "moe.all2all_in",
    "compute.resort": "moe.resort",
    "gmm.up": "moe.gmm_up",
    "compute.act": "moe.act",
    "gmm.down": "moe.gmm_down",
    "combine.unsort": "moe.unsort",
    "all2all.out": "moe.all2all_out",
    "combine.unpermute": "moe.unpermute",
}
_SHARED = {
    "shared_experts.up": "moe.shared_experts.up",
    "shared_experts.act": "moe.shared_experts.act",
    "shared_experts.down": "moe.shared_experts.down",
}


def region_map(model: Model) -> tuple[BlockSites, ...]:
    """Each block's sites: one per region, and the span of the routed experts."""
    return tuple(
        BlockSites(layer, block.kind, model.layers, key, f"layers.{key}", _sites(block, f"layers.{key}"))
        for key, (layer, block) in enumerate(zip(model.layer_ids, model.layers, strict=True))
    )


def _sites(block: Block, path: str) -> tuple[Site, ...]:
    if block.kind == "dense":
        return tuple(_site(block, (region,), below, path) for region, below in (_ATTENTION | _DENSE).items())
    places = _ATTENTION | _MOE | (_SHARED if block.moe.has_shared_experts else {})
    single = tuple(_site(block, (region,), below, path) for region, below in places.items())
    return (*single, _site(block, EXPERT_PATH, "moe.experts_path", path))


def _site(block: Block, regions: tuple[str, ...], below: str, path: str) -> Site:
    *parents, attr = below.split(".")
    owner = block
    for parent in parents:
        owner = getattr(owner, parent)
    return Site(regions, owner, attr, f"{path}.{below}")
