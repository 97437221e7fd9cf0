"""Two threads that meet at each exchange: whoever communicates goes first, and a failed one leaves nobody waiting."""

from __future__ import annotations

import threading

import mindspore as ms
import numpy as np
import pytest

from hp_memory.mindformers.standin.overlap import CommComputeOverlap, HookRole, differentiable_sync_hook

COMM, COMPUTE = HookRole.COMM, HookRole.COMPUTE


def test_the_exchange_is_issued_before_the_other_thread_computes():
    overlap, done = CommComputeOverlap(), []
    meet, issued = overlap.coordinator.rendezvous, overlap.coordinator.notify_dispatched

    def forward():
        for i in range(20):
            meet(COMM)
            done.append(f"exchange {i}")
            issued(COMM)
            meet(COMPUTE)
            done.append(f"forward {i}")

    def backward():
        for i in range(20):
            meet(COMPUTE)
            done.append(f"backward {i}")
            issued(COMPUTE)
            meet(COMM)
            done.append(f"exchange back {i}")
            issued(COMM)

    overlap.run(forward, backward)
    assert len(done) == 80
    for i in range(20):
        assert done.index(f"exchange {i}") < done.index(f"backward {i}")
        assert done.index(f"exchange back {i}") < done.index(f"forward {i}")


def test_a_failed_backward_frees_the_forward_and_is_raised():
    overlap = CommComputeOverlap()

    def backward():
        raise ValueError("broken")

    with pytest.raises(RuntimeError, match="beside a forward") as error:
        overlap.run(lambda: overlap.coordinator.rendezvous(COMPUTE), backward)
    assert isinstance(error.value.__cause__, ValueError)
    assert not overlap.coordinator.is_enabled()


def test_a_failed_forward_frees_the_backward_and_is_raised_as_it_is():
    overlap, ended = CommComputeOverlap(), threading.Event()

    def forward():
        raise ValueError("broken")

    def backward():
        overlap.coordinator.rendezvous(COMPUTE)
        ended.set()

    with pytest.raises(ValueError, match="broken"):
        overlap.run(forward, backward)
    assert ended.is_set()


@pytest.mark.parametrize("name", ["A", "B", "C", "D", "D_LAST", "CHUNK_START", "CHUNK_END"])
def test_outside_a_pair_a_hook_is_the_identity_with_a_node(mindspore, name):
    overlap = CommComputeOverlap()
    x = ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    grad = ms.value_and_grad(lambda x: (differentiable_sync_hook(x * 2, name, overlap.coordinator) * x).sum(), 0)
    value, dx = grad(x)
    assert float(value.asnumpy()) == float((2 * x * x).sum().asnumpy())
    assert np.array_equal(dx.asnumpy(), 4 * x.asnumpy())


def test_the_hooks_of_two_equal_chunks_pair_up(mindspore):
    """A forward's hooks beside a backward's, with what MindFormers' function adds at both ends of a chunk."""
    overlap, passed = CommComputeOverlap(), []
    coordinator, w = overlap.coordinator, ms.Tensor(np.ones((2, 2), np.float32))

    def layer(x, last):
        for name in ("A", "B", "C", "D_LAST" if last else "D"):
            x = differentiable_sync_hook(x * w, name, coordinator)
        return x

    def chunk(x):
        return layer(layer(x, False), True).sum()

    x = ms.Tensor(np.ones((2, 2), np.float32))

    def forward():
        coordinator.rendezvous(COMPUTE)
        passed.append(float(chunk(x).asnumpy()))
        coordinator.notify_dispatched(COMM)
        coordinator.rendezvous(COMPUTE)

    def backward():
        # The recorded backward of another micro-batch, reduced to its meetings in order.
        roles = [(COMPUTE, COMM), (COMM, COMPUTE), (COMPUTE, COMM), (COMM, COMPUTE)] * 2
        for issued, following in roles:
            coordinator.notify_dispatched(issued)
            coordinator.rendezvous(following)
        coordinator.rendezvous(COMPUTE)

    overlap.run(forward, backward)
    assert passed == [4.0]
