"""What a region writes in place into what it was given: seen while the body runs, and done again by a replay.

A replay doesn't run the body, so the block would read the tensor as it was before. The written values are kept as if
they were an output. Where a write leaves a version (``copy_``) or another storage (an index assignment on a CPU) it is
seen in every forward. Others (``ops.assign``, collectives into a buffer, writes through ``.data``) are told by the
operation, in the first forward, and remembered of the region.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mindspore import Tensor, mint

from hp_memory.activation import marks, native
from hp_memory.activation.trees import Mapping, Path, difference, is_number, resolve, spell
from hp_memory.errors import ReplayError
from hp_memory.mindspore.private import no_grad as _no_grad

_SAVED = "hp_memory_saved"
_IN_PLACE = ("Inplace", "Assign", "DistComm")
# They only read what they are given.
_SENDS = frozenset({"DistCommIsend", "DistCommBarrier"})


class Write(NamedTuple):
    """What a body wrote into the tensor at ``path``.

    ``values`` need a gradient where the tensor did afterwards, as a buffer does once something recorded is written into
    it. ``moved``: the tensor was given another storage for them.
    """

    path: Path
    values: Tensor
    moved: bool

    def again(self, args: tuple, kwargs: dict) -> None:
        """Writes the same values into the replay's own tensor."""
        target = resolve(self.path, args, kwargs)
        if marks.ghost_of(target) is not None:
            return  # the watched forward didn't write it, or it would be there; who reads it is refused
        if self.moved:
            target.assign_value(native.detached(self.values))
        else:
            with _no_grad():
                target.copy_(self.values)
        if self.values._requires_grad and not target._requires_grad:
            target.requires_grad_()


def copy_of(tensor: Tensor, recorded: bool = False) -> Tensor:
    """The values as they are now, in a storage of their own; ``recorded`` as :meth:`Tensor.requires_grad_`."""
    with _no_grad():
        values = mint.empty(tensor.shape, dtype=tensor.dtype)
        if tensor.size:
            values.copy_(native.detached(tensor))
    if recorded:
        values.requires_grad_()
    return values


def standing_alone(tensor: Tensor) -> Tensor:
    """``tensor`` as backward may be given it.

    A backward that is recorded itself loses the gradient of a saved tensor that is given back as a view (MindSpore
    2.10), so there it gets values of their own.
    """
    return copy_of(tensor) if native.recording() else tensor


def targets(operation: str, args: Any) -> list[Tensor]:
    """The tensors that an operation writes; empty for nearly all."""
    if not operation.startswith(_IN_PLACE) or operation in _SENDS:
        return []
    for value in args:
        if isinstance(value, Tensor):
            return [value]
        if isinstance(value, (tuple, list)) and value and isinstance(value[0], Tensor):
            # A primitive is given all of its arguments in one tuple, a collective a list of buffers.
            return [value[0]] if operation.startswith("Assign") else list(value)
    return []


def mark_saved(tensor: Tensor, token: object, whose: str) -> None:
    """From here to the end of the block a write into ``tensor`` would change what backward reads."""
    tensor._set_user_data(_SAVED, (token, whose))


def refuse_saved(tensor: Tensor, token: object, writer: str) -> None:
    """Raises if ``writer`` writes into what this call has saved for backward."""
    found = tensor._get_user_data(_SAVED)
    if found is not None and found[0] is token:
        raise ReplayError(
            f"{writer} writes in place into a tensor that {found[1]} saves for backward; clone it before the write"
        )


class Given:
    """The containers, arrays and numbers of a call's arguments, as they were before the body ran."""

    __slots__ = ("before", "now")

    def __init__(self, args: tuple, kwargs: dict) -> None:
        self.now = args, kwargs
        simple = all(isinstance(value, Tensor) or is_number(value) for value in (*args, *kwargs.values()))
        self.before = self.now if simple else Mapping(lambda tensor: tensor).of(self.now)

    def refuse_change(self, region: str) -> None:
        """Raises if the body changed one of them."""
        path = None if self.before is self.now else difference(self.before, self.now)
        if path is not None:
            raise ReplayError(
                f"excluded region {region} changes its argument {spell(path)} and a replay doesn't run it, so the "
                "block would find it unchanged: return the new value instead"
            )
