"""The check that everything else relies on can fail: on one bit, a name, a shape or a sign of zero."""

from __future__ import annotations

import numpy as np
import pytest

from hp_memory.compare.bits import first_difference


def arrays(**changes):
    return {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.float32), **changes}


def test_equal_bits_are_equal():
    assert first_difference(arrays(), arrays()) is None
    nan = np.array([np.nan], np.float32)
    assert first_difference({"x": nan}, {"x": nan.copy()}) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"b": np.array([0.0, -0.0], np.float32)}, "b: 1 of 2"),
        ({"b": np.nextafter(np.zeros(2, np.float32), np.float32(1))}, "b: 2 of 2"),
        ({"b": np.zeros(3, np.float32)}, "instead of"),
        ({"b": np.zeros(2, np.float64)}, "instead of"),
        ({"extra": np.zeros(1)}, "different names"),
    ],
)
def test_any_difference_is_named(changes, says):
    assert says in first_difference(arrays(), arrays(**changes))
