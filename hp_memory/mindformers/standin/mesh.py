"""The grid of ranks, and a communicator for each of its dimensions.

Modelled on HyperParallel: a mesh over all ranks that is unflattened into named dimensions in C order; a slice of it is
the one that this rank is in; dimensions whose backend is "fake" get no communicator. MindFormers builds all of its
meshes in ``pynative/distributed/parallel_dims.py: ParallelDims.build_mesh`` and asks for groups in
``pynative/trainer/trainer.py: Trainer.train``. Ours: the communicators are msrun's CPU ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore.communication import GlobalComm, create_group, get_group_size, get_rank

from hp_memory.errors import NeedsHyperParallel
from hp_memory.kernels.groups import Group
from hp_memory.runs.ranks import rank as announced_rank
from hp_memory.runs.ranks import world_size

_created: dict[tuple[int, ...], str] = {}


def communicator(ranks: Sequence[int]) -> str:
    """The name of these ranks' communicator, which is made at the first call; all of them must call it.

    Raises:
        NeedsHyperParallel: outside a job of several processes.
    """
    key = tuple(int(rank) for rank in ranks)
    if world_size() == 1:
        raise NeedsHyperParallel(f"a communicator of ranks {list(key)}", "there is one process")
    if key not in _created:
        if len(key) == get_group_size():
            _created[key] = GlobalComm.WORLD_COMM_GROUP
        else:
            _created[key] = "hp_memory_" + "_".join(map(str, key))
            create_group(_created[key], list(key))
    return _created[key]


class DeviceMesh:
    """Ranks in a grid with named dimensions; this rank is one of them.

    Args:
        device_type: kept, not looked at.
        mesh: the ranks, in the grid's shape.
        mesh_dim_names: one name a dimension.
        rank: which of them this process is; by default what msrun says.
    """

    def __init__(
        self, device_type: str = "cpu", mesh: Any = (0,), *, mesh_dim_names: Sequence[str] = (), rank: int | None = None
    ) -> None:
        self.device_type = device_type
        self.mesh = np.asarray(mesh)
        self.mesh_dim_names = tuple(mesh_dim_names)
        self.rank = announced_rank() if rank is None else rank
        # Every named dimension of the same world, shared by all views of it.
        self._siblings: dict[str, DeviceMesh] = {}

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(self.mesh.shape)

    shape = mesh_shape

    @property
    def ndim(self) -> int:
        return self.mesh.ndim

    @property
    def rank_list(self) -> tuple[int, ...]:
        return tuple(self.mesh.reshape(-1).tolist())

    def size(self, dim: int | str | None = None) -> int:
        return int(self.mesh.size if dim is None else self.mesh.shape[self._dim(dim)])

    def get_rank(self) -> int:
        """This process's global rank."""
        return self.rank

    def get_coordinate(self) -> tuple[int, ...]:
        """Where this rank is in the grid."""
        return tuple(int(place[0]) for place in np.nonzero(self.mesh == self.rank))

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """Where this rank is along one dimension, which may be left out if there is only one."""
        return self.get_coordinate()[self._dim(mesh_dim)]

    def get_group(self, mesh_dim: int | str | None = None) -> str:
        """The communicator along one dimension."""
        if isinstance(mesh_dim, str) and mesh_dim not in self.mesh_dim_names:
            return self.sibling(mesh_dim).get_group()
        return communicator(self.ranks_along(mesh_dim))

    def sibling(self, name: str) -> DeviceMesh:
        """A dimension that was made of the same world, by unflattening or flattening. Raises KeyError if none was."""
        return self._siblings[name]

    def ranks_of_a_stage(self) -> int:
        """How many ranks share one pipeline stage."""
        stages = self._siblings.get("pp")
        return world_size() // (stages.size() if stages is not None else 1)

    def group(self, mesh_dim: int | str | None = None) -> Group:
        """The same as this package's collectives take it: a group of one has no communicator."""
        ranks = self.ranks_along(mesh_dim)
        return Group(ranks, ranks.index(self.rank), communicator(ranks) if len(ranks) > 1 else None)

    def ranks_along(self, mesh_dim: int | str | None = None) -> tuple[int, ...]:
        """The ranks that differ from this one along one dimension only, in its order."""
        dim, index = self._dim(mesh_dim), list[Any](self.get_coordinate())
        index[dim] = slice(None)
        return tuple(self.mesh[tuple(index)].tolist())

    get_rank_list_along_axis = ranks_along

    def _dim(self, dim: int | str | None) -> int:
        if dim is None:
            if self.ndim != 1:
                raise RuntimeError(f"say which dimension of the mesh is meant: {', '.join(self.mesh_dim_names)}")
            return 0
        if isinstance(dim, str):
            if dim not in self.mesh_dim_names:
                raise KeyError(f"the mesh has no dimension {dim!r}, only {', '.join(self.mesh_dim_names)}")
            return self.mesh_dim_names.index(dim)
        return dim

    def __getitem__(self, names: str | Sequence[str]) -> DeviceMesh:
        """The slice with these dimensions that this rank is in."""
        wanted = (names,) if isinstance(names, str) else tuple(names)
        kept = [self._dim(name) for name in wanted]
        coordinate = self.get_coordinate()
        index = tuple(slice(None) if dim in kept else coordinate[dim] for dim in range(self.ndim))
        order = np.argsort(np.argsort(kept))
        return self._view(self.mesh[index].transpose(order), wanted)

    def _unflatten(
        self,
        dim: int,
        mesh_sizes: Sequence[int],
        mesh_dim_names: Sequence[str],
        backend_override: dict[str, str] | None = None,
    ) -> DeviceMesh:
        shape = (*self.mesh.shape[:dim], *mesh_sizes, *self.mesh.shape[dim + 1 :])
        names = (*self.mesh_dim_names[:dim], *mesh_dim_names, *self.mesh_dim_names[dim + 1 :])
        made = self._view(self.mesh.reshape(shape), names)
        for name, size in zip(mesh_dim_names, mesh_sizes, strict=True):
            self._siblings[name] = made[name]
            # Now, while all ranks are here: later only those of one pipeline stage may be.
            if size > 1 and (backend_override or {}).get(name) != "fake":
                made.get_group(name)
        return made

    def _flatten(self, mesh_dim_name: str) -> DeviceMesh:
        """One dimension of all."""
        flat = self._siblings[mesh_dim_name] = self._view(self.mesh.reshape(-1), (mesh_dim_name,))
        return flat

    def _view(self, ranks: np.ndarray, names: Sequence[str]) -> DeviceMesh:
        made = DeviceMesh(self.device_type, ranks, mesh_dim_names=names, rank=self.rank)
        made._siblings = self._siblings
        return made


def init_device_mesh(
    device_type: str = "cpu", mesh_shape: tuple[int, ...] = (1,), *, mesh_dim_names: Sequence[str] = (), **_: Any
) -> DeviceMesh:
    """A mesh over all ranks of the job.

    Raises:
        NeedsHyperParallel: for another number of ranks than the job has.
    """
    size, world = math.prod(mesh_shape), world_size()
    if size != world:
        there = "there is one process" if world == 1 else f"there are {world} processes"
        raise NeedsHyperParallel(f"init_device_mesh({tuple(mesh_shape)})", there)
    if world > 1 and get_rank() != announced_rank():
        raise RuntimeError(f"msrun announced rank {announced_rank()}, the communicator says {get_rank()}")
    return DeviceMesh(device_type, np.arange(size).reshape(mesh_shape), mesh_dim_names=mesh_dim_names)
