"""Every CPU kernel against double-precision numpy, and what it saves against what the Ascend gradient reads."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(scope="module")
def kernels(mindspore):
    from hp_memory.kernels.cpu import kernels

    return kernels


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def rms_norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def causal_attention(q, k, v):
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    future = np.triu(np.full(scores.shape[-2:], -np.inf), 1)
    out = softmax(scores + future) @ v
    b, n, s, d = out.shape
    return out.transpose(0, 2, 1, 3).reshape(b * s, n * d)


def swiglu(x):
    gate, up = np.split(x, 2, -1)
    return gate / (1 + np.exp(-gate)) * up


def test_rms_norm(kernels, check_kernel):
    check_kernel(lambda x, w: kernels.rms_norm(x, w, 1e-6), rms_norm, normal(5, 8), normal(8, seed=1))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (3, 1)])
def test_causal_attention(kernels, check_kernel, heads, kv_heads):
    q, k, v = normal(2, heads, 6, 4), normal(2, kv_heads, 6, 4, seed=1), normal(2, kv_heads, 6, 4, seed=2)
    check_kernel(kernels.causal_attention, causal_attention, q, k, v)


def test_causal_attention_looks_at_no_later_position(kernels, mindspore):
    q, k, v = (normal(1, 1, 5, 4, seed=i).astype(np.float32) for i in range(3))
    before = kernels.causal_attention(*map(mindspore.Tensor, (q, k, v))).asnumpy()
    k[:, :, 3:], v[:, :, 3:] = 100.0, -100.0
    after = kernels.causal_attention(*map(mindspore.Tensor, (q, k, v))).asnumpy()
    np.testing.assert_array_equal(before[:3], after[:3])


def test_rotary_qkv(kernels, check_kernel, mindspore):
    from hp_memory.models.reference.attention import rotary_tables

    seq, dim, heads, kv_heads = 6, 4, 2, 1
    cos, sin = rotary_tables(seq, dim, 100.0)

    def reference(qkv):
        x = qkv.reshape(-1, seq, heads + 2 * kv_heads, dim).transpose(0, 2, 1, 3)
        # As complex numbers: the pair (i, i + D/2) of position p is turned by p * theta^(-2i/D).
        pairs = x[..., : dim // 2] + 1j * x[..., dim // 2 :]
        angle = np.outer(np.arange(seq), 100.0 ** (-np.arange(0, dim, 2) / dim))
        turned = pairs * np.exp(1j * angle)
        rotated = np.concatenate((turned.real, turned.imag), -1)
        return rotated[:, :heads], rotated[:, heads : heads + kv_heads], x[:, heads + kv_heads :]

    check_kernel(lambda x: kernels.rotary_qkv(x, cos, sin, heads, kv_heads), reference, normal(3 * seq, 16))


def test_swiglu(kernels, check_kernel):
    check_kernel(kernels.swiglu, swiglu, normal(5, 8))


@pytest.mark.parametrize("ends", [[3, 5, 9], [0, 0, 9], [9, 9, 9], [0, 4, 4]])
def test_grouped_matmul(kernels, check_kernel, mindspore, ends):
    starts = [0, *ends[:-1]]

    def reference(x, weight):
        return np.concatenate([x[a:b] @ weight[g] for g, (a, b) in enumerate(zip(starts, ends, strict=True))])

    group_list = mindspore.Tensor(ends, mindspore.int64)
    check_kernel(
        lambda x, w: kernels.grouped_matmul(x, w, group_list), reference, normal(ends[-1], 4), normal(3, 4, 6, seed=1)
    )


def test_grouped_matmul_of_no_rows_gives_no_rows_and_no_gradient(kernels, mindspore):
    x, weight = mindspore.ops.zeros((0, 4)), mindspore.Tensor(normal(2, 4, 6).astype(np.float32))
    group_list = mindspore.Tensor([0, 0], mindspore.int64)
    assert kernels.grouped_matmul(x, weight, group_list).shape == (0, 6)
    dx, dweight = mindspore.grad(lambda x, w: kernels.grouped_matmul(x, w, group_list).sum(), (0, 1))(x, weight)
    assert dx.shape == (0, 4)
    assert not dweight.asnumpy().any()


@pytest.mark.parametrize(("tokens", "k", "experts"), [(5, 2, 4), (6, 1, 3), (4, 3, 3)])
def test_permute_and_unpermute(kernels, check_kernel, mindspore, tokens, k, experts):
    chosen = np.argsort(normal(tokens, experts), -1)[:, :k].astype(np.int32)
    indices = mindspore.Tensor(chosen)
    order = np.argsort(chosen.ravel(), kind="stable")
    check_kernel(lambda x: kernels.token_permute(x, indices)[0], lambda x: x[order // k], normal(tokens, 8))
    _, places = kernels.token_permute(mindspore.ops.zeros((tokens, 8)), indices)

    def weighted_sum(rows, probs):
        return (rows[places.asnumpy()].reshape(tokens, k, -1) * probs[..., None]).sum(1)

    check_kernel(
        lambda rows, probs: kernels.token_unpermute(rows, places, probs),
        weighted_sum,
        normal(tokens * k, 8, seed=1),
        normal(tokens, k, seed=2),
    )


def test_topk_gives_ties_to_the_lower_expert(kernels, mindspore):
    scores = mindspore.Tensor(np.array([[0.2, 0.4, 0.4, 0.4], [0.1, 0.1, 0.1, 0.1]], np.float32))
    values, indices = kernels.topk(scores, 2)
    assert indices.asnumpy().tolist() == [[1, 2], [0, 1]]
    np.testing.assert_array_equal(values.asnumpy(), np.array([[0.4, 0.4], [0.1, 0.1]], np.float32))


def test_topk_gradient_goes_to_the_chosen(kernels, check_kernel):
    x = normal(4, 5)
    check_kernel(lambda x: kernels.topk(x, 2)[0], lambda x: -np.sort(-x, -1)[:, :2], x)


def test_count_per_expert(kernels, mindspore):
    counts = kernels.count_per_expert(mindspore.Tensor([[0, 2], [2, 3]], mindspore.int32), 5)
    assert counts.asnumpy().tolist() == [1, 0, 2, 1, 0]


@pytest.mark.parametrize("rows", [7, 0])
def test_reorder_and_its_way_back(kernels, mindspore, rows):
    order = np.random.default_rng(0).permutation(rows).astype(np.int32)
    there, back = mindspore.Tensor(order), mindspore.Tensor(np.argsort(order).astype(np.int32))
    x = mindspore.Tensor(normal(rows, 4).astype(np.float32)) if rows else mindspore.ops.zeros((0, 4))
    moved = kernels.reorder(x, there, back)
    np.testing.assert_array_equal(moved.asnumpy(), x.asnumpy()[order])
    weight = mindspore.Tensor(np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)) if rows else x
    grad = mindspore.grad(lambda x: (kernels.reorder(x, there, back) * weight).sum())(x)
    np.testing.assert_array_equal(grad.asnumpy()[order], weight.asnumpy())


def test_cross_entropy(kernels, check_kernel, mindspore):
    labels = np.array([1, 0, 3], np.int32)

    def reference(logits):
        return -np.log(softmax(logits))[np.arange(3), labels].mean()

    check_kernel(lambda x: kernels.cross_entropy(x, mindspore.Tensor(labels)), reference, normal(3, 4))


def test_kernels_save_what_the_ascend_gradient_reads_and_no_more(kernels, saved_by, mindspore):
    def tensor(*shape, seed=0):
        return mindspore.Tensor(normal(*shape, seed=seed).astype(np.float32))

    def shapes(function, *tensors):
        return [shape for shape, _ in saved_by(function, *tensors)]

    group_list = mindspore.Tensor([2, 5], mindspore.int64)
    order = mindspore.Tensor(np.arange(5)[::-1].astype(np.int32))
    indices = mindspore.Tensor([[0, 1], [1, 0]], mindspore.int32)
    x, weight = tensor(5, 4), tensor(2, 4, 6)
    assert shapes(lambda x, w: kernels.grouped_matmul(x, w, group_list), x, weight) == [(5, 4), (2, 4, 6), (2,)]
    assert shapes(kernels.swiglu, x) == [(5, 4)]
    assert shapes(lambda x, w: kernels.rms_norm(x, w, 1e-6), x, tensor(4)) == [(5, 4), (5, 1), (4,)]
    assert shapes(lambda x: kernels.reorder(x, order, order), x) == [(5,)]
    assert shapes(lambda x: kernels.token_permute(x, indices), tensor(2, 4)) == [(4,)]
    q, kv = tensor(1, 2, 3, 4), tensor(1, 1, 3, 4)
    assert shapes(kernels.causal_attention, q, kv, kv) == [
        (1, 2, 3, 4),
        (1, 1, 3, 4),
        (1, 1, 3, 4),
        (3, 8),
        (1, 2, 3, 8),
        (1, 2, 3, 8),
    ]


def test_a_saved_input_is_the_input_and_no_copy(kernels, saved_by, mindspore):
    x = mindspore.Tensor(normal(5, 4).astype(np.float32))
    assert saved_by(kernels.swiglu, x) == [((5, 4), x.untyped_storage().data_ptr())]


def test_attention_output_is_no_view_so_that_the_next_matmul_saves_it_and_no_copy(kernels, saved_by, mindspore):
    q, k, v = (mindspore.Tensor(normal(1, 2, 3, 4, seed=i).astype(np.float32)) for i in range(3))
    weight = mindspore.Tensor(normal(8, 8).astype(np.float32))
    kept = saved_by(lambda q, k, v, w: mindspore.mint.matmul(kernels.causal_attention(q, k, v), w), q, k, v, weight)
    outputs = {address for shape, address in kept if shape == (3, 8)}
    assert len(outputs) == 1
