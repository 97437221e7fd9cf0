"""Distributed tensors, as far as they have a meaning without a sharding runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mindspore import Parameter, Tensor, nn

from hp_memory.errors import NeedsHyperParallel
from hp_memory.mindformers.standin.layouts import Cut, cuts
from hp_memory.mindformers.standin.mesh import DeviceMesh
from hp_memory.mindformers.standin.parameters import local_parameter
from hp_memory.mindformers.standin.placements import Placement
from hp_memory.mindspore.private import Function as _Function


class _HasMesh(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and isinstance(getattr(value, "device_mesh", None), DeviceMesh)


class DTensor(metaclass=_HasMesh):
    """A type to test against: a tensor is one if ``shard_module`` gave it a mesh. It stays its local part."""

    @staticmethod
    def from_local(local_tensor: Tensor, device_mesh: Any = None, placements: Any = None, **_: Any) -> Tensor:
        _refuse_spread(device_mesh, "DTensor.from_local")
        return local_tensor


class DFunction(_Function):
    """Base class of MindFormers' fused communication functions."""


class SkipDTensorDispatch:
    """Nothing is dispatched here, so there is nothing to skip."""

    def __enter__(self) -> SkipDTensorDispatch:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def distribute_tensor(tensor: Tensor, device_mesh: Any = None, placements: Any = None, **_: Any) -> Tensor:
    """One process holds the whole tensor.

    Raises:
        NeedsHyperParallel: for a mesh of several ranks.
    """
    _refuse_spread(device_mesh, "distribute_tensor")
    return tensor


def _refuse_spread(mesh: DeviceMesh | None, call: str) -> None:
    if mesh is not None and mesh.size() > 1:
        raise NeedsHyperParallel(call, "operations on spread tensors are its own")


@dataclass
class ShardingPlan:
    """Placements by parameter name."""

    plan: dict[str, tuple[Placement, ...]] = field(default_factory=dict)
    input_plan: dict[str, Any] | None = None
    output_plan: dict[str, Any] | None = None
    return_local_tensor: list[str] | None = None


def shard_module(module: nn.Cell, device_mesh: DeviceMesh | None = None, sharding_plan: Any = None, **_: Any) -> Any:
    """Replaces the parameters that the plan names by this rank's parts, in place."""
    if device_mesh is None or sharding_plan is None:
        return module
    for name, parameter in list(module.parameters_and_names()):
        placements = sharding_plan.plan.get(name)
        if placements is not None:
            _replace_by_local_part(module, name, parameter, cuts(device_mesh, placements))
    return module


def _replace_by_local_part(module: nn.Cell, name: str, parameter: Parameter, more: tuple[Cut, ...]) -> None:
    # A new Parameter: autograd remembers the shape that the old one had.
    *parents, attr = name.split(".")
    owner = module
    for parent in parents:
        owner = getattr(owner, parent)
    owner._params[attr] = local_parameter(parameter, more)


def _infer_slice_area_by_rank(
    mesh_shape: Any, tensor_map: Any, rank_id: int, full_shape: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    return tuple((0, int(size)) for size in full_shape)


class DevMat:
    """Base class MindFormers derives from at import."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NeedsHyperParallel("redistribution", "one process has nothing to redistribute")


class RedistributionOperatorInfer(DevMat):
    """Base class MindFormers derives from at import."""
