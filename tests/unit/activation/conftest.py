"""Small models whose regions are plain methods, and how to run and compare them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper


@pytest.fixture(autouse=True)
def _quiet(mindspore):
    """Every test here needs the session's MindSpore, and leaves no half recorded graph behind."""
    from mindspore.graph.api import _pynative_executor as executor

    recording = executor.grad_flag()
    yield
    if executor.grad_flag() != recording:
        executor.clear_res()
        executor.set_grad_flag(recording)


class Steps:
    """Runs of a loss and its gradients as numpy arrays, to be compared bit for bit."""

    @staticmethod
    def run(fn, *inputs, weights=()):
        """(loss, gradients of the inputs, gradients of the weights) of ``fn(*inputs).sum()``."""
        import mindspore as ms

        grad = ms.value_and_grad(lambda *a: fn(*a).sum(), tuple(range(len(inputs))), list(weights) or None)
        value, grads = grad(*inputs)
        return [value.asnumpy(), *_arrays(grads)]

    @staticmethod
    def same(left, right) -> bool:
        return len(left) == len(right) and all(a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


def _arrays(grads):
    if hasattr(grads, "asnumpy"):
        return [grads.asnumpy()]
    return [array for item in grads for array in _arrays(item)]


@pytest.fixture
def steps():
    return Steps


@pytest.fixture
def tensor():
    """tensor(rows, columns, seed=0) -> float32 with a fixed content."""
    import mindspore as ms

    def make(*shape, seed=0, dtype=np.float32):
        return ms.Tensor(np.random.RandomState(seed).randn(*shape).astype(dtype))

    return make


@pytest.fixture
def chain_model():
    """A block of named methods ``A``...: each is given as a function of (self, x); calls are counted by name."""
    import mindspore as ms
    from mindspore import nn

    class Block(nn.Cell):
        def __init__(self, parts, order, width):
            super().__init__()
            self.order = order
            self.calls = dict.fromkeys(parts, 0)
            rng = np.random.RandomState(7)
            for name in ("w", "v"):
                value = (rng.randn(width, width) / np.sqrt(width)).astype(np.float32)
                setattr(self, name, ms.Parameter(ms.Tensor(value), name=name))
            for name, part in parts.items():
                setattr(self, name, self._counted(name, part))

        def _counted(self, name, part):
            def call(*args, **kwargs):
                self.calls[name] += 1
                return part(self, *args, **kwargs)

            return call

        def construct(self, x):
            for name in self.order:
                x = getattr(self, name)(x)
            return x

    def make(parts, saved=(), width=4, boundary=True, order=None, **options):
        block = Block(parts, list(order or parts), width)
        for name in saved:
            setattr(block, name, checkpoint_exclude_wrapper(getattr(block, name), name=name, **options))
        return SimpleNamespace(
            block=block, run=checkpoint_wrapper(block, name="block") if boundary else block, calls=block.calls
        )

    return make
