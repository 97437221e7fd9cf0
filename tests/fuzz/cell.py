"""A program as a Cell: its operations, the containers of its regions, and what is written where."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, nn, ops
from mindspore.common._grad_function import _Function

from tests.fuzz.program import WIDTH, Program, Step

Pair = namedtuple("Pair", ["first", "second"])


@dataclasses.dataclass
class Record:
    """What many models return from a layer."""

    hidden: Any
    sizes: list
    more: dict


class Plain:
    """An object without any declaration."""

    def __init__(self, hidden: Any, other: Any) -> None:
        self.hidden = hidden
        self.other = other


class Slotted:
    __slots__ = ("hidden",)

    def __init__(self, hidden: Any) -> None:
        self.hidden = hidden


class SavesView(_Function):
    """x * 1.5 + x * x, whose backward reads the transposed view of its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.T)
        return x * 1.5 + x * x

    @staticmethod
    def backward(ctx, grad):
        (view,) = ctx.saved_tensors
        return grad * 1.5 + grad * view.T * 2.0


class Failure(Exception):
    """Raised by a body that was told to."""


def _halves(x: Tensor) -> Tensor:
    left, right = mint.chunk(x, 2, 1)
    return mint.cat((right * left, left), dim=1)


def _half(cell: nn.Cell, x: Tensor) -> Tensor:
    return mint.matmul(x.astype(ms.float16), cell.w.astype(ms.float16)).astype(ms.float32)


def _linear(cell: nn.Cell, x: Tensor) -> Tensor:
    weight = mint.transpose(ops.cast(cell.v, ms.float16), 1, 0)
    return ops.cast(mint.matmul(ops.cast(x, ms.float16), weight), ms.float32)


def _sorted(x: Tensor) -> Tensor:
    return ops.gather(x, ops.argsort(x.sum(1)), 0) * x if x.shape[0] else x * x


@ms.jit
def _jitted(x: Tensor) -> Tensor:
    return x * x * 0.25 + x


def _where(x: Tensor) -> Tensor:
    return ops.select(x > 0, x, x * 0.25)


def _host(x: Tensor) -> Tensor:
    return x * (0.5 if x.size and float(x.asnumpy().ravel()[0]) > 0 else 0.75)


def _local_write(x: Tensor) -> Tensor:
    y = x * 1.5
    y.copy_(x + 0.5)
    return y * y


def _assign_local(x: Tensor) -> Tensor:
    y = x * 1.5
    if x.shape[0]:
        y[0] = 0.5
    return y * y


UNARY: dict[str, Callable[[nn.Cell, Tensor], Tensor]] = {
    "scale": lambda cell, x: x * 0.5,
    "shift": lambda cell, x: x + 1.0,
    "square": lambda cell, x: x * x * 0.25,
    "silu": lambda cell, x: ops.silu(x),
    "tanh": lambda cell, x: ops.tanh(x),
    "matmul": lambda cell, x: mint.matmul(x, cell.w) * 0.5,
    "matmul_t": lambda cell, x: mint.matmul(x, cell.v.T) * 0.5,
    "half": _half,
    "linear": _linear,
    "expert": lambda cell, x: mint.matmul(x, cell.experts[x.shape[0] % 2]) * 0.5,
    "reshape": lambda cell, x: ops.tanh(x.reshape(-1)).reshape(-1, WIDTH),
    "halves": lambda cell, x: _halves(x),
    "flip": lambda cell, x: (x.T * x.T).T * 0.25,
    "view": lambda cell, x: SavesView.apply(x) * 0.5,
    "expand": lambda cell, x: x * x.sum(1, keepdim=True).broadcast_to(x.shape) * 0.25,
    "gather": lambda cell, x: ops.gather(x, ops.arange(x.shape[0]), 0) * x if x.shape[0] else x * x,
    "sorted": lambda cell, x: _sorted(x),
    "where": lambda cell, x: _where(x),
    "detached": lambda cell, x: x * ops.stop_gradient(ops.tanh(x)),
    "tied": lambda cell, x: mint.matmul(mint.matmul(x, cell.w), cell.w.T) * 0.25,
    "frozen": lambda cell, x: mint.matmul(x, cell.frozen) * 0.5,
    "column": lambda cell, x: x * x[:, 0:1],
    "host": lambda cell, x: _host(x),
    "local_write": lambda cell, x: _local_write(x),
    "assign_local": lambda cell, x: _assign_local(x),
    "none": lambda cell, x: x,
    "jitted": lambda cell, x: _jitted(x),
}


class Block(nn.Cell):
    """The program's block. ``bodies`` maps a region to what is called for it; ``runs`` counts bodies that ran."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        random = np.random.RandomState(3)
        for name, shape in (("w", (WIDTH, WIDTH)), ("v", (WIDTH, WIDTH)), ("experts", (2, WIDTH, WIDTH))):
            values = (random.randn(*shape) / 2).astype(np.float32)
            setattr(self, name, ms.Parameter(Tensor(values), name=name))
        frozen = (random.randn(WIDTH, WIDTH) / 2).astype(np.float32)
        self.frozen = ms.Parameter(Tensor(frozen), name="frozen", requires_grad=False)
        self.program = program
        self.bodies: dict[str, Callable] = {}
        self.runs: dict[str, int] = {}
        self.fails_at: int | None = None

    def body(self, step: Step, *operands: Any, **named: Any) -> Any:
        """What a region computes. Everything that decides how is in ``step``."""
        name = step["region"] or "bare"
        self.runs[name] = self.runs.get(name, 0) + 1
        given = _tensors((operands, named))
        # The last one is there to be written, unless what is written is saved too.
        tensors = given[:-1] if step["write"] not in (None, "saved") else given
        x = _single(tensors[0])
        for other in tensors[1:]:
            x = x * _single(other) * 0.5
        results = [x := UNARY[operation](self, x) for operation in step["operations"]]
        written = _write(step["write"], given[-1], results[-1])
        if self.fails_at is not None:
            self.fails_at -= 1
            if self.fails_at < 0:
                raise Failure(name)
        return pack(step["output"], results if written is None else [*results[:-1], written], tensors[0])

    def construct(self, x: Tensor) -> Tensor:
        pool = [x]
        for step in self.program["steps"]:
            inputs = [pool[i % len(pool)] for i in step["reads"]]
            if step["write"] == "buffer":
                inputs.append(ops.ones(inputs[0].shape, ms.float32))
            elif step["write"] is not None:
                inputs.append(inputs[0] * 1.0)
            call = self.bodies.get(step["region"] or "", self.body)
            results = _on_a_worker(_call, call, step, inputs) if step["worker"] else _call(call, step, inputs)
            pool.extend(_after(step, inputs, results))
            if step["write"] is not None:
                pool.append(inputs[-1] * inputs[-1] * 0.5)
        total = pool[-1]
        for tensor in pool[1:-1][::2]:
            total = total + tensor * 0.125
        return ops.tanh(total)


def _single(x: Tensor) -> Tensor:
    return x if x.dtype == ms.float32 else ops.cast(x, ms.float32)


def _on_a_worker(function: Callable, *args: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *args).result()


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [tensor for item in tree for tensor in _tensors(item)] if isinstance(tree, (tuple, list)) else []


def _call(call: Callable, step: Step, inputs: list[Tensor]) -> Any:
    form = step["arguments"]
    if form == "keyword":
        return call(step, **{f"t{i}": tensor for i, tensor in enumerate(inputs)})
    if form == "nested":
        return call(step, [inputs[0], (None, inputs[1:])])
    if form == "mapped":
        return call(step, {"a": inputs[0], "b": {"rest": inputs[1:]}})
    if form == "with_none":
        return call(step, None, *inputs, None)
    if form == "with_array":
        return call(step, np.arange(3), *inputs)
    return call(step, *inputs)


def pack(form: str, results: list[Tensor], first: Tensor) -> Any:
    """The body's results in the container that its region returns."""
    last = results[-1]
    forms: dict[str, Callable[[], Any]] = {
        "one": lambda: last,
        "list": lambda: list(results),
        "tuple": lambda: tuple(results),
        "dict": lambda: {"first": results[0], "last": {"value": last}, "count": len(results)},
        "named": lambda: Pair(results[0], last),
        "dataclass": lambda: Record(last, [1, 2], {"first": results[0]}),
        "object": lambda: Plain(Slotted(last), results[0]),
        "with_input": lambda: (last, first),
        "twice": lambda: [last, {"again": last}],
        "with_none": lambda: (None, last, None),
        "with_numbers": lambda: (last, np.array([1.0, 3.0]), [1.0, [3.0]], {"a": 1.0}),
        "attribute": lambda: _tagged(last),
        "tiny": lambda: (last, last.sum()),
    }
    return forms[form]()


def _tagged(tensor: Tensor) -> Tensor:
    tensor.scale = 0.5
    tensor.history = [1.0, 2.0]
    return tensor


def _unpack(form: str, results: Any) -> list[Tensor]:
    """The float tensors of (rows, WIDTH) that a block goes on with; everything else in the result is used too."""
    if form == "dict":
        return [results["first"], results["last"]["value"] * float(results["count"])]
    if form == "dataclass":
        return [results.hidden * float(sum(results.sizes)), results.more["first"]]
    if form == "object":
        return [results.hidden.hidden, results.other]
    if form == "twice":
        return [results[0], results[1]["again"]]
    if form == "with_none":
        return [results[1]]
    if form == "with_numbers":
        scale = float(results[1][0]) + results[2][0] + results[2][1][0] + results[3]["a"]
        return [results[0] * scale]
    if form == "attribute":
        return [results * (results.scale + results.history[0])]
    if form == "tiny":
        return [results[0] * results[1]]
    return [results] if form == "one" else list(results)


def _write(kind: str | None, target: Tensor, value: Tensor) -> Tensor | None:
    """Writes ``value`` into the last tensor the body was given; returns what the body returns instead, if anything."""
    if kind in ("copy", "buffer", "returned", "used", "saved"):
        target.copy_(value * 0.5)
    elif kind == "view_copy":
        target.view(-1).copy_((value * 0.5).reshape(-1))
    elif kind == "alias":
        target.data.copy_(value * 0.5)
    elif kind == "assign":
        ops.assign(target, ops.stop_gradient(value) * 0.5)
    elif kind == "setitem" and target.shape[0]:
        target[0] = 0.5
    return {"returned": target, "used": target * target if kind == "used" else None}.get(kind or "")


def _after(step: Step, inputs: list[Tensor], results: Any) -> list[Tensor]:
    """What the block does with a result besides reading it."""
    after, form = step["after"], step["output"]
    found = _unpack(form, results)
    if after == "change_numbers":
        _change(results)
        found += [tensor * 0.5 for tensor in _unpack(form, results)]
    elif after == "write_output":
        found[0].copy_(found[0] * 2.0)
    elif after == "write_input":
        inputs[0] = inputs[0] * 1.0
        inputs[0].copy_(inputs[0] * 2.0)
        found.append(inputs[0])
    return found


def _change(results: Any) -> None:
    """Changes every number and container that isn't a tensor, as a block that pads its split sizes does."""
    if isinstance(results, np.ndarray):
        results += 1.0
    elif isinstance(results, list):
        for index, item in enumerate(results):
            if isinstance(item, float):
                results[index] = item + 1.0
            _change(item)
    elif isinstance(results, tuple):
        for item in results:
            _change(item)
    elif isinstance(results, dict):
        for key, item in list(results.items()):
            if isinstance(item, (int, float)):
                results[key] = item + 1
            _change(item)
    elif isinstance(results, Record):
        results.sizes.append(3)
        results.hidden = results.hidden * 2.0
    elif isinstance(results, Plain):
        results.hidden.hidden = results.hidden.hidden * 2.0
    elif isinstance(results, Tensor) and hasattr(results, "history"):
        results.history[0] += 1.0
