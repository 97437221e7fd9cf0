"""``tensor.backward()`` and friends, on top of what MindSpore 2.10 has under other names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hp_memory.mindspore.private import c_expression as native
from hp_memory.mindspore.private import executor as _pynative_executor

_ALIASES = {"requires_grad": "_requires_grad", "grad": "_grad", "is_leaf": "_is_leaf", "grad_fn": "_grad_node"}
_WRITABLE = ("requires_grad", "grad")


def _alias(slot: str, writable: bool) -> property:
    def read(tensor: object) -> object:
        return getattr(tensor, slot)

    def write(tensor: object, value: object) -> None:
        setattr(tensor, slot, value)

    return property(read, write if writable else None)


def _as_tuple(value: object) -> object:
    if value is None or isinstance(value, tuple):
        return value
    return tuple(value) if isinstance(value, list) else (value,)


def _backward(
    tensor: object,
    gradient: object = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: object = None,
) -> None:
    # The native entry insists on tuples of seeds; callers pass one tensor.
    native.run_backward(
        (tensor,),
        _as_tuple(gradient),
        retain_graph,
        create_graph,
        _as_tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=True,
    )


def _detach(tensor: object) -> object:
    return native.pyboost_detach(tensor)


def enable_mindspore_backward_compat() -> None:
    """Adds ``backward``, ``grad``, ``requires_grad``, ``is_leaf``, ``grad_fn`` and ``detach`` to tensors, once."""
    base = native.TensorPy
    if getattr(base, "backward", None) is _backward:
        return
    _pynative_executor.set_grad_flag(True)
    methods: dict[str, Callable[..., object]] = {"backward": _backward, "detach": _detach}
    for name, method in methods.items():
        setattr(base, name, method)
    for name, slot in _ALIASES.items():
        setattr(base, name, _alias(slot, name in _WRITABLE))


def accumulate_backward(outputs: Sequence[object], gradients: Sequence[object]) -> None:
    """One backward from several outputs; gradients are added up in the leaves' ``grad``."""
    native.run_backward(
        tuple(outputs), tuple(gradients), False, False, None, allow_unreachable=True, accumulate_grad=True
    )
