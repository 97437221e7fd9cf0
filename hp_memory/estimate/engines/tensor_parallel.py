"""Tensor parallelism with sequence parallelism as shape rules around the parts of a MindFormers block.

Built with one rank's heads and widths, a block needs four collectives along the sequence: rows are gathered before
attention and before a column-parallel matrix, and reduced and scattered after a row-parallel one. In MindFormers the
latter two belong to the matrices' own cells, so their regions include them here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, nn

from hp_memory.estimate.tracing.shape_rules import arrive, replace_construct


def _gather(x: Tensor, size: int) -> Tensor:
    return arrive(x, (x.shape[0] * size, *x.shape[1:]))


def _scatter(x: Tensor, size: int) -> Tensor:
    return arrive(x, (x.shape[0] // size, *x.shape[1:]))


def spread(gpt: Any, blocks: Sequence[nn.Cell], size: int) -> None:
    """Puts the collectives of ``size`` tensor parallel ranks around the parts of these blocks and the model's ends."""
    for block in blocks:
        _before(block.self_attention, size)
        _after(block.self_attention.linear_proj, size)
        shared = getattr(block.mlp, "shared_experts", None)
        for mlp in (block.mlp, shared):
            if mlp is not None and hasattr(mlp, "linear_fc1"):
                _before(mlp.linear_fc1, size)
                _after(mlp.linear_fc2, size)
    _after(gpt.embedding, size)
    _before(gpt.output_layer, size)


def _before(cell: nn.Cell, size: int) -> None:
    """Gathers the rows that a cell's first argument has on all ranks."""
    inner = cell.construct

    def construct(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return inner(_gather(x, size), *args, **kwargs)

    replace_construct(cell, construct)


def _after(cell: nn.Cell, size: int) -> None:
    """Scatters the rows of a cell's result over the ranks."""
    inner = cell.construct

    def construct(*args: Any, **kwargs: Any) -> Any:
        return _scatter(inner(*args, **kwargs), size)

    replace_construct(cell, construct)
