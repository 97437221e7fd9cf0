"""Puts CPU stand-ins where MindFormers looks for Ascend kernels; each only if the real one doesn't run here.

Cells keep ``self.topk = mint.topk`` from their constructors, so this comes before a model is built. Names that
MindFormers imported by value are replaced in the importing module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops

from hp_memory.mindformers import cpu_grads, cpu_kernels, cpu_ops

_MOE = "mindformers.pynative.transformers.moe"
_LAYERS = "mindformers.pynative.layers"

# (module that imported the name by value, name); the stand-in has the same name in cpu_kernels.
IMPORTED: tuple[tuple[str, str], ...] = (
    (f"{_MOE}.experts", "GroupedMatmul"),
    (f"{_LAYERS}.flash_attention", "FlashAttentionScore"),
    (f"{_LAYERS}.layer_norm", "rms_norm"),
    (f"{_LAYERS}.layer_norm", "layer_norm"),
)


@dataclass(frozen=True)
class _Kernel:
    owner: Any
    name: str
    stand_in: Callable[..., Any]
    probe: Callable[[], Any]


def _floats(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32))


def _kernels() -> tuple[_Kernel, ...]:
    f, row, ids = _floats(2, 4), _floats(4), Tensor(np.array([[0, 1], [1, 0]], np.int64))
    functional = mint.nn.functional
    return (
        _Kernel(mint, "histc", cpu_ops.histc, lambda: mint.histc(ids, bins=2, min=0, max=2)),
        _Kernel(mint, "argsort", cpu_ops.argsort, lambda: mint.argsort(row, stable=True)),
        _Kernel(mint, "sort", cpu_ops.sort, lambda: mint.sort(row)[0]),
        _Kernel(mint, "topk", cpu_ops.topk, lambda: mint.topk(f, 2)[0]),
        _Kernel(mint, "floor_divide", cpu_ops.floor_divide, lambda: mint.floor_divide(ids, 2)),
        _Kernel(mint, "cumsum", cpu_ops.cumsum, lambda: mint.cumsum(ids, 0)),
        _Kernel(mint, "arange", cpu_ops.arange, lambda: mint.arange(0, 4)),
        _Kernel(mint, "index_select", cpu_ops.index_select, lambda: mint.index_select(f, 0, ids[0])),
        _Kernel(mint, "scatter_add", cpu_ops.scatter_add, lambda: mint.scatter_add(f, 1, ids, f[:, :2])),
        _Kernel(mint, "stack", cpu_ops.stack, lambda: mint.stack([f, f])),
        _Kernel(mint, "outer", cpu_ops.outer, lambda: mint.outer(row, row)),
        _Kernel(mint, "clone", cpu_ops.clone, lambda: mint.clone(f)),
        _Kernel(mint, "ones_like", cpu_ops.ones_like, lambda: mint.ones_like(f)),
        _Kernel(mint, "zeros_like", cpu_ops.zeros_like, lambda: mint.zeros_like(f)),
        _Kernel(ops, "swiglu", cpu_kernels.swiglu, lambda: ops.swiglu(f, -1)),
        _Kernel(ops, "rms_norm", cpu_kernels.rms_norm, lambda: ops.rms_norm(f, row, 1e-6)[0]),
        _Kernel(functional, "gelu", cpu_kernels.gelu, lambda: functional.gelu(f)),
        _Kernel(functional, "layer_norm", cpu_kernels.layer_norm, lambda: functional.layer_norm(f, (4,), row, row)),
        _Kernel(Tensor, "clone", cpu_ops.clone, lambda: _floats(2).clone()),
        _Kernel(Tensor, "zero_", cpu_ops.zero_, lambda: _floats(2).zero_()),
        _Kernel(Tensor, "fill_", cpu_ops.fill_, lambda: _floats(2).fill_(1.0)),
        _Kernel(Tensor, "add_", cpu_ops.add_, lambda: _changed("add_")),
        _Kernel(Tensor, "mul_", cpu_ops.mul_, lambda: _changed("mul_")),
        _Kernel(Tensor, "normal_", cpu_ops.normal_, lambda: _floats(2).normal_()),
        _Kernel(Tensor, "scatter_", cpu_ops.scatter_, lambda: _floats(2, 4).scatter_(1, ids, 1)),
    )


def _changed(method: str) -> Tensor:
    """A tensor after an in-place method, which on a CPU may have returned another tensor instead."""
    tensor = _floats(2)
    getattr(tensor, method)(_floats(2) + 1)
    if tensor.asnumpy()[0] == 1:
        raise ValueError(f"{method} isn't in place")
    return tensor


def _runs(probe: Callable[[], Any]) -> bool:
    try:
        probe().asnumpy()
    except Exception:  # the failures of kernel selection have no common type
        return False
    return True


def apply() -> tuple[str, ...]:
    """Replaces what doesn't run on this machine; on Ascend nothing.

    Returns:
        The names that were replaced.
    """
    if ms.get_context("device_target") != "CPU":
        return ()
    replaced = []
    for kernel in _kernels():
        if not _runs(kernel.probe):
            setattr(kernel.owner, kernel.name, kernel.stand_in)
            replaced.append(f"{getattr(kernel.owner, '__name__', kernel.owner)}.{kernel.name}")
    for module, name in IMPORTED:
        setattr(importlib.import_module(module), name, getattr(cpu_kernels, name))
        replaced.append(f"{module}.{name}")
    _materialise_on_cpu()
    _clear_aux_losses_by_assignment()
    cpu_grads.apply()
    return tuple(replaced)


def _materialise_on_cpu() -> None:
    """Without a device name ``Cell.to_empty`` leaves parameters on the meta device of a machine without accelerator."""
    plain = nn.Cell.to_empty
    if getattr(plain, "_names_cpu", False):
        return

    def to_empty(self: nn.Cell, *, device: str | None = None, recurse: bool = True) -> nn.Cell:
        return plain(self, device=device or "CPU", recurse=recurse)

    vars(to_empty)["_names_cpu"] = True
    nn.Cell.to_empty = to_empty


def _clear_aux_losses_by_assignment() -> None:
    """MindFormers zeroes 0-d views in place, which does nothing on a CPU."""
    moe_utils: Any = importlib.import_module(f"{_MOE}.moe_utils")

    def clear_aux_losses_tracker() -> None:
        tracker = moe_utils.get_moe_layer_wise_logging_tracker()
        tracker["values"] = mint.zeros_like(tracker["values"])

    moe_utils.clear_aux_losses_tracker = clear_aux_losses_tracker
