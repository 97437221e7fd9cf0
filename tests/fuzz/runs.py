"""Runs a program: plain, under MindSpore's own recompute, or with this project's checkpoint and saved regions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore._c_expression import run_backward
from mindspore.common.recompute import _clear_recompute_session, _recompute_handle_collector_ctx, _recompute_session_ctx
from mindspore.graph.api import _pynative_executor as executor

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper
from hp_memory.pipeline.session import RecomputeSession
from hp_memory.pipeline.split_backward import SplitBackward
from tests.fuzz.cell import Block, Failure
from tests.fuzz.program import WIDTH, Program

Results = list[list]


class Way:
    """One way to run a program's block; ``forwards`` counts those that came to an end."""

    def __init__(self, program: Program, kind: str) -> None:
        self.block = Block(program)
        self.forwards = 0
        self.run: Callable[[Tensor], Tensor] = self.block
        if kind == "recompute":
            self.run = lambda x: ms.recompute(self.block, x, use_reentrant=False, early_stop=False)
        if kind == "own":
            for name in program["saved"]:
                self.block.bodies[name] = checkpoint_exclude_wrapper(self.block.body, name=name)
            self.run = checkpoint_wrapper(self.block, name="block", early_stop=program["early_stop"])

    def forward(self, x: Tensor) -> Tensor:
        out = self.run(x)
        self.forwards += 1
        return out


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Forwards inside are recorded without a grad function around them."""
    before = executor.grad_flag()
    executor.set_grad_flag(True)
    try:
        yield
    except BaseException:
        executor.clear_res()
        raise
    finally:
        executor.set_grad_flag(before)


def _engine(out: Tensor, inputs: tuple, retain: bool) -> tuple:
    return run_backward(
        (out,), (ops.ones_like(out),), retain, False, inputs, allow_unreachable=True, accumulate_grad=False
    )


def _whole(out: Tensor, x: Tensor, weights: tuple, _handles: list) -> tuple:
    return _engine(out, (x, *weights), False)


def _dx_dw(out: Tensor, x: Tensor, weights: tuple, _handles: list) -> tuple:
    return _engine(out, (x,), True) + _engine(out, weights, False)


def _retained(out: Tensor, x: Tensor, weights: tuple, _handles: list) -> tuple:
    _engine(out, (x, *weights), True)
    return _engine(out, (x, *weights), False)


def _session(out: Tensor, x: Tensor, weights: tuple, handles: list, fire: bool = False) -> tuple:
    session = object()
    with _recompute_session_ctx(session, retain_on_unpack=True):
        for handle in handles if fire else ():
            handle.recompute(session)
        dx = _engine(out, (x,), True)
    with _recompute_session_ctx(session, retain_on_unpack=False):
        dw = _engine(out, weights, False)
    _clear_recompute_session(session)
    return dx + dw


def _prefired(out: Tensor, x: Tensor, weights: tuple, handles: list) -> tuple:
    return _session(out, x, weights, handles, fire=True)


def _double(out: Tensor, x: Tensor, weights: tuple, _handles: list) -> tuple:
    """Gradients of a gradient."""
    slope = run_backward((out,), (ops.ones_like(out),), True, True, (x,), allow_unreachable=True, accumulate_grad=False)
    return (*slope, *_engine((slope[0] * slope[0]).sum(), (x, *weights), False))


def _split(out: Tensor, x: Tensor, weights: tuple, _handles: list) -> tuple:
    halves = SplitBackward((out,), (x,), weights)
    return halves.dx((ops.ones_like(out),)) + halves.dw()


def _thread(out: Tensor, x: Tensor, weights: tuple, _handles: list) -> tuple:
    """On a thread that never saw the forward."""
    box: list = []

    def work() -> None:
        try:
            box.append(_engine(out, (x, *weights), False))
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]


BACKWARDS = {
    "whole": _whole,
    "dx_dw": _dx_dw,
    "session": _session,
    "prefired": _prefired,
    "retained": _retained,
    "split": _split,
    "thread": _thread,
    "double": _double,
}


def _split_session(way: Way, x: Tensor, weights: tuple) -> Callable[[], tuple]:
    """A forward under the pipeline's session; returns its two halves of backward."""
    session = RecomputeSession("micro-batch")
    with session.recording():
        out = way.forward(x)
    halves = SplitBackward((out,), (x,), weights)

    def backward() -> tuple:
        session.prefire()
        with session.use("dx"):
            dx = halves.dx((ops.ones_like(out),))
        with session.use("dw"):
            return (out, *dx, *halves.dw())

    return backward


def _flight(way: Way, x: Tensor, weights: tuple, how: str) -> Callable[[], tuple]:
    if how == "split_session":
        return _split_session(way, x, weights)
    with _recompute_handle_collector_ctx() as handles:
        out = way.forward(x)
    return lambda: (out, *BACKWARDS[how](out, x, weights, handles))


def train(way: Way, program: Program, how: str) -> Results:
    """Output and gradients of each micro-batch as arrays; the forwards come first, the backwards in the order."""
    weights = tuple(way.block.trainable_params())
    if program["raises"] is not None:
        _fail_once(way, program["raises"])
    flights: list[Callable[[], tuple] | None] = []
    for index in range(program["micro_batches"]):
        x = Tensor(np.random.RandomState(index).randn(program["rows"], WIDTH).astype(program["dtype"]))
        x.requires_grad_()
        flights.append(_flight(way, x, weights, how))
    results: dict[int, list] = {}
    for index in program["order"]:
        backward, flights[index] = flights[index], None
        assert backward is not None
        results[index] = [_bits(item) for item in backward()]
        del backward
    return [results[index] for index in sorted(results)]


def _fail_once(way: Way, at: int) -> None:
    """A forward whose ``at``-th body raises, if it has so many: it must leave nothing behind."""
    x = Tensor(np.ones((program_rows(way), WIDTH), np.float32))
    x.requires_grad_()
    way.block.fails_at = at
    try:
        way.run(x)
    except Failure:
        executor.clear_res()
        executor.set_grad_flag(True)
    finally:
        way.block.fails_at = None
    way.block.runs.clear()


def program_rows(way: Way) -> int:
    return way.block.program["rows"]


def _bits(item: Any) -> Any:
    if item is None:
        return None
    array = item.asnumpy()
    return array.shape, str(array.dtype), array.tobytes()
