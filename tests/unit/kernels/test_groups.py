"""Which ranks work together."""

from __future__ import annotations

from hp_memory.kernels.groups import ALONE, Group, blocks, strides


def test_blocks_and_strides_partition_the_world():
    assert blocks(6, 2) == [(0, 1), (2, 3), (4, 5)]
    assert strides(6, 2) == [(0, 2, 4), (1, 3, 5)]


def test_a_group_knows_its_size():
    assert Group((2, 3), 1, "g").size == 2
    assert ALONE.size == 1
