"""Ascend's fused kernels, under the names and with the arguments that ``hp_memory.kernels.cpu.kernels`` documents."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.ops.auto_generate import FlashAttentionScore, GroupedMatmul


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    batch, heads, seq, dim = q.shape
    hidden = Tensor(np.triu(np.ones((seq, seq), np.uint8), 1))
    flash = FlashAttentionScore(heads, scale_value=dim**-0.5, input_layout="BNSD")
    out = flash(q, k, v, None, None, None, hidden)[3]
    return out.transpose(0, 2, 1, 3).reshape(batch * seq, heads * dim)


def count_per_expert(indices: Tensor, num_experts: int) -> Tensor:
    return mint.histc(indices.astype("float32"), num_experts, 0, num_experts).astype("int32")


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return mint.nn.functional.cross_entropy(logits, labels)


def grouped_matmul(x: Tensor, weight: Tensor, group_list: Tensor) -> Tensor:
    multiply = GroupedMatmul(split_item=3, group_type=0)
    return multiply([x], [weight], None, None, None, None, None, group_list)[0]


def reorder(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    return mint.index_select(x, 0, order)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return ops.rms_norm(x, weight, eps)[0]


def rotary_qkv(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    seq, dim = cos.shape
    x = qkv.reshape(-1, seq, heads + 2 * kv_heads, dim).transpose(0, 2, 1, 3)
    q, k, v = mint.split(x, [heads, kv_heads, kv_heads], 1)
    tables = cos.reshape(1, 1, seq, dim), sin.reshape(1, 1, seq, dim)
    q, k = (ops.rotary_position_embedding(part.contiguous(), *tables, 0) for part in (q, k))
    return q, k, v.contiguous()


def swiglu(x: Tensor) -> Tensor:
    return ops.swiglu(x, -1)


def token_permute(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    return ops.moe_token_permute(x, indices)


def token_unpermute(rows: Tensor, places: Tensor, probs: Tensor) -> Tensor:
    return ops.moe_token_unpermute(rows, places, probs=probs)


def topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = mint.topk(scores, k, -1)
    return values, indices.astype("int32")
