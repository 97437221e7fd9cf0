"""What a body saves of a parameter besides itself: a cast, a reshape, a transposition. No address is asked for.

Graph nodes lead from the saved tensor to the parameter, but don't say how they moved elements. So one transposition is
taken, and only where the saved tensor's shape or strides leave a single answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Tensor

SAME_ORDER = frozenset({"Contiguous", "Reshape", "View", "ExpandDims", "ExpandDimsView", "Squeeze"})
"""Nodes that change the shape and leave the order of elements: reshaping gives the same values."""

CAST = "Cast"
_TRANSPOSES = frozenset({"Transpose", "TransposeView", "TransposeExtView"})
FOLLOWED = SAME_ORDER | _TRANSPOSES | {CAST}

Axes = tuple[int, ...]


def axes_of(tensor: Tensor, names: Sequence[str], shape: Sequence[int]) -> Axes | None:
    """How ``tensor`` was made of a parameter of ``shape`` by the nodes ``names``, the last of them first.

    Returns:
        the order of the parameter's dimensions in ``tensor``, empty where elements are in the parameter's order, None
        where that can't be told.
    """
    if names.count(CAST) > 1:
        return None
    moved = [name for name in names if name in _TRANSPOSES]
    if not moved:
        return ()
    if len(moved) > 1 or any(name in SAME_ORDER and name != "Contiguous" for name in names):
        return None
    if tensor.is_contiguous():  # copied for a kernel: only sizes are left to tell
        found = _permutation(list(tensor.shape), list(shape))
    else:
        found = _permutation(list(zip(tensor.shape, tensor.stride(), strict=True)), _dense(shape))
    return found


def _permutation(now: list, before: list) -> Axes | None:
    """Where each of ``now`` stands in ``before``; None if the two aren't the same, or have something twice."""
    if len(set(before)) != len(before) or sorted(now) != sorted(before):
        return None
    return tuple(before.index(item) for item in now)


def _dense(shape: Sequence[int]) -> list[tuple[int, int]]:
    """(size, stride) of each dimension of a contiguous tensor."""
    found, stride = [], 1
    for size in reversed(shape):
        found.append((size, stride))
        stride *= size
    return found[::-1]
