"""A parameter under FSDP: this rank's part, and the whole while it is gathered.

Modelled on HyperParallel: the model holds either the part or the whole, swapped in the Cell's parameters; the whole
is one Parameter for the life of the model, since autograd remembers it; freeing it empties its storage in place
(``resize_(0)``), so whoever still points at it holds nothing; the reduced gradient is added up in float32 as
``main_grad`` of the part (``pynative/trainer/utils.py: get_grad`` of MindFormers reads it). Ours: gathering and
reducing on CPU communicators, and parameters that stay whole aren't swapped, because counters are changed in place.
"""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn

from hp_memory.kernels.cpu import collectives
from hp_memory.mindformers.cpu_grads import add_in_order
from hp_memory.mindformers.standin.layouts import Cut
from hp_memory.mindformers.standin.parameters import layout_of, local_parameter, spread
from hp_memory.mindspore.private import no_grad as _no_grad


def _total(grad: Tensor, cuts: tuple[Cut, ...], average: bool) -> Tensor:
    """The sum over the ranks along every cut, or their mean."""
    grad = grad.astype(ms.float32)
    for cut in cuts:
        grad = collectives.reduce_sum(grad, cut.mesh.group())
        if average:
            grad = grad / cut.mesh.size()
    return grad


class _Held:
    """What both kinds have in common: where the parameter is, and its accumulated gradient."""

    def __init__(self, owner: nn.Cell, name: str, held: Parameter, cuts: tuple[Cut, ...]) -> None:
        self.owner, self.name, self.held, self.cuts = owner, name, held, cuts
        held.held_by_unit = True
        add_in_order(held)
        held.main_grad = None
        self._put(held)

    def _put(self, parameter: Parameter) -> None:
        self.owner._params[self.name] = parameter

    def zero_grad(self) -> None:
        self.held.grad = None
        self.held.main_grad = None

    def _add(self, grad: Tensor) -> None:
        before = self.held.main_grad
        self.held.main_grad = spread(grad if before is None else before + grad, self.held.layout)


class Copied(_Held):
    """A parameter that every rank holds whole."""

    def __init__(self, owner: nn.Cell, name: str, parameter: Parameter, cuts: tuple[Cut, ...]) -> None:
        before = layout_of(parameter)
        held = local_parameter(parameter, cuts) if before is None else parameter
        super().__init__(owner, name, held, cuts)

    def take_gradient(self, average: bool) -> None:
        """Adds what a backward left to ``main_grad``, summed over the ranks."""
        grad, self.held.grad = self.held.grad, None
        if grad is not None:
            self._add(_total(grad, self.cuts, average))


class Sharded(_Held):
    """A parameter of which every rank of the last cut holds a part."""

    def __init__(self, owner: nn.Cell, name: str, parameter: Parameter, cuts: tuple[Cut, ...]) -> None:
        self.before = layout_of(parameter)
        super().__init__(owner, name, local_parameter(parameter, cuts), cuts)
        self.group = cuts[-1].mesh.group()
        self.shape = tuple(parameter.shape)
        self.whole: Parameter | None = None
        self.buffer: Tensor | None = None
        self.gathered = self.in_place = False

    def gather(self) -> None:
        """Fills the buffer of the whole parameter, unless it is filled."""
        if self.gathered:
            return
        with _no_grad():
            parts = collectives.gather_list(self.held.data, self.group)
            if self.buffer is None:
                self.buffer = mint.empty(list(self.shape), dtype=self.held.dtype)
            storage = self.buffer.untyped_storage()
            if not storage.size():
                storage.resize_(self.buffer.nbytes)
            self.buffer.copy_(mint.cat(parts, 0) if len(parts) > 1 else parts[0])
        self.gathered = True

    def unshard(self) -> None:
        """The model finds the whole parameter."""
        if self.in_place:
            return
        self.gather()
        if self.whole is None:
            self.whole = self._new_whole()
        self.whole.data = self.buffer
        self.whole.requires_grad = self.held.requires_grad
        self._put(self.whole)
        self.in_place = True

    def _new_whole(self) -> Parameter:
        # Of the full shape from the start: autograd remembers it. A Parameter copies what it is made of.
        whole = Parameter(self.buffer, name=self.held.name, requires_grad=self.held.requires_grad)
        whole.held_by_unit = True
        add_in_order(whole)
        return whole if self.before is None else spread(whole, self.before)

    def reshard(self) -> None:
        """The model finds this rank's part; the storage of the whole is emptied."""
        if self.in_place:
            self._put(self.held)
            self.in_place = False
        if self.gathered and self.buffer is not None:
            self.buffer.untyped_storage().resize_(0)
            self.gathered = False

    def take_gradient(self, average: bool) -> None:
        """Adds this rank's part of what a backward left, summed over the ranks, to ``main_grad``."""
        if self.whole is None or self.whole.grad is None:
            return
        grad, self.whole.grad = self.whole.grad, None
        total = _total(grad, self.cuts, average)
        # A copy: a part that is a view can't be clipped in place.
        self._add(mint.chunk(total, self.group.size, 0)[self.group.index].copy())
