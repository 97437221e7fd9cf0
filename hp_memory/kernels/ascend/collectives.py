"""HCCL's collectives, under the names and with the arguments that ``hp_memory.kernels.cpu.collectives`` documents."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore.mint.distributed as dist
from mindspore import Tensor, mint
from mindspore.communication import comm_func as functional

from hp_memory.kernels.groups import Group


def all_to_all_single(x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], group: Group) -> Tensor:
    if group.size == 1:
        return x + 0
    shape = (sum(out_splits), *x.shape[1:])
    return functional.all_to_all_single_with_output_shape(shape, x, list(out_splits), list(in_splits), group.name)[0]


def all_gather(x: Tensor, group: Group) -> Tensor:
    return functional.all_gather_into_tensor(x, group=group.name)[0]


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    return functional.reduce_scatter_tensor(x, group=group.name)[0]


def all_reduce(x: Tensor, group: Group) -> Tensor:
    return functional.all_reduce(x, group=group.name)[0]


def gather_list(x: Tensor, group: Group) -> list[Tensor]:
    if group.size == 1:
        return [x]
    parts = [mint.zeros_like(x) for _ in group.ranks]
    dist.all_gather(parts, x, group=group.name)
    return parts


def reduce_sum(x: Tensor, group: Group) -> Tensor:
    total = x + 0
    if group.size > 1:
        dist.all_reduce(total, group=group.name)
    return total
