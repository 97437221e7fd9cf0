"""Bit equality of one layout's numbers with another's."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]


def first_difference(reference: Arrays, other: Arrays) -> str | None:
    """None where both hold the same names and bits, else the first difference in words.

    NaN counts as equal to the same NaN: the question is whether the bits are the same.
    """
    if reference.keys() != other.keys():
        return f"different names: {sorted(reference.keys() ^ other.keys())[:3]}"
    for name, expected in reference.items():
        found = other[name]
        if expected.shape != found.shape or expected.dtype != found.dtype:
            return f"{name}: {found.dtype}{found.shape} instead of {expected.dtype}{expected.shape}"
        if not np.array_equal(_bits(expected), _bits(found)):
            differing = int(np.count_nonzero(_bits(expected) != _bits(found)))
            gap = float(np.max(np.abs(expected.astype(np.float64) - found.astype(np.float64))))
            return f"{name}: {differing} of {expected.size} elements differ, by up to {gap:.3g}"
    return None


def _bits(array: np.ndarray) -> np.ndarray:
    array = np.ascontiguousarray(array)
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "f" else array
