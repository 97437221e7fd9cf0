"""What a traced layer did, as plain data: storages, operations, and what autograd saved. No MindSpore here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hp_memory.layout.regions import Kind

Phase = Literal["forward", "replay", "backward"]
Views = Literal["shared", "copied"]
StorageKind = Literal["activation", "input", "parameter", "constant"]

BARE = ""
"""The region of an operation between regions (a residual add): always replayed under a boundary."""

EXCHANGE = "Exchange"
"""The name of a collective: reads what this rank sends, writes what it receives."""
HOST_READ = "host read"
"""The name of a read by the host, which no dispatch sees."""


@dataclass(frozen=True)
class Storage:
    """One piece of memory of a rank. Views of it are the same storage.

    Attributes:
        number: position in ``LayerTrace.storages``.
        nbytes: logical bytes, without an allocator's rounding.
        region: the region whose operation made it, ``BARE`` between regions.
    """

    number: int
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    kind: StorageKind
    region: str
    phase: Phase


@dataclass(frozen=True)
class Op:
    """One operation that ran, with the storages it read and wrote.

    ``flops`` counts a multiply-add as two; 0 for operations that only move bytes.
    """

    name: str
    phase: Phase
    region: str
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    flops: int = 0


@dataclass(frozen=True)
class Saved:
    """A storage that something keeps after the forward: which region's operation, and in which shape.

    ``copied`` says that the backend made this storage by copying a view operand.
    """

    storage: int
    region: str
    shape: tuple[int, ...]
    copied: bool = False


@dataclass(frozen=True)
class Parameter:
    """One parameter of the layer as this rank holds it before FSDP: its name, shape and role."""

    name: str
    shape: tuple[int, ...]
    nbytes: int
    trainable: bool
    expert: bool

    @property
    def size(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count


@dataclass
class LayerTrace:
    """Forward and backward of one layer on the meta device with the shapes of one rank.

    Attributes:
        kind: ``dense``, ``moe`` or ``mtp``; ``embedding`` or ``head`` for what stands before and after the blocks.
        regions: the layer's regions in forward order.
        inputs: storages of activations that enter the layer, the hidden states first.
        outputs: storages that leave it.
        region_outputs: what each region returned.
        saved: in the order of saving.
        released: for a storage that Python's variables referred to, the last operation during which one did: a
            local variable keeps memory after the last operation that needs it.
        weight_gradients: storages that backward returns for parameters; the layer gives them away.
        copies: storages that the backend made by copying a view operand, and what they copy if that was an argument
            of the region.
        memo: what was computed from a finished trace once and is asked for often.
    """

    kind: str
    regions: tuple[str, ...]
    storages: list[Storage] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    region_outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: list[Parameter] = field(default_factory=list)
    released: dict[int, int] = field(default_factory=dict)
    weight_gradients: frozenset[int] = frozenset()
    copies: dict[int, int | None] = field(default_factory=dict)
    memo: dict = field(default_factory=dict, repr=False, compare=False)

    def of_phase(self, phase: Phase) -> list[Op]:
        """The operations of one phase, in order."""
        if phase not in self.memo:
            self.memo[phase] = [op for op in self.ops if op.phase == phase]
        return self.memo[phase]

    def flops(self, phase: Phase, regions: Iterable[str] | None = None) -> int:
        """FLOPs of a phase, of all regions or of some."""
        wanted = None if regions is None else set(regions)
        return sum(op.flops for op in self.ops if op.phase == phase and (wanted is None or op.region in wanted))

    def nbytes(self, storages: Iterable[int]) -> int:
        """Bytes of a set of storages."""
        return sum(self.storages[i].nbytes for i in set(storages))

    def activation(self, number: int) -> bool:
        """Whether a storage counts as activation memory: not a parameter and not a constant of the model."""
        return self.storages[number].kind in ("activation", "input")


@dataclass(frozen=True)
class ModelTrace:
    """A model as traced: one trace per kind of layer, and what stands before and after the blocks.

    Attributes:
        kinds: the kind of each global layer id.
        layers: the trace of each kind.
        head: final norm, logits and loss; None where they weren't traced.
        embedding: the embedding; None where it wasn't traced.
        parameters: parameters per global layer id, plus ``embedding`` and ``head``.
        notes: what was replaced to trace the code, for the report.
    """

    kinds: tuple[Kind, ...]
    layers: Mapping[Kind, LayerTrace]
    embedding: LayerTrace | None
    head: LayerTrace | None
    total_parameters: int
    notes: tuple[str, ...] = ()
