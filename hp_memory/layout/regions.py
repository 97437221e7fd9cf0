"""The names of a block's regions, in the order in which a forward runs them. Regions tile a block."""

from __future__ import annotations

from typing import Literal

from hp_memory.errors import ConfigError

Action = Literal["recompute", "save"]
ACTIONS: tuple[Action, ...] = ("recompute", "save")

Kind = Literal["dense", "moe", "mtp"]
KINDS: tuple[Kind, ...] = ("dense", "moe", "mtp")

ATTENTION_REGIONS = ("attention.norm", "attention.qkv", "attention.core", "attention.out")
DENSE_REGIONS = ("mlp.norm", "mlp.up", "mlp.act", "mlp.down")
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
    "router",
    "dispatch.counts",
    "dispatch.permute",
    *EXPERT_PATH,
    "combine.unpermute",
    "shared_experts",
)

REGIONS_OF_KIND: dict[Kind, tuple[str, ...]] = {
    "dense": ATTENTION_REGIONS + DENSE_REGIONS,
    "moe": ATTENTION_REGIONS + MOE_REGIONS,
    "mtp": ATTENTION_REGIONS + MOE_REGIONS,
}

REGIONS: tuple[str, ...] = tuple(dict.fromkeys(ATTENTION_REGIONS + DENSE_REGIONS + MOE_REGIONS))

# A replayed routing decision or split size could differ from the forward's (ties, non-deterministic kernels), and the
# grouped matmuls would then read other rows: saving them is correctness, not tuning.
ALWAYS_SAVED = ("router", "dispatch.counts")

GROUPS: dict[str, tuple[str, ...]] = {
    group: tuple(r for r in REGIONS if r.split(".")[0] == group)
    for group in ("attention", "mlp", "dispatch", "all2all", "compute", "gmm", "combine")
}


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
