"""The names of a block's regions, in the order in which a forward runs them. Regions tile a block.

``REGIONS_OF_KIND`` is the one list of them; which of these a model has is in its fingerprint. Outside the regions are
only the additions of branches, casts of weights, counters that no replay advances, and views without work.
"""

from __future__ import annotations

from typing import Literal

from hp_memory.errors import ConfigError

Action = Literal["recompute", "save", "offload"]
ACTIONS: tuple[Action, ...] = ("recompute", "save", "offload")

Kind = Literal["dense", "moe", "mtp"]
KINDS: tuple[Kind, ...] = ("dense", "moe", "mtp")

QKV_REGIONS = (
    "attention.qkv_proj",
    "attention.qk_norm",
    "attention.q_up",
    "attention.kv_up",
    "attention.rope",
)
ATTENTION_REGIONS = ("attention.norm", *QKV_REGIONS, "attention.core", "attention.out")
DENSE_REGIONS = ("mlp.norm", "mlp.up", "mlp.act", "mlp.down")
ROUTER_REGIONS = ("router.gate", "router.choose")
SHARED_EXPERTS_REGIONS = ("shared_experts.up", "shared_experts.act", "shared_experts.down")
EXPERT_PATH = (
    "all2all.in",
    "compute.resort",
    "gmm.up",
    "compute.act",
    "gmm.down",
    "combine.unsort",
    "all2all.out",
)
MOE_REGIONS = (
    "mlp.norm",
    *ROUTER_REGIONS,
    "dispatch.counts",
    "dispatch.permute",
    *EXPERT_PATH,
    "combine.unpermute",
    *SHARED_EXPERTS_REGIONS,
)

REGIONS_OF_KIND: dict[Kind, tuple[str, ...]] = {
    "dense": ATTENTION_REGIONS + DENSE_REGIONS,
    "moe": ATTENTION_REGIONS + MOE_REGIONS,
    "mtp": ATTENTION_REGIONS + MOE_REGIONS,
}

REGIONS: tuple[str, ...] = tuple(dict.fromkeys(ATTENTION_REGIONS + DENSE_REGIONS + MOE_REGIONS))

# A replayed choice of experts or a replayed split size could differ from the forward's (ties, non-deterministic
# kernels), and the grouped matmuls would then read other rows: saving them is correctness, not tuning. The scores that
# are compared may be replayed: gradients read them, the choice doesn't.
ALWAYS_SAVED = ("router.choose", "dispatch.counts")

GROUPS: dict[str, tuple[str, ...]] = {
    "attention": ATTENTION_REGIONS,
    "attention.qkv": QKV_REGIONS,
    **{
        group: tuple(r for r in REGIONS if r.split(".")[0] == group)
        for group in ("mlp", "router", "dispatch", "all2all", "compute", "gmm", "combine", "shared_experts")
    },
}
"""Short names: each means all of its parts, of which a model may lack some."""


def expand(name: str, path: str) -> tuple[str, ...]:
    """The regions a name stands for: itself, or all parts of a group (``all2all``: ``all2all.in`` and ``all2all.out``).

    Raises:
        ConfigError: for a name that is neither; ``path`` says where it stands in the config.
    """
    if name in GROUPS:
        return GROUPS[name]
    if name in REGIONS:
        return (name,)
    raise ConfigError(path, name, "no region has this name", (*GROUPS, *REGIONS))
