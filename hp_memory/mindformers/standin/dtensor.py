"""Distributed tensors, as far as they have a meaning without a sharding runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.common._grad_function import _Function

from hp_memory.errors import NeedsHyperParallel


class Placement:
    """How a mesh dimension holds a tensor."""

    def is_shard(self, dim: int | None = None) -> bool:
        return isinstance(self, Shard) and dim in (None, self.dim)

    def is_replicate(self) -> bool:
        return isinstance(self, Replicate)

    def is_partial(self) -> bool:
        return isinstance(self, Partial)


@dataclass(frozen=True)
class Shard(Placement):
    dim: int = 0


@dataclass(frozen=True)
class Replicate(Placement):
    pass


@dataclass(frozen=True)
class Partial(Placement):
    reduce_op: str = "sum"


class DeviceMesh:
    """A named grid of ranks; groups and slices of it need the real package."""

    def __init__(
        self,
        device_type: str = "cpu",
        mesh: Any = (0,),
        *,
        mesh_dim_names: tuple[str, ...] = (),
        rank: int = 0,
    ) -> None:
        self.device_type = device_type
        self.mesh = np.asarray(mesh)
        self.mesh_dim_names = tuple(mesh_dim_names)
        self.rank = rank

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(self.mesh.shape)

    @property
    def ndim(self) -> int:
        return self.mesh.ndim

    def size(self, dim: int | None = None) -> int:
        return int(self.mesh.size if dim is None else self.mesh.shape[dim])

    def get_local_rank(self, mesh_dim: str | int | None = None) -> int:
        return int(np.flatnonzero(self.mesh.reshape(-1) == self.rank)[0])

    def get_group(self, mesh_dim: str | int | None = None) -> str:
        raise NeedsHyperParallel("DeviceMesh.get_group", "one process has no groups")


def init_device_mesh(
    device_type: str = "cpu", mesh_shape: tuple[int, ...] = (1,), *, mesh_dim_names: tuple[str, ...] = (), **_: Any
) -> DeviceMesh:
    """A mesh of one rank; a larger one needs the real package."""
    if math.prod(mesh_shape) > 1:
        raise NeedsHyperParallel(f"init_device_mesh({tuple(mesh_shape)})", "there is one process")
    return DeviceMesh(device_type, np.zeros(mesh_shape, int), mesh_dim_names=mesh_dim_names)


class _HasMesh(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, Tensor) and isinstance(getattr(value, "device_mesh", None), DeviceMesh)


class DTensor(metaclass=_HasMesh):
    """A type to test against: a tensor is one if ``shard_module`` gave it a mesh. It stays its local part."""

    @staticmethod
    def from_local(local_tensor: Tensor, device_mesh: Any = None, placements: Any = None, **_: Any) -> Tensor:
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
    """One process holds the whole tensor."""
    return tensor


@dataclass
class ShardingPlan:
    """Placements by parameter name."""

    plan: dict[str, tuple[Placement, ...]] = field(default_factory=dict)
    input_plan: dict[str, Any] | None = None
    output_plan: dict[str, Any] | None = None
    return_local_tensor: list[str] | None = None


def shard_module(module: nn.Cell, device_mesh: DeviceMesh | None = None, sharding_plan: Any = None, **_: Any) -> Any:
    """Cuts the module's sharded parameters down to this rank's part, in place; enough for ``ExpertParallel``."""
    if device_mesh is None or sharding_plan is None:
        return module
    for name, param in list(module.parameters_and_names()):
        for placement in sharding_plan.plan.get(name, ()):
            if placement.is_shard():
                _replace_by_local_part(module, name, param, placement.dim, device_mesh)
    return module


def _replace_by_local_part(module: nn.Cell, name: str, param: Parameter, dim: int, mesh: DeviceMesh) -> None:
    # A new Parameter: autograd remembers the shape that the old one had.
    *parents, attr = name.split(".")
    owner = module
    for parent in parents:
        owner = getattr(owner, parent)
    part = np.split(param.asnumpy(), mesh.size(), axis=dim)[mesh.get_local_rank()]
    local = Parameter(Tensor(np.ascontiguousarray(part)), name=param.name, requires_grad=param.requires_grad)
    local.device_mesh = mesh
    local.to_local = lambda: local
    setattr(owner, attr, local)


def get_global_layout(*args: Any, **kwargs: Any) -> None:
    """Nothing is sharded, so a checkpoint has no layout to describe."""


def get_current_layout(*args: Any, **kwargs: Any) -> None:
    """Nothing is sharded, so a checkpoint has no layout to describe."""


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
