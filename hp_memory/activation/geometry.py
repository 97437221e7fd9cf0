"""How a view lies within another tensor, told so that it can be taken of any tensor with the same values.

Addresses, offsets and strides belong to one storage. The tensor that a replay brings may lie differently in another
(an outer hook packed it, an operation chose another layout), so a view is kept as what it takes of the tensor itself.
"""

from __future__ import annotations

from typing import NamedTuple

from mindspore import Tensor

from hp_memory.activation.native import as_strided


class Flat(NamedTuple):
    """A strided view of the elements in their order; ``offset`` and ``stride`` count elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, base: Tensor) -> Tensor:
        base = base.contiguous()
        return as_strided(base, self.shape, self.stride, base.storage_offset() + self.offset)


class Slices(NamedTuple):
    """A slice of each dimension, perhaps transposed, repeated, or with dimensions of size 1 more.

    ``starts``: by dimension of the base. ``steps``: by dimension of the view, (dimension of the base, step); step 0 for
    one that stays where it is.
    """

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]

    def of(self, base: Tensor) -> Tensor:
        strides = base.stride()
        offset = sum(start * stride for start, stride in zip(self.starts, strides, strict=True))
        stride = tuple(strides[dim] * step for dim, step in self.steps)
        return as_strided(base, self.shape, stride, base.storage_offset() + offset)


def view_of(view: Tensor, base: Tensor) -> Flat | Slices | None:
    """How ``view`` lies in ``base``, whose storage it shares; None where it isn't all within its elements."""
    if view.dtype != base.dtype or not view.size:
        return None
    offset = view.storage_offset() - base.storage_offset()
    if not base.is_contiguous():
        return _slices(tuple(view.shape), view.stride(), offset, tuple(base.shape), base.stride())
    last = offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))
    return Flat(tuple(view.shape), tuple(view.stride()), offset) if offset >= 0 and last < base.size else None


def _slices(
    shape: tuple[int, ...], strides: list[int], offset: int, base_shape: tuple[int, ...], base_strides: list[int]
) -> Slices | None:
    dims = sorted((-s, dim) for dim, (n, s) in enumerate(zip(base_shape, base_strides, strict=True)) if n > 1 and s)
    starts = [0] * len(base_shape)
    for (negative, dim), following in zip(dims, [*dims[1:], None], strict=True):
        if following is not None and -negative < -following[0] * base_shape[following[1]]:
            return None  # its elements overlap: an offset has no single meaning
        starts[dim], offset = divmod(offset, -negative)
        if not 0 <= starts[dim] < base_shape[dim]:
            return None
    steps: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        found = next((dim for negative, dim in dims if stride and stride >= -negative), None) if size > 1 else None
        step, rest = divmod(stride, base_strides[found]) if found is not None else (0, 0 if size == 1 else stride)
        if rest or any(found == dim for dim, taken in steps if taken):
            return None
        if found is not None and starts[found] + (size - 1) * step >= base_shape[found]:
            return None
        steps.append((found or 0, step))
    return None if offset else Slices(shape, tuple(starts), tuple(steps))
