"""What a distributed checkpoint has to know of every rank's parameters.

Modelled on HyperParallel's ``distributed_checkpoint``: the dictionary that MindFormers reads in
``checkpoint/layout_adapter.py: LayoutAdapter._get_layout_from_pynative`` and ``checkpoint/checkpoint.py:
save_checkpoint``. Saving and loading themselves are MindFormers' and MindSpore's.
"""

from __future__ import annotations

from typing import Any

from mindspore.mint import distributed as dist

from hp_memory.mindformers.standin.parameters import layout_of
from hp_memory.runs import ranks


def get_current_layout(cell: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """This rank's number, as text, with its parameters: type, shape of the whole, and where the parts are."""
    parameters = cell.get_parameters()
    return {str(ranks.rank()): {parameter.name: _described(parameter) for parameter in parameters}}


def get_global_layout(cell: Any) -> dict[str, dict[str, dict[str, Any]]]:
    """Every rank's ``get_current_layout``; all ranks must call it."""
    own = get_current_layout(cell)
    if ranks.world_size() == 1:
        return own
    everyone: list[Any] = [None] * ranks.world_size()
    dist.all_gather_object(everyone, own)
    return {rank: found for one in everyone for rank, found in one.items()}


def _described(parameter: Any) -> dict[str, Any]:
    layout = layout_of(parameter)
    if layout is None:
        return {"type": str(parameter.dtype), "full_shape": tuple(parameter.shape)}
    layout = layout.over(layout.cuts[0].mesh.ranks_of_a_stage())
    return {
        "device_matrix": layout.mesh.mesh_shape,
        "alias_name": layout.mesh.mesh_dim_names,
        "rank_list": layout.mesh.rank_list,
        "tensor_map": layout.tensor_map,
        "type": str(parameter.dtype),
        "full_shape": layout.full_shape,
    }
