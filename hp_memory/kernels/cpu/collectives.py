"""Collectives with gradients, made of the few primitives that MindSpore's CPU backend (mccl) has.

That backend reduces, gathers lists and sends; all-to-all, reduce-scatter and gathers into one tensor are built from
these. Splits are host integers. A failed collective leaves ranks out of step with each other: the only safe reaction
is to end the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore.mint.distributed as dist
from mindspore import Tensor, mint, ops

from hp_memory.kernels.groups import Group
from hp_memory.mindspore.private import Function as _Function


class _AllToAll(_Function):
    """Saves nothing: the gradient travels back with the split sizes swapped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, out_splits: tuple[int, ...], in_splits: tuple[int, ...], group: Group) -> Tensor:
        ctx.way = (out_splits, in_splits, group)
        return exchange(x, out_splits, in_splits, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        out_splits, in_splits, group = ctx.way
        return exchange(grad, in_splits, out_splits, group), None, None, None


def all_to_all_single(x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], group: Group) -> Tensor:
    """Sends ``in_splits[j]`` rows of x to the group's j-th rank and receives ``out_splits[j]`` rows from it.

    Returns:
        (sum(out_splits), ...), ordered by sender. Splits may be uneven or zero.
    """
    return _AllToAll.apply(x, tuple(out_splits), tuple(in_splits), group)


def exchange(x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int], group: Group) -> Tensor:
    """The all-to-all itself, without a gradient."""
    starts = [sum(in_splits[:j]) for j in range(group.size + 1)]
    pieces: list[Tensor | None] = [None] * group.size
    pieces[group.index] = x[starts[group.index] : starts[group.index + 1]]
    # mccl buffers what is sent, so every rank may send everything before it receives anything.
    for step in range(1, group.size):
        j = (group.index + step) % group.size
        if in_splits[j]:
            dist.send(x[starts[j] : starts[j + 1]].contiguous(), group.ranks[j], group=group.name)
    for step in range(1, group.size):
        j = (group.index - step) % group.size
        if out_splits[j]:
            pieces[j] = ops.zeros((out_splits[j], *x.shape[1:]), x.dtype)
            dist.recv(pieces[j], group.ranks[j], group=group.name)
    filled = [piece for piece in pieces if piece is not None and piece.shape[0]]
    return mint.cat(filled, 0) if filled else ops.zeros((0, *x.shape[1:]), x.dtype)


def gather_list(x: Tensor, group: Group) -> list[Tensor]:
    """Every rank's x, in the group's order; without a gradient."""
    if group.size == 1:
        return [x]
    parts = [ops.zeros(x.shape, x.dtype) for _ in group.ranks]
    dist.all_gather(parts, x.contiguous(), group=group.name)
    return parts


def reduce_sum(x: Tensor, group: Group) -> Tensor:
    """The sum of every rank's x, as a new tensor; without a gradient."""
    total = x + 0
    if group.size > 1:
        dist.all_reduce(total, group=group.name)
    return total


def _own_part(x: Tensor, group: Group) -> Tensor:
    return mint.chunk(x, group.size, 0)[group.index].contiguous()


class _AllGather(_Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return mint.cat(gather_list(x, group), 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _own_part(reduce_sum(grad, ctx.group), ctx.group), None


class _ReduceScatter(_Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _own_part(reduce_sum(x, group), group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return mint.cat(gather_list(grad, ctx.group), 0), None


class _AllReduce(_Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return reduce_sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return reduce_sum(grad, ctx.group), None


def all_gather(x: Tensor, group: Group) -> Tensor:
    """The group's x, one after the other along the first dimension."""
    return _AllGather.apply(x, group)


def reduce_scatter(x: Tensor, group: Group) -> Tensor:
    """This rank's equal part (along the first dimension) of the sum of the group's x."""
    return _ReduceScatter.apply(x, group)


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """The sum of the group's x."""
    return _AllReduce.apply(x, group)
