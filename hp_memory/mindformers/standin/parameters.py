"""A parameter of which this rank holds a part.

Modelled on HyperParallel, whose parameters are distributed tensors: MindFormers asks them for ``device_mesh``,
``placements``, ``layout``, ``local_shape``, ``to_local()`` and ``full_tensor()`` (``pynative/trainer/utils.py:
_get_grad_factor``, ``pynative/dtensor_compat.py: inplace_copy``, ``checkpoint/layout_adapter.py: preprocess_params``),
and clones them for the optimizer's states. Ours: the parameter's own shape stays that of the part, and initial values
are drawn for the whole tensor, so that a model begins with the same numbers however it is spread.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint

from hp_memory.kernels.cpu import collectives
from hp_memory.mindformers.standin.layouts import Cut, Layout
from hp_memory.mindspore.private import no_grad as _no_grad


def layout_of(tensor: Any) -> Layout | None:
    """How a parameter or gradient is spread; None for one that is whole."""
    return getattr(tensor, "layout", None)


def spread(tensor: Tensor, layout: Layout) -> Tensor:
    """Marks ``tensor`` as this rank's part of a whole one; returns it."""
    tensor.layout = layout
    tensor.device_mesh, tensor.placements = layout.mesh, layout.placements
    tensor.local_shape = layout.local_shape
    tensor.to_local = MethodType(_to_local, tensor)
    tensor.full_tensor = MethodType(_full_tensor, tensor)
    if isinstance(tensor, Parameter):
        tensor.normal_ = MethodType(_normal, tensor)
        tensor.clone = MethodType(_clone, tensor)
    return tensor


def local_parameter(parameter: Parameter, more: tuple[Cut, ...]) -> Parameter:
    """A new parameter for this rank's part, of the same name; on the meta device if the whole is there."""
    before = layout_of(parameter) or Layout((), tuple(parameter.shape))
    layout = before.cut_again(more)
    if parameter.device == "meta":
        with ms.DeviceCtx("meta"):
            local = Parameter(mint.empty(list(layout.local_shape), dtype=parameter.dtype), name=parameter.name)
    else:
        part = Layout(more, tuple(parameter.shape)).local_part(parameter.asnumpy())
        local = Parameter(Tensor(part), name=parameter.name)
    local.requires_grad = parameter.requires_grad
    return spread(local, layout)


def _to_local(self: Tensor) -> Tensor:
    return self


def _full_tensor(self: Tensor) -> Tensor:
    whole = self.asnumpy()
    for cut in reversed(self.layout.cuts):
        if cut.placement.is_shard() and cut.parts > 1:
            parts = collectives.gather_list(Tensor(whole), cut.mesh.group())
            whole = np.concatenate([part.asnumpy() for part in parts], axis=cut.placement.dim)
    return Tensor(whole)


def _normal(self: Parameter, mean: float = 0, std: float = 1, **_: Any) -> Parameter:
    whole = np.random.normal(mean, std, self.layout.full_shape).astype(np.float32)
    with _no_grad():
        self.copy_(Tensor(self.layout.local_part(whole)).astype(self.dtype))
    return self


def _clone(self: Parameter, init: Any = "same") -> Parameter:
    return spread(type(self).clone(self, init), self.layout)
