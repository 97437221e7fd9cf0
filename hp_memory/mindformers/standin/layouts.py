"""Which part of a whole tensor a rank holds, and what a checkpoint has to know of it.

Modelled on HyperParallel: ``mesh``, ``placements``, and the device matrix, rank list and tensor map that
``checkpoint/layout_adapter.py: LayoutAdapter._get_layout_from_pynative`` of MindFormers reads. Ours: a layout is a list
of cuts, each along one mesh dimension, applied one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hp_memory.errors import NeedsHyperParallel
from hp_memory.mindformers.standin.mesh import DeviceMesh
from hp_memory.mindformers.standin.placements import Placement, Replicate, Shard


@dataclass(frozen=True)
class Cut:
    """One mesh dimension and how it holds the tensor that the cuts before it left."""

    mesh: DeviceMesh
    placement: Placement

    @property
    def parts(self) -> int:
        return self.mesh.size() if self.placement.is_shard() else 1

    @property
    def stride(self) -> int:
        """Between the ranks along this dimension; they are evenly spaced in a mesh in C order."""
        ranks = self.mesh.rank_list
        return ranks[1] - ranks[0] if len(ranks) > 1 else 1


def cuts(mesh: DeviceMesh, placements: tuple[Placement, ...]) -> tuple[Cut, ...]:
    """One cut per mesh dimension, in the mesh's order."""
    names = mesh.mesh_dim_names or tuple(f"dim_{i}" for i in range(mesh.ndim))
    named = mesh if mesh.mesh_dim_names else DeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=names)
    return tuple(Cut(named[name], placement) for name, placement in zip(names, placements, strict=True))


@dataclass(frozen=True)
class Layout:
    """How a tensor is spread.

    Attributes:
        cuts: applied in this order; a later one divides the part that the earlier ones left.
        full_shape: of the whole tensor.
    """

    cuts: tuple[Cut, ...]
    full_shape: tuple[int, ...]

    def cut_again(self, more: tuple[Cut, ...]) -> Layout:
        """This layout, divided further."""
        return Layout((*self.cuts, *more), self.full_shape)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of this rank's part.

        Raises:
            NeedsHyperParallel: for parts of unequal size.
        """
        shape = list(self.full_shape)
        for cut in self.cuts:
            if isinstance(cut.placement, Shard):
                dim = cut.placement.dim
                if shape[dim] % cut.parts:
                    what = f"{cut.parts} unequal parts of dimension {dim} of {self.full_shape}"
                    raise NeedsHyperParallel(what, "every part has the same size here")
                shape[dim] //= cut.parts
        return tuple(shape)

    def local_part(self, whole: np.ndarray) -> np.ndarray:
        """This rank's part of a whole tensor."""
        for cut in self.cuts:
            if isinstance(cut.placement, Shard):
                whole = np.split(whole, cut.parts, axis=cut.placement.dim)[cut.mesh.get_local_rank()]
        return np.ascontiguousarray(whole)

    @property
    def _outer_first(self) -> list[Cut]:
        return sorted(self.cuts, key=lambda cut: -cut.stride)

    @property
    def mesh(self) -> DeviceMesh:
        """All dimensions in one mesh, in the order in which they lie in the world."""
        ordered = self._outer_first
        ranks = np.array(ordered[0].mesh.rank)
        for cut in ordered:
            ranks = ranks[..., None] + (np.array(cut.mesh.rank_list) - cut.mesh.rank)
        names = tuple(cut.mesh.mesh_dim_names[0] for cut in ordered)
        return DeviceMesh(ordered[0].mesh.device_type, ranks, mesh_dim_names=names, rank=ordered[0].mesh.rank)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """In the order of ``mesh``'s dimensions."""
        return tuple(cut.placement for cut in self._outer_first)

    alias_placements = placements

    @property
    def tensor_map(self) -> tuple[int | tuple[int, ...], ...]:
        """Per tensor dimension the mesh dimensions that divide it, outermost first.

        They are counted from the last one; -1 stands for none.
        """
        ordered = self._outer_first
        found = []
        for dim in range(len(self.full_shape)):
            by = [cut for cut in self.cuts if cut.placement.is_shard(dim) and cut.parts > 1]
            numbers = tuple(len(ordered) - 1 - ordered.index(cut) for cut in by)
            found.append(numbers if len(numbers) > 1 else numbers[0] if numbers else -1)
        return tuple(found)

    def over(self, ranks: int) -> Layout:
        """The same with a dimension more for each stride at which the tensor is repeated among ``ranks`` ranks.

        MindFormers looks a rank's part up by its number, so a checkpoint's layout has to name all of them.
        """
        known = {cut.stride: cut.mesh.size() for cut in self.cuts if cut.mesh.size() > 1}
        added: list[Cut] = []
        stride = 1
        while stride < ranks:
            size = known.get(stride)
            if size is None:
                size = min([s for s in known if s > stride], default=ranks) // stride
                added.append(_repeated(self.cuts[0].mesh, stride, size))
            stride *= size
        return Layout((*self.cuts, *added), self.full_shape)


def _repeated(like: DeviceMesh, stride: int, size: int) -> Cut:
    first = like.rank - like.rank // stride % size * stride
    ranks = np.arange(first, first + stride * size, stride)
    return Cut(DeviceMesh(like.device_type, ranks, mesh_dim_names=(f"repeated_{stride}",), rank=like.rank), Replicate())


def shard(mesh: DeviceMesh, dim: int) -> Cut:
    """A cut of ``dim`` along a mesh of one dimension."""
    return Cut(mesh, Shard(dim))
