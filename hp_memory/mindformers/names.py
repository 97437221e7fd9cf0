"""What MindFormers calls our regions: the only table of it. No MindSpore here.

Who needs a name takes it from here, in both directions:

* ``PLACES``, ``EXCHANGE``: where a PyNative model computes a region (``region_map``). A place is an attribute of the
  block, or of a part (``PARTS``) that ``seams`` puts in place of a method of MindFormers.
* ``modules(version, use)``: paths of MindFormers' recompute settings, widest first, and the regions that run inside
  them: ``select_module`` replays (``use="replay"``), 2.1's ``exclude_op`` saves (``use="save"``). A reader goes
  through ``MODULES``, ``FRAGMENTS`` (cells that are less than a region) and ``EMPTY``. A path may cover regions that a
  layer lacks: intersect with its fingerprint's.
* ``OPERATIONS``: parts of operations' names in 2.0's ``exclude_op``.
* ``CELLS``: cells of MindFormers' graph models.

A new version is a key of ``EXCHANGE``; what else it calls otherwise is a row with that version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hp_memory.layout import GROUPS
from hp_memory.layout.regions import QKV_REGIONS

Part = Literal["block", "attention", "kernel", "router", "mlp", "shared_experts", "experts", "grouped_mlp"]
PARTS: Mapping[Part, str] = {
    "block": "",
    "attention": "self_attention",
    "kernel": "self_attention.core_attention",
    "router": "mlp.router",
    "mlp": "mlp",
    "shared_experts": "mlp.shared_experts",
    "experts": "mlp.experts",
    "grouped_mlp": "mlp.experts",
}
"""Where each part stands below a block. ``experts`` is the path that replaces ``experts_forward``."""


@dataclass(frozen=True)
class Place:
    """A method or a cell, ``attr`` of ``part``, that computes ``region`` or, with other places, a part of it."""

    region: str
    part: Part
    attr: str


_BOTH_NORMS = (Place("attention.norm", "block", "input_layernorm"), Place("mlp.norm", "block", "pre_mlp_layernorm"))
_KERNEL = (
    Place("attention.rope", "kernel", "lay_out"),
    Place("attention.core", "kernel", "core"),
    Place("attention.out", "kernel", "merge"),
    Place("attention.out", "attention", "out"),
)
GROUPED_ATTENTION = (
    _BOTH_NORMS[0],
    Place("attention.qkv_proj", "attention", "qkv_proj"),
    Place("attention.qk_norm", "attention", "qk_norm"),
    Place("attention.rope", "attention", "rope"),
    *_KERNEL,
)
LATENT_ATTENTION = (
    _BOTH_NORMS[0],
    Place("attention.qkv_proj", "attention", "qkv_proj"),
    Place("attention.qk_norm", "attention", "q_norm"),
    Place("attention.q_up", "attention", "q_up"),
    Place("attention.rope", "attention", "q_rope"),
    Place("attention.qk_norm", "attention", "kv_norm"),
    Place("attention.kv_up", "attention", "kv_up"),
    Place("attention.rope", "attention", "k_rope"),
    *_KERNEL,
)
DENSE = (
    _BOTH_NORMS[1],
    Place("mlp.up", "mlp", "up"),
    Place("mlp.act", "mlp", "act"),
    Place("mlp.down", "mlp", "down"),
)
ROUTER = (
    _BOTH_NORMS[1],
    Place("router.gate", "router", "gate"),
    Place("router.choose", "router", "choose"),
)
EXPERTS = (
    Place("gmm.up", "experts", "gmm_up"),
    Place("compute.act", "experts", "act"),
    Place("gmm.down", "experts", "gmm_down"),
)
EXPERTS_SPAN = "path"
"""The method of ``experts`` that computes all of ``EXPERTS``."""
# Without expert parallelism the experts' cell sorts the tokens itself.
ALONE = (Place("dispatch.permute", "grouped_mlp", "permute"), Place("combine.unpermute", "grouped_mlp", "unpermute"))
SHARED_EXPERTS = (
    Place("shared_experts.up", "shared_experts", "up"),
    Place("shared_experts.act", "shared_experts", "act"),
    Place("shared_experts.down", "shared_experts", "down"),
)

# Methods of ``ExpertParallel``, by version, in the order in which a forward calls them.
EXCHANGE: Mapping[str, tuple[tuple[str, str], ...]] = {
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
EXCHANGE_BACK = (
    ("combine.unsort", "_unsort_for_combine"),
    ("all2all.out", "_combine_a2a"),
    ("combine.unpermute", "_finalize_combine"),
)
EXPERT_PARALLEL_ONLY = ("dispatch.counts", "all2all.in", "compute.resort", "combine.unsort", "all2all.out")
"""Regions that exist only where experts are spread over ranks."""

FOLLOWS_THE_ROUTER = ("dispatch.counts",)
"""Replayed by MindFormers without harm: from saved indices a replay counts the same integers."""

OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "topk": ("router.choose",),
    "alltoall": ("all2all.in", "all2all.out"),
    "groupedmatmul": ("gmm.up", "gmm.down"),
    "flashattention": ("attention.core",),
}
"""2.0's ``exclude_op``: the routing decision is the indices that top-k returns (see ``FOLLOWS_THE_ROUTER``)."""

Use = Literal["replay", "save"]


@dataclass(frozen=True)
class Module:
    """A path below a block and the regions that run inside what it names.

    Attributes:
        save_only: no cell, so only 2.1's ``exclude_op`` takes it.
        latent: only with (True) or without (False) latent attention; None with both.
        spread: only with (True) or without (False) expert parallelism; None with both.
    """

    path: str
    regions: tuple[str, ...]
    save_only: bool = False
    latent: bool | None = None
    spread: bool | None = None

    def exists(self, regions: Sequence[str]) -> bool:
        """Whether there is such a path in a layer with these regions, of which it may cover none."""
        return self.latent in (None, "attention.q_up" in regions) and self.spread in (None, "all2all.in" in regions)


_EXPERTS = (*GROUPS["dispatch"], *GROUPS["all2all"], *GROUPS["compute"], *GROUPS["gmm"], *GROUPS["combine"])
MODULES = (
    Module("self_attention", (*QKV_REGIONS, "attention.core", "attention.out")),
    Module("self_attention.get_query_key_value_tensors", QKV_REGIONS, save_only=True, latent=True),
    Module(
        "self_attention.get_query_key_value_tensors",
        ("attention.qkv_proj", "attention.qk_norm"),
        save_only=True,
        latent=False,
    ),
    Module("self_attention.linear_qkv", ("attention.qkv_proj",)),
    Module("self_attention.linear_qb", ("attention.q_up",), latent=True),
    Module("self_attention.linear_kvb", ("attention.kv_up",), latent=True),
    Module("self_attention.core_attention", ("attention.core",)),
    Module("self_attention.linear_proj", ("attention.out",)),
    Module("input_layernorm", ("attention.norm",)),
    Module("pre_mlp_layernorm", ("mlp.norm",)),
    Module(
        "mlp",
        ("mlp.up", "mlp.act", "mlp.down", *GROUPS["router"], *_EXPERTS, *GROUPS["shared_experts"]),
    ),
    Module("mlp.linear_fc1", ("mlp.up",)),
    Module("mlp.linear_fc2", ("mlp.down",)),
    Module("mlp.router", GROUPS["router"]),
    Module("mlp.router.topk", ("router.choose",), save_only=True),
    Module("mlp.experts", _EXPERTS),
    Module("mlp.experts.experts_forward", ("gmm.up", "compute.act", "gmm.down"), save_only=True),
    # Expert parallelism takes these over: the cell's own methods aren't called then.
    Module("mlp.experts.permute", ("dispatch.permute",), save_only=True, spread=False),
    Module("mlp.experts.unpermute", ("combine.unpermute",), save_only=True, spread=False),
    Module("mlp.experts.expert_counts.alltoall", ("dispatch.counts",), save_only=True, spread=True),
    Module("mlp.experts.input.alltoallsingle", ("all2all.in",), save_only=True, spread=True),
    Module("mlp.experts.output.alltoallsingle", ("all2all.out",), save_only=True, spread=True),
    Module("mlp.shared_experts", GROUPS["shared_experts"]),
    Module("mlp.shared_experts.linear_fc1", ("shared_experts.up",)),
    Module("mlp.shared_experts.linear_fc2", ("shared_experts.down",)),
)
"""Widest first, so that a run of regions is covered by as few paths as there are."""

MTP_PREFIX = "transformer_layer"
"""Where a MTP layer holds the block: its paths begin with this."""

# Cells that are less than a region, and cells without anything to replay.
FRAGMENTS = (
    *("self_attention.linear_q", "self_attention.q_layernorm", "self_attention.k_layernorm"),
    *("self_attention.apply_rotary_emb_q", "self_attention.apply_rotary_emb_k", "self_attention.apply_rotary_pos_emb"),
    *("self_attention.apply_rotary_emb_q.rope", "self_attention.q_handoff", "self_attention.k_handoff"),
    *("self_attention.v_handoff", "mlp.activation_func", "mlp.experts.activation_func"),
    *("mlp.shared_experts.activation_func", "mlp.router.moe_aux_loss_auto_scaler"),
)
EMPTY = ("cross_attention", "pre_cross_attn_layernorm", "hidden_states_dropout")


def modules(version: str, use: Use, regions: Sequence[str]) -> tuple[Module, ...]:
    """The paths that a version takes for a use, in a model whose blocks have ``regions``.

    2.0 excludes operations, not paths: it has none for ``save``.
    """
    if use == "save" and version == "2.0":
        return ()
    return tuple(m for m in MODULES if (use == "save" or not m.save_only) and m.exists(regions))


CELLS: Mapping[str, str] = {
    "attention.norm": "input_layernorm",
    "attention.qkv_proj": "self_attention.linear_qkv",
    "attention.q_up": "self_attention.linear_qb",
    "attention.kv_up": "self_attention.linear_kvb",
    "attention.core": "self_attention.core_attention",
    "attention.out": "self_attention.linear_proj",
    "mlp.norm": "pre_mlp_layernorm",
    "mlp.up": "mlp.linear_fc1",
    "mlp.act": "mlp.activation_func",
    "mlp.down": "mlp.linear_fc2",
    "router": "mlp.router",
    "shared_experts.up": "mlp.shared_experts.linear_fc1",
    "shared_experts.act": "mlp.shared_experts.activation_func",
    "shared_experts.down": "mlp.shared_experts.linear_fc2",
}
"""Region, or group of regions that one cell computes -> the cell below a block of a graph model.

Their experts are one ``Morph``, which has no cells inside.
"""
