"""What ``fully_shard`` of the stand-in does to parameters that cells share, and what it refuses."""

from __future__ import annotations

import pytest

from hp_memory.errors import NeedsHyperParallel

nn = pytest.importorskip("mindspore").nn


class Head(nn.Cell):
    def __init__(self, weight=None):
        super().__init__()
        self.dense = nn.Dense(4, 4, has_bias=False)
        if weight is not None:
            self.dense.weight = weight


class Model(nn.Cell):
    share_embeddings_and_output_weights = True

    def __init__(self):
        super().__init__()
        self.head = Head()


@pytest.fixture
def shard(mindspore):
    from hp_memory.mindformers.standin.fully_shard import fully_shard
    from hp_memory.mindformers.standin.mesh import DeviceMesh

    return lambda cell: fully_shard(cell, mesh=DeviceMesh("cpu", [0], mesh_dim_names=("fsdp",)))


def test_parameters_of_one_cell_each_are_replaced_by_parts(shard):
    head = Head()
    before = head.dense.weight
    shard(head)
    assert head.dense.weight is not before
    assert head.dense.weight.held_by_unit


def test_a_parameter_of_two_units_is_refused_by_name(shard):
    first = Head()
    second = Head(first.dense.weight)
    shard(first)
    with pytest.raises(NeedsHyperParallel, match="weight, which two cells share"):
        shard(second)


def test_a_parameter_of_two_cells_in_one_unit_is_refused(shard):
    first = Head()
    both = nn.CellList([first, Head(first.dense.weight)])
    with pytest.raises(NeedsHyperParallel, match="which two cells share"):
        shard(both)


def test_a_model_whose_head_takes_the_embeddings_weight_is_refused(shard):
    with pytest.raises(NeedsHyperParallel, match="share_embeddings_and_output_weights"):
        shard(Model())
