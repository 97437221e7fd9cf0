"""Host memory within a budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hp_memory.host.pool import Pool


def test_a_buffer_is_used_again_and_its_memory_counted_while_it_lives():
    made = []
    pool = Pool(100, lambda n: made.append(n) or bytearray(n))
    first = pool.take(60)
    assert pool.take(60) is None
    memory = first.memory
    del first
    assert pool.used == 0
    assert pool.take(60).memory is memory
    assert made == [60]
    assert pool.peak == 60


@given(st.lists(st.tuples(st.sampled_from([10, 25, 40, 70]), st.booleans()), max_size=40))
def test_no_order_of_sizes_passes_the_limit(steps):
    allocated = []

    class Memory(bytearray):
        def __init__(self, n):
            super().__init__(n)
            allocated.append(n)

        def __del__(self):
            allocated.remove(len(self))

    pool, held = Pool(100, Memory), []
    for size, gives in steps:
        found = pool.take(size)
        assert (found is None) == (sum(b.nbytes for b in held) + size > 100)
        if found is not None:
            held.append(found)
        del found
        if gives and held:
            held.pop(0)
        assert sum(allocated) <= 100
        assert pool.used == sum(b.nbytes for b in held)
