"""Index, sorting and filling operations that MindSpore 2.10 has no CPU kernel for.

Indices are computed in numpy; values are then gathered by a differentiable operation, so gradients flow as they do on
the device. Sorting is stable: equal scores keep their order, in a replay too.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

from hp_memory.mindspore.private import no_grad as _no_grad

_INTEGERS = (ms.int8, ms.int16, ms.int32, ms.int64, ms.uint8)


def _numpy(x: Tensor) -> np.ndarray:
    return (x.astype(ms.float32) if x.dtype == ms.bfloat16 else x).asnumpy()


def _tensor(array: np.ndarray, dtype: Any = None) -> Tensor:
    out = Tensor(np.ascontiguousarray(array))
    return out if dtype is None else out.astype(dtype)


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    counts, _ = np.histogram(_numpy(input), bins=bins, range=(min, max))
    return _tensor(counts.astype(np.float32), input.dtype)


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    keys = _numpy(input)
    return _tensor(np.argsort(-keys if descending else keys, axis=dim, kind="stable").astype(np.int64))


def sort(input: Tensor, *, dim: int = -1, descending: bool = False, stable: bool = False) -> tuple[Tensor, Tensor]:
    index = argsort(input, dim, descending)
    return mint.gather(input, dim, index), index


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    order = argsort(input, dim, descending=largest).asnumpy()
    index = _tensor(np.take(order, np.arange(k), axis=dim))
    return mint.gather(input, dim, index), index


def floor_divide(input: Any, other: Any) -> Tensor:
    return ops.floor_div(input, other)


def cumsum(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Running totals of integers or of counts; no gradient."""
    return _tensor(np.cumsum(_numpy(input), axis=dim), dtype or (ms.int64 if input.dtype in _INTEGERS else input.dtype))


def arange(start: Any = 0, end: Any = None, step: Any = 1, *, dtype: Any = None) -> Tensor:
    values = np.arange(start) if end is None else np.arange(start, end, step)
    return _tensor(values, dtype or (ms.int64 if values.dtype.kind == "i" else ms.float32))


def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    return ops.gather(input, index, dim)


def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return ops.tensor_scatter_elements(input, index, src.astype(input.dtype), dim, "add")


def stack(tensors: Any, dim: int = 0) -> Tensor:
    return mint.cat([mint.unsqueeze(t, dim) for t in tensors], dim=dim)


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    return mint.unsqueeze(input, 1) * mint.unsqueeze(vec2, 0)


def clone(input: Tensor) -> Tensor:
    return input.copy() if input.dtype in _INTEGERS or input.dtype == ms.bool_ else input * 1


def ones_like(input: Tensor, *, dtype: Any = None) -> Tensor:
    return mint.ones(input.shape, dtype=dtype or input.dtype)


def zeros_like(input: Tensor, *, dtype: Any = None) -> Tensor:
    return mint.zeros(input.shape, dtype=dtype or input.dtype)


def _write(target: Tensor, value: Tensor) -> Tensor:
    with _no_grad():
        target.copy_(value)
    return target


def zero_(self: Tensor) -> Tensor:
    return _write(self, mint.zeros(self.shape, dtype=self.dtype))


def fill_(self: Tensor, value: float) -> Tensor:
    return _write(self, _tensor(np.full(self.shape, float(value), np.float32), self.dtype))


def add_(self: Tensor, other: Any, *, alpha: float = 1) -> Tensor:
    """MindSpore's own returns a new tensor on a CPU and leaves this one: a counter would stay 0."""
    return _write(self, self + other * alpha if alpha != 1 else self + other)


def mul_(self: Tensor, other: Any) -> Tensor:
    """As ``add_``: a gradient would not be clipped."""
    return _write(self, self * other)


def normal_(self: Tensor, mean: float = 0, std: float = 1, *, generator: Any = None) -> Tensor:
    return _write(self, _tensor(np.random.normal(mean, std, self.shape).astype(np.float32), self.dtype))


def scatter_(self: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, **_: Any) -> Tensor:
    filled = self.asnumpy().copy()
    source = src if value is None else value
    np.put_along_axis(filled, index.asnumpy(), _numpy(source) if isinstance(source, Tensor) else source, axis=dim)
    return _write(self, _tensor(filled, self.dtype))
