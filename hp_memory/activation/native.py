"""The names of MindSpore 2.10 this package stands on that aren't public, in one place.

Everything here was measured on the CPU wheel of 2.10.0; a newer MindSpore is checked against this file first.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

from mindspore import Parameter, Tensor, ops

from hp_memory.mindspore.private import (
    AmpDecorator,
    Cell_,
    MixedPrecisionType,
    _DispatchGuardStack,
    as_strided,
    executor,
    get_curr_amp_strategy,
)

__all__ = [
    "Cell_",
    "InputSaver",
    "RecomputeHandle",
    "amp_decorator",
    "as_strided",
    "cell_precision",
    "collector",
    "current_session",
    "detached",
    "early_stop_override",
    "empty_trigger",
    "get_curr_amp_strategy",
    "hooks",
    "hooks_active",
    "parameter_storages",
    "recording",
    "replay_graph",
    "session_handles",
]

# The package attribute of this name is the public function, so the module has to be asked for.
from hp_memory.mindspore.private import recompute as _recompute

RecomputeHandle = _recompute._RecomputeHandle
InputSaver = _recompute._InputSaver
session_handles = _recompute._recompute_session_handles

current_session = _recompute._recompute_session.get
collector = _recompute._recompute_handle_collector.get
hooks_active = executor.is_saved_tensor_hook_active


def detached(tensor: Tensor) -> Tensor:
    """The same storage without the graph.

    ``.data`` is forty times cheaper, but of a view taken under a dispatch mode it keeps the view's graph alive.
    """
    return ops.stop_gradient(tensor) if _DispatchGuardStack.has_dispatch_guard() else tensor.data


def early_stop_override() -> bool | None:
    """What MindSpore's own early-stop context manager asks for, None outside it."""
    return _recompute._enable_recompute_early_stop


def recording() -> bool:
    """True while operations are recorded for a backward: a grad function runs its forward."""
    return executor.grad_flag() and executor.enable_grad()


class hooks:
    """``ms.saved_tensors_hooks`` without the checks of its decorator, which cost more than the rest of it."""

    __slots__ = ("_executor", "_pair", "_pipelined")

    def __init__(self, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
        self._pair = (pack, unpack)
        self._executor = executor._executor

    def __enter__(self) -> None:
        self._pipelined = not self._executor.disable_frontend_and_bprop_pipeline()
        self._executor.push_saved_tensor_hook(*self._pair)

    def __exit__(self, *_exc: object) -> None:
        self._executor.pop_saved_tensor_hook()
        if self._pipelined:
            self._executor.enable_frontend_and_bprop_pipeline()


def parameter_storages() -> set[int]:
    """Storage addresses of every living Parameter. Walks all objects of the process: for diagnosis only."""
    living = (item for item in gc.get_objects() if issubclass(type(item), Parameter))
    return {_address(parameter) for parameter in living}


def _address(parameter: Parameter) -> int:
    try:
        return parameter.untyped_storage().data_ptr()
    except SystemError:  # of a Parameter whose construction failed and that an error still holds
        return 0


def empty_trigger() -> Tensor:
    """A tensor without elements that needs a gradient, so that saving beside it makes a graph node."""
    trigger = ops.zeros((0,))
    trigger.requires_grad_()
    return trigger


@contextlib.contextmanager
def cell_precision(kind: MixedPrecisionType) -> Iterator[None]:
    """What ``Cell.__call__`` does about ``Cell.to_float``, for a replay that calls ``construct``."""
    executor.set_mixed_precision_type(kind)
    try:
        yield
    finally:
        executor.set_mixed_precision_type(MixedPrecisionType.NOTSET, False)


def amp_decorator(strategy: Any) -> AmpDecorator:
    """The mixed-precision context of a forward, for its replay."""
    return AmpDecorator(
        strategy.get_amp_level(), strategy.get_amp_dtype(), strategy.get_white_list(), strategy.get_black_list()
    )


@contextlib.contextmanager
def replay_graph() -> Iterator[None]:
    """Records a forward inside backward: grad flags on, and a graph of its own that is ended whatever happens."""
    grad_flag, enabled = executor.grad_flag(), executor.enable_grad()
    executor.set_grad_flag(True)
    executor.set_enable_grad(True)
    executor.new_empty_graph()
    try:
        yield
    finally:
        executor.end_empty_graph()
        executor.set_grad_flag(grad_flag)
        executor.set_enable_grad(enabled)
