"""Puts CPU collectives where MindFormers looks for Ascend's, in a job of several processes.

MindSpore's CPU backend is joined by another name, has no all-to-all, and no barrier among the operations that
MindFormers' checkpoints call.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import Tensor, mint
from mindspore.communication import get_process_group_ranks, get_rank, init
from mindspore.mint import distributed as dist

from hp_memory.kernels.cpu import collectives
from hp_memory.kernels.groups import Group
from hp_memory.train.process import know_own_rank

_TRAINER = "mindformers.pynative.trainer.trainer"
# They import MindFormers' barrier by name; its operation has no CPU kernel.
_WITH_BARRIERS = (
    "mindformers.dataset.dataloader.blended_megatron_dataloader",
    "mindformers.dataset.blended_datasets.blended_megatron_dataset_builder",
)


def join() -> None:
    """Joins the job that msrun started, once. In msrun's scheduler it never returns."""
    if not dist.is_initialized():
        ms.set_device("CPU")
        init("mccl")
        know_own_rank()


def apply() -> None:
    """Replaces what MindFormers calls; ``join`` comes first."""
    communication: Any = importlib.import_module("mindspore.ops.communication")
    communication.all_to_all_single, communication.all_to_all = all_to_all_single, all_to_all
    importlib.import_module("mindformers.utils.parallel_utils").comm_func.barrier = dist.barrier
    for name in _WITH_BARRIERS:
        vars(importlib.import_module(name))["skip_barrier_controller"] = lambda times=1: dist.barrier()
    trainer: Any = importlib.import_module(_TRAINER)
    # Joined already; MindFormers' call names no backend, which means Ascend's.
    trainer.init_process_group = lambda: None


def all_to_all_single(
    output: Any,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: str | None = None,
    async_op: bool = False,
) -> tuple[Tensor, None]:
    """As MindSpore's, not in place; it is done when it returns."""
    mine = _group(group)
    even = [input.shape[0] // mine.size] * mine.size
    return collectives.all_to_all_single(input, output_split_sizes or even, input_split_sizes or even, mine), None


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: str | None = None,
    async_op: bool = False,
) -> tuple[list[Tensor], None]:
    """As MindSpore's, not in place; it is done when it returns."""
    incoming, outgoing = ([tensor.shape[0] for tensor in side] for side in (output_tensor_list, input_tensor_list))
    received = collectives.all_to_all_single(mint.cat(list(input_tensor_list)), incoming, outgoing, _group(group))
    return list(mint.split(received, incoming)), None


def _group(name: str | None) -> Group:
    name = name or ms.communication.GlobalComm.WORLD_COMM_GROUP
    ranks = tuple(get_process_group_ranks(name))
    return Group(ranks, ranks.index(get_rank()), name)
