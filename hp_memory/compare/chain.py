"""What the design document's chain, all2all -> resort -> gmm, holds in each of its cases: measured, and expected."""

from __future__ import annotations

from dataclasses import dataclass

import mindspore as ms
from mindspore import Parameter, Tensor, mint, ops

from hp_memory.activation import Held, checkpoint_exclude_wrapper, checkpoint_wrapper, observe, region
from hp_memory.kernels.groups import ALONE, Group
from hp_memory.models.reference.chain import Chain
from hp_memory.models.reference.layers import RmsNorm
from hp_memory.models.reference.moe import Moe
from hp_memory.models.reference.saved import CHAIN, CHAIN_REGIONS, Expected, expected_in_chain, sizes
from hp_memory.models.settings import ModelSettings

_ATTRIBUTES = dict(zip(CHAIN_REGIONS, ("all2all_in", "resort", "gmm_up"), strict=True))
_NAMES = (*CHAIN_REGIONS, f"{CHAIN_REGIONS[0]}..{CHAIN_REGIONS[-1]}")


@dataclass(frozen=True)
class ChainResult:
    """One case: the activations found between the chain's ends, and those that should be there."""

    case: str
    found: tuple[Held, ...]
    expected: tuple[Expected, ...]

    @property
    def agrees(self) -> bool:
        """Whether both are the same set."""
        return sorted(map(_key, self.found)) == sorted(map(_key, self.expected))


def measure_chain(model: ModelSettings, group: Group = ALONE, tokens: int = 64) -> list[ChainResult]:
    """Runs every case once, on one rank or (together) on those that share the experts. No parameter changes."""
    return [_measure(case, model, group, tokens) for case in CHAIN]


def _measure(case: str, model: ModelSettings, group: Group, tokens: int) -> ChainResult:
    moe = Moe(model, group)
    chain = Chain(moe, RmsNorm(model.hidden_size, model.norm_eps))
    _wrap(chain, case)
    # Every expert gets a share, so that all ranks have rows.
    copies = tokens * model.top_k
    per_expert = [copies // model.num_experts] * model.num_experts
    per_expert[0] += copies - sum(per_expert)
    metadata = moe.counts(Tensor(per_expert, ms.int32))
    rows = Parameter(ops.ones((copies, model.hidden_size), ms.float32), name="rows")
    checkpointed = checkpoint_wrapper(chain, name="chain")
    step = ms.value_and_grad(lambda: mint.sum(checkpointed(rows * 1.0, *metadata)), None, [rows, moe.up_weight])
    step()  # the first forward learns which outputs a replay reads
    with observe() as observation:
        step()
    found = tuple(h for h in observation.held if h.region in _NAMES and h.dtype == "float32")
    values = sizes(model, 1, moe.received_rows, group.size)
    return ChainResult(case, found, tuple(expected_in_chain(case, values)))


def _wrap(chain: Chain, case: str) -> None:
    if case == "region_exclude":
        object.__setattr__(chain, "path", checkpoint_exclude_wrapper(chain.path, name=_NAMES[-1]))
        return
    options = {
        "op_exclude, inputs kept": {"save_output": True, "remake_inputs": False},
        "chain_exclude, outputs kept": {"save_output": True},
    }.get(case, {})
    for name, attr in _ATTRIBUTES.items():
        target = getattr(chain.moe, attr)
        if case.startswith("op_exclude") and name == "compute.resort":
            wrapped = region(target, name=name)
        else:
            wrapped = checkpoint_exclude_wrapper(target, name=name, **options)
        object.__setattr__(chain.moe, attr, wrapped)


def _key(entry: Held | Expected) -> tuple[str, tuple[int, ...], int, str]:
    return entry.region, entry.shape, entry.nbytes, entry.reason
