"""A view is kept as what it takes of a tensor, whatever storage that tensor lies in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mindspore import Tensor, mint, ops
from mindspore.ops.auto_generate import as_strided

from hp_memory.activation.geometry import Flat, Slices, view_of

pytestmark = pytest.mark.usefixtures("mindspore")


def of_storage(array, spans, transposed):
    """A slice of each dimension of a tensor over ``array``, and of that tensor perhaps the transpose."""
    whole = Tensor(array)
    strides, offset, shape = [], 0, []
    for dim, (start, size, step) in enumerate(spans):
        stride = int(np.prod(array.shape[dim + 1 :]))
        strides.append(stride * step)
        offset += start * stride
        shape.append(size)
    if transposed:
        shape, strides = shape[::-1], strides[::-1]
    return as_strided(whole, tuple(shape), tuple(strides), offset)


@st.composite
def spans(draw, shape):
    found = []
    for extent in shape:
        start = draw(st.integers(0, extent - 1))
        step = draw(st.integers(1, 2))
        size = draw(st.integers(1, (extent - 1 - start) // step + 1))
        found.append((start, size, step))
    return found


def numpy_view(array, taken, transposed):
    cut = array[tuple(slice(start, start + (size - 1) * step + 1, step) for start, size, step in taken)]
    return cut.T if transposed else cut


class TestViewOf:
    @given(data=st.data())
    def test_gives_the_same_values_of_a_base_that_lies_elsewhere(self, data):
        array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
        outer, turned = data.draw(spans(array.shape)), data.draw(st.booleans())
        base = of_storage(array, outer, turned)
        values = numpy_view(array, outer, turned)
        inner, again = data.draw(spans(values.shape)), data.draw(st.booleans())
        offset, strides = base.storage_offset(), base.stride()
        for dim, (start, _, _) in enumerate(inner):
            offset += start * strides[dim]
        shape = [size for _, size, _ in inner]
        stride = [strides[dim] * step for dim, (_, _, step) in enumerate(inner)]
        if again:
            shape, stride = shape[::-1], stride[::-1]
        view = as_strided(base, tuple(shape), tuple(stride), offset)
        found = view_of(view, base)
        assert found is not None
        want = numpy_view(values, inner, again)
        elsewhere = Tensor(values.copy())
        assert np.array_equal(found.of(base).asnumpy(), want)
        assert np.array_equal(found.of(elsewhere).asnumpy(), want)
        laid_out = mint.cat((ops.zeros((1, *values.shape)), elsewhere.expand_dims(0)), 0)[1]
        assert np.array_equal(found.of(laid_out).asnumpy(), want)

    @given(st.integers(0, 5), st.integers(1, 6))
    def test_reaching_beyond_the_base_is_none(self, start, size):
        whole = Tensor(np.arange(12, dtype=np.float32))
        base = as_strided(whole, (4,), (1,), 4)
        view = as_strided(whole, (size,), (1,), start)
        inside = start >= 4 and start + size <= 8
        assert (view_of(view, base) is not None) == inside

    def test_the_gaps_of_a_base_are_not_its_elements(self):
        whole = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
        left = as_strided(whole, (3, 2), (4, 1), 0)
        assert view_of(as_strided(whole, (3, 2), (4, 1), 2), left) is None
        assert view_of(as_strided(whole, (12,), (1,), 0), left) is None
        assert view_of(as_strided(whole, (2,), (2,), 1), left) is None
        assert type(view_of(as_strided(whole, (3,), (4,), 1), left)) is Slices

    def test_a_reshape_of_a_contiguous_base(self):
        whole = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
        found = view_of(whole.view(2, 6), whole)
        assert type(found) is Flat
        assert np.array_equal(found.of(whole).asnumpy(), whole.asnumpy().reshape(2, 6))

    def test_a_repeated_dimension(self):
        whole = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
        turned = as_strided(whole, (4, 3), (1, 4), 0)
        found = view_of(as_strided(whole, (2, 4), (0, 1), 4), turned)
        assert np.array_equal(found.of(turned).asnumpy(), np.tile(whole.asnumpy()[1], (2, 1)))

    @given(st.lists(st.integers(0, 6), min_size=2, max_size=2), st.lists(st.integers(1, 3), min_size=2, max_size=2))
    def test_never_guesses(self, stride, shape):
        """Any strided view is either refused or rebuilt exactly of a copy."""
        array = np.arange(24, dtype=np.float32).reshape(4, 6)
        whole = Tensor(array)
        base = as_strided(whole, (3, 3), (6, 2), 1)
        values = array[0:3, 1:6:2]
        assume(3 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) < 24)
        view = as_strided(whole, tuple(shape), tuple(stride), 3)
        found = view_of(view, base)
        if found is not None:
            assert np.array_equal(found.of(Tensor(values.copy())).asnumpy(), view.asnumpy())
