"""The stand-ins' values and gradients, against the same formula left to autograd."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint

from hp_memory.mindformers import cpu_kernels, cpu_ops

HIDDEN = -1e30


def _random(*shape: int, seed: int = 0) -> Tensor:
    return Tensor(np.random.RandomState(seed).randn(*shape).astype(np.float32))


def _same_gradients(kernel, formula, *inputs: Tensor) -> None:
    seed = _random(*formula(*inputs).shape, seed=9)
    positions = tuple(range(len(inputs)))
    for result in zip(
        *(ms.value_and_grad(lambda *x, f=f: (f(*x) * seed).sum(), positions)(*inputs)[1] for f in (kernel, formula)),
        strict=True,
    ):
        np.testing.assert_allclose(*(r.asnumpy() for r in result), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(kernel(*inputs).asnumpy(), formula(*inputs).asnumpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_with_narrow_values_and_shared_heads(kv_heads):
    seq, mask = 5, Tensor(np.triu(np.ones((5, 5), np.uint8), 1))
    q, k, v = _random(2, 4, seq, 6), _random(2, kv_heads, seq, 6, seed=1), _random(2, kv_heads, seq, 3, seed=2)
    kernel = cpu_kernels.FlashAttentionScore(4, scale_value=0.3, input_layout="BNSD")

    def formula(q, k, v):
        k, v = (t.repeat_interleave(4 // kv_heads, 1) if kv_heads < 4 else t for t in (k, v))
        scores = mint.matmul(q, mint.permute(k, (0, 1, 3, 2))) * 0.3 + mask.astype(ms.float32) * HIDDEN
        return mint.matmul(mint.softmax(scores, -1), v)

    _same_gradients(lambda *x: kernel(*x, attn_mask=mask)[3], formula, q, k, v)


@pytest.mark.parametrize("layout", ["BSH", "SBH"])
def test_attention_layouts_agree(layout):
    q, k, v = _random(2, 4, 5, 6), _random(2, 2, 5, 6, seed=1), _random(2, 2, 5, 6, seed=2)

    def pack(x):
        x = mint.reshape(mint.permute(x, (0, 2, 1, 3)), (2, 5, -1))
        return x if layout == "BSH" else mint.permute(x, (1, 0, 2))

    straight = cpu_kernels.FlashAttentionScore(4, input_layout="BNSD", sparse_mode=3)(q, k, v)[3]
    packed = cpu_kernels.FlashAttentionScore(4, input_layout=layout, sparse_mode=3)(*map(pack, (q, k, v)))[3]
    np.testing.assert_array_equal(packed.asnumpy(), pack(straight).asnumpy())


def test_grouped_matmul_with_an_empty_group():
    ends = Tensor(np.array([2, 2, 5], np.int64))

    def formula(x, w):
        return mint.cat([mint.matmul(x[:2], w[0]), mint.matmul(x[2:], w[2])], 0)

    call = cpu_kernels.GroupedMatmul(split_item=3, group_type=0)
    _same_gradients(
        lambda x, w: call([x], [w], None, None, None, None, None, ends)[0], formula, _random(5, 4), _random(3, 4, 3)
    )


def test_rms_norm():
    def formula(x, gamma):
        return x * mint.rsqrt(mint.mean(x * x, dim=-1, keepdim=True) + 1e-6) * gamma

    _same_gradients(lambda x, g: cpu_kernels.rms_norm(x, g, 1e-6)[0], formula, _random(3, 2, 4), _random(4, seed=1))


@pytest.mark.parametrize("dim", [-1, 1])
def test_swiglu(dim):
    def formula(x):
        gate, up = mint.chunk(x, 2, dim)
        return gate * mint.sigmoid(gate) * up

    _same_gradients(lambda x: cpu_kernels.swiglu(x, dim), formula, _random(3, 4, 6))


def test_topk_breaks_ties_by_position():
    scores = Tensor(np.array([[1, 2, 2, 0, 2]], np.float32))
    values, index = cpu_ops.topk(scores, 2)
    assert index.asnumpy().tolist() == [[1, 2]]
    assert values.asnumpy().tolist() == [[2, 2]]


def test_scatter_writes_a_value():
    out = cpu_ops.scatter_(Tensor(np.ones((2, 3), np.float32)), 1, Tensor(np.array([[0], [2]])), value=0.0)
    assert out.asnumpy().tolist() == [[0, 1, 1], [1, 1, 0]]
