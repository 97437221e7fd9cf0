"""Regions in the words of MindFormers' recompute settings: paths of cells, names of operations. Both ways.

A path covers whole regions, widest first. What a path covers besides (reshapes, the sum of the two experts) holds
nothing of its own.
"""

from __future__ import annotations

_ATTENTION = ("attention.qkv", "attention.core", "attention.out")

# What `select_module` replays by a cell's path. Both versions.
CELLS: tuple[tuple[tuple[str, ...], str], ...] = (
    (_ATTENTION, "self_attention"),
    (("mlp.up", "mlp.act", "mlp.down"), "mlp"),
    (("attention.norm",), "input_layernorm"),
    (("attention.core",), "self_attention.core_attention"),
    (("attention.out",), "self_attention.linear_proj"),
    (("mlp.norm",), "pre_mlp_layernorm"),
    (("mlp.up",), "mlp.linear_fc1"),
    (("mlp.down",), "mlp.linear_fc2"),
    (("shared_experts",), "mlp.shared_experts"),
)
EXPERTS = "mlp.experts"
EXPERTS_ALONE = ("dispatch.permute", "gmm.up", "compute.act", "gmm.down", "combine.unpermute")
# With expert parallelism the cell's hooks dispatch and combine: replaying it replays these too.
EXPERTS_SPREAD = (*EXPERTS_ALONE, "all2all.in", "compute.resort", "combine.unsort", "all2all.out")
# Replaying a router replays no decision: it stays saved here, as the counts do.
ROUTER = "mlp.router"

# Cells that are less than a region, and cells without anything to replay.
PARTS = (
    *("self_attention.linear_qkv", "self_attention.linear_qb", "self_attention.linear_kvb", "self_attention.linear_q"),
    *("self_attention.q_layernorm", "self_attention.k_layernorm", "self_attention.apply_rotary_emb_q"),
    *("self_attention.apply_rotary_emb_k", "self_attention.apply_rotary_pos_emb", "self_attention.q_handoff"),
    *("self_attention.k_handoff", "self_attention.v_handoff", "mlp.activation_func", "mlp.experts.activation_func"),
    *("mlp.shared_experts.linear_fc1", "mlp.shared_experts.linear_fc2", "mlp.shared_experts.activation_func"),
    *("mlp.router.moe_aux_loss_auto_scaler", "self_attention.apply_rotary_emb_q.rope"),
)
EMPTY = ("cross_attention", "pre_cross_attn_layernorm", "hidden_states_dropout")

# What 2.1's `exclude_op` saves by a cell's, method's or communication's path.
EXCLUDED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("gmm.up", "compute.act", "gmm.down"), "mlp.experts.experts_forward"),
    (("router",), ROUTER),
    (("dispatch.counts",), "mlp.experts.expert_counts.alltoall"),
    (("all2all.in",), "mlp.experts.input.alltoallsingle"),
    (("all2all.out",), "mlp.experts.output.alltoallsingle"),
    (("attention.qkv",), "self_attention.get_query_key_value_tensors"),
    *CELLS,
)
# Cells of their own only where no expert parallelism takes them over.
EXCLUDED_ALONE = ((("dispatch.permute",), "mlp.experts.permute"), (("combine.unpermute",), "mlp.experts.unpermute"))

# What 2.0's `exclude_op` saves by a part of an operation's name. The routing decision is the indices that top-k
# returns: with them saved, the counts and split sizes that a replay computes are the same integers.
OPERATIONS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("router",), ("topk",)),
    (("all2all.in", "all2all.out"), ("alltoall",)),
    (("gmm.up", "gmm.down"), ("groupedmatmul",)),
    (("attention.core",), ("flashattention",)),
)
OPERATIONS_OF_DENSE = {"flashattention"}
# Not named, and replayed by 2.0 without harm (see above).
FOLLOWS_THE_ROUTER = ("dispatch.counts",)

# What lies in a block's MTP layer, which holds a whole block.
MTP_PREFIX = "transformer_layer"
