"""Context parallelism as shape rules around the attention kernel of a MindFormers block.

Each rank has an equal part of the sequence everywhere but in the kernel. There ``colossal`` gathers keys and values of
the whole sequence for the rank's own queries; ``ulysses`` exchanges, so that the rank has the whole sequence for its
part of the heads. MindFormers' own functions bring tensors into the kernel's layout and back.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, nn

from hp_memory.errors import ConfigError
from hp_memory.estimate.tracing.shape_rules import arrive, replace_construct


def check(heads: int, size: int, method: str) -> None:
    """Raises ConfigError where the heads of one tensor parallel rank can't be spread."""
    if method == "ulysses" and heads % size:
        why = f"ulysses spreads the {heads} heads that a tensor parallel rank has, evenly"
        raise ConfigError("parallel.context", size, why)


def spread(blocks: Sequence[nn.Cell], size: int, method: str) -> None:
    """Puts the exchanges of ``size`` context parallel ranks around each block's attention kernel."""
    for block in blocks:
        _around(block.self_attention.core_attention, size, method)


def _around(kernel: nn.Cell, size: int, method: str) -> None:
    layouts = importlib.import_module("mindformers.pynative.distributed.context_parallel")
    inner = kernel.construct
    kernel._mf_runtime_input_already_in_fa_layout = True
    # MindFormers tells the kernel by a default that all models of a process share; here each is told by itself.
    _rebuilt(kernel, "BSH", 1) if method == "colossal" else _rebuilt(kernel, "BNSD", size)

    def construct(*args: Any, **kwargs: Any) -> Tensor:
        query, key, value, *rest = layouts._prepare_attention_qkv(method, args)
        if method == "colossal":
            # Batch, sequence, heads and width as one.
            key, value = (_resized(x, {1: (size, 1)}) for x in (key, value))
            return layouts._restore_attention_output(method, inner(query, key, value, *rest, **kwargs))
        # Batch, heads, sequence, width.
        query, key, value = (_resized(x, {1: (1, size), 2: (size, 1)}) for x in (query, key, value))
        out = inner(query, key, value, *rest, **kwargs)
        return layouts._restore_attention_output(method, _resized(out, {1: (size, 1), 2: (1, size)}))

    replace_construct(kernel, construct)


def _resized(x: Tensor, factors: dict[int, tuple[int, int]]) -> Tensor:
    shape = list(x.shape)
    for axis, (times, over) in factors.items():
        shape[axis] = shape[axis] * times // over
    return arrive(x, shape)


def _rebuilt(kernel: nn.Cell, layout: str, over: int) -> None:
    """Gives a kernel's cell another layout, and its fused operation that layout and a part of the heads."""
    kernel.input_layout = layout
    kernel.flash_attention = type(kernel.flash_attention)(
        head_num=kernel.head_num // over,
        scale_value=kernel.scalar_value,
        pre_tokens=kernel.pre_tokens,
        next_tokens=kernel.next_tokens,
        inner_precise=kernel.inner_precise,
        input_layout=layout,
        sparse_mode=kernel.sparse_mode,
    )
