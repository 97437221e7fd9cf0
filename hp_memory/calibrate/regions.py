"""Seconds of each region by itself: called again with what the model called it with, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from hp_memory.activation.trees import map_tensors, tensors_in
from hp_memory.install import Wrappers, install
from hp_memory.layout import ActivationPlan
from hp_memory.models.sites import BlockSites

_FLOATS = (ms.float32, ms.float16, ms.bfloat16)


@dataclass(frozen=True)
class Measured:
    """Seconds of a call's forward and backward; ``spread`` is the middle half of both together over their median."""

    forward: float
    backward: float
    spread: float


@dataclass(frozen=True)
class Call:
    """A callable and what the model called it with."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parameters: Sequence[Parameter]


def catch_calls(model: nn.Cell, plan: ActivationPlan, blocks: Sequence[BlockSites]) -> dict[str, Call]:
    """Makes the model's next forward fill what is returned: region path -> its first call. The model stays so.

    Args:
        plan: one that saves everything, so that each region is named and nothing else is put around it.
    """
    calls: dict[str, Call] = {}

    def named(target: Any, name: str) -> Any:
        owner = target if isinstance(target, nn.Cell) else target.__self__
        if isinstance(target, nn.Cell):
            # A Cell stays where it is: another object in its place would change the model's parameters' names.
            target.construct = _keeping(target.construct, name, calls, owner)
            return target
        return _keeping(target, name, calls, owner)

    install(model, plan, blocks, Wrappers(named=named))
    return calls


def _keeping(target: Callable[..., Any], name: str, calls: dict[str, Call], owner: nn.Cell) -> Callable[..., Any]:
    def keeping(*args: Any, **kwargs: Any) -> Any:
        calls.setdefault(name, Call(target, args, kwargs, owner.trainable_params()))
        return target(*args, **kwargs)

    return keeping


def measure(call: Call, repeats: int, finish: Callable[[], None]) -> Measured:
    """The call's forward and backward.

    A backward's seconds are those of forward and backward together, less the forward's and less what the same machinery
    takes around a function that returns its inputs.

    Args:
        repeats: how often each is run, after once unmeasured.
        finish: waits until the device has done what was asked of it.
    """
    inputs = list(_floats(call.args))

    def forward(*floats: Tensor) -> tuple[Tensor, ...]:
        return tuple(_floats(call.target(*_with(call.args, iter(floats)), **call.kwargs)))

    alone = _seconds(lambda: call.target(*call.args, **call.kwargs), repeats, finish)
    if not inputs or not forward(*inputs):
        return Measured(median(alone), 0.0, _spread(alone))
    gradients = _gradients(forward, _read(forward, inputs, call.parameters))
    both = _seconds(lambda: gradients(*inputs), repeats, finish)
    nothing = _seconds(lambda: _gradients(lambda *floats: floats, [])(*inputs), repeats, finish)
    backward = median(both) - median(alone) - median(nothing)
    return Measured(median(alone), max(backward, 0.0), _spread(both))


def _gradients(forward: Callable[..., Any], parameters: Sequence[Parameter]) -> Callable[..., Any]:
    if not parameters:
        return ops.GradOperation(get_all=True)(forward)
    return ops.GradOperation(get_all=True, get_by_list=True)(forward, ms.ParameterTuple(parameters))


def _read(forward: Callable[..., Any], inputs: Sequence[Tensor], parameters: Sequence[Parameter]) -> list[Parameter]:
    """The parameters that the call reads: the gradient of any other is zero, and isn't computed in the model."""
    if not parameters:
        return []
    found = _gradients(forward, parameters)(*inputs)[1]
    return [p for p, gradient in zip(parameters, found, strict=True) if np.any(gradient.asnumpy())]


def _seconds(run: Callable[[], Any], repeats: int, finish: Callable[[], None]) -> list[float]:
    run()
    finish()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        finish()
        found.append(time.perf_counter() - began)
    return found


def _spread(seconds: Sequence[float]) -> float:
    low, _, high = quantiles(seconds, n=4)
    return (high - low) / median(seconds)


def _floats(value: Any) -> Iterator[Tensor]:
    return (tensor for tensor in tensors_in((value,)) if tensor.dtype in _FLOATS)


def _with(args: tuple[Any, ...], floats: Iterator[Tensor]) -> tuple[Any, ...]:
    """The same arguments with other floating point tensors in their places."""
    return map_tensors(args, lambda tensor: next(floats) if tensor.dtype in _FLOATS else tensor)
