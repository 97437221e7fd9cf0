"""The fused Ascend kernels that MindFormers calls, on a CPU, with the memory behaviour of the kernels.

Each keeps for backward what the Ascend kernel's gradient reads, no more: activation figures taken on a CPU then mean
something. All compute in float32 and return the type they were given.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint

from hp_memory.kernels.cpu import kernels
from hp_memory.mindspore.private import Function as _Function

LAYOUTS = ("BNSD", "BSH", "SBH")
# A masked score; far below every real one, and finite so that a fully masked row stays a number.
_HIDDEN = -1e30


class _Attention(_Function):
    """Saves q, k, v, the mask, the output and each row's softmax statistics, as FlashAttentionScoreGrad reads them."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
        scores = _scores(q, k, mask, scale)
        top = mint.amax(scores, dim=-1, keepdim=True)
        weights = mint.exp(scores - top)
        total = mint.sum(weights, dim=-1, keepdim=True)
        out = mint.matmul(weights / total, _share(_wide(v), q)).astype(q.dtype)
        ctx.scale = scale
        ctx.save_for_backward(q, k, v, mask, out, top, total)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, out, top, total = ctx.saved_tensors
        grad, wide_q = _wide(grad), _wide(q)
        weights = mint.exp(_scores(q, k, mask, ctx.scale) - top) / total
        dv = mint.matmul(_turn(weights), grad)
        dweights = mint.matmul(grad, _turn(_share(_wide(v), q)))
        dscores = weights * (dweights - mint.sum(grad * _wide(out), dim=-1, keepdim=True)) * ctx.scale
        dq = mint.matmul(dscores, _share(_wide(k), q))
        dk = mint.matmul(_turn(dscores), wide_q)
        return dq.astype(q.dtype), _per_group(dk, k), _per_group(dv, v), None, None


def _scores(q: Tensor, k: Tensor, mask: Tensor, scale: float) -> Tensor:
    return mint.matmul(_wide(q), _turn(_share(_wide(k), q))) * scale + mask.astype(ms.float32) * _HIDDEN


def _wide(x: Tensor) -> Tensor:
    return x.astype(ms.float32)


def _turn(x: Tensor) -> Tensor:
    return mint.permute(x, (0, 1, 3, 2))


def _share(kv: Tensor, q: Tensor) -> Tensor:
    """Repeats each key or value head for the query heads of its group."""
    batch, heads, seq, dim = kv.shape
    groups = q.shape[1] // heads
    if groups == 1:
        return kv
    repeated = mint.tile(mint.unsqueeze(kv, 2), (1, 1, groups, 1, 1))
    return mint.reshape(repeated, (batch, heads * groups, seq, dim))


def _per_group(grad: Tensor, kv: Tensor) -> Tensor:
    batch, heads, seq, dim = kv.shape
    if grad.shape[1] != heads:
        grad = mint.sum(mint.reshape(grad, (batch, heads, -1, seq, dim)), dim=2)
    return grad.astype(kv.dtype)


class FlashAttentionScore:
    """Attention with the primitive's call; only the output is computed, the other three results are None.

    Inputs are (B, N, S, D), (B, S, N*D) or (S, B, N*D); ``attn_mask`` is 1 where a position is hidden.
    """

    def __init__(
        self, head_num: int, scale_value: float = 1.0, input_layout: str = "BSH", sparse_mode: int = 0, **_: Any
    ) -> None:
        if input_layout not in LAYOUTS:
            raise ValueError(f"the CPU stand-in of FlashAttentionScore knows {LAYOUTS}, not {input_layout}")
        self.heads, self.scale, self.layout, self.sparse = head_num, scale_value, input_layout, sparse_mode

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, attn_mask: Any = None, **_: Any) -> tuple:
        mask = rest[3] if len(rest) > 3 else attn_mask
        # Keys' heads are as wide as queries', values' heads may be narrower but there are as many of them as of keys.
        width = query.shape[-1] if self.layout == "BNSD" else query.shape[-1] // self.heads
        groups = key.shape[1] if self.layout == "BNSD" else key.shape[-1] // width
        q, k, v = self._heads(query, self.heads), self._heads(key, groups), self._heads(value, groups)
        return None, None, None, self._back(_Attention.apply(q, k, v, self._mask(mask, q, k), self.scale))

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        if self.layout == "BNSD":
            return x
        x = mint.permute(x, (1, 0, 2)) if self.layout == "SBH" else x
        batch, seq, _ = x.shape
        return mint.permute(mint.reshape(x, (batch, seq, heads, -1)), (0, 2, 1, 3))

    def _back(self, out: Tensor) -> Tensor:
        if self.layout == "BNSD":
            return out
        batch, _, seq, _ = out.shape
        out = mint.reshape(mint.permute(out, (0, 2, 1, 3)), (batch, seq, -1))
        return mint.permute(out, (1, 0, 2)) if self.layout == "SBH" else out

    def _mask(self, mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor:
        rows, columns = q.shape[2], k.shape[2]
        if self.sparse in (2, 3):  # a compressed causal mask, which the kernel unfolds itself
            return Tensor(np.triu(np.ones((rows, columns), np.uint8), 1 + columns - rows))
        return Tensor(np.zeros((rows, columns), np.uint8)) if mask is None else mask


class GroupedMatmul:
    """The primitive's call for one x and one stack of weights: rows up to ``group_list[i]`` times ``weight[i]``."""

    def __init__(self, split_item: int = 0, group_type: int = -1, **_: Any) -> None:
        if (split_item, group_type) != (3, 0):
            raise ValueError(
                f"the CPU stand-in of GroupedMatmul knows split_item=3, group_type=0, not {split_item}, {group_type}"
            )

    def __call__(self, x: list[Tensor], weight: list[Tensor], *rest: Any, group_list: Any = None, **_: Any) -> tuple:
        ends = rest[5] if len(rest) > 5 else group_list
        return (kernels.grouped_matmul(x[0], weight[0], ends),)


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, None]:
    """The norm of the last dimension of x (..., H); the second result of the kernel isn't computed."""
    rows = mint.reshape(x.astype(ms.float32), (-1, x.shape[-1]))
    return mint.reshape(kernels.rms_norm(rows, gamma.astype(ms.float32), epsilon), x.shape).astype(x.dtype), None


def layer_norm(input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    x = input.astype(ms.float32)
    centred = x - mint.mean(x, dim=-1, keepdim=True)
    out = centred * mint.rsqrt(mint.mean(centred * centred, dim=-1, keepdim=True) + eps)
    out = out if weight is None else out * weight.astype(ms.float32)
    return (out if bias is None else out + bias.astype(ms.float32)).astype(input.dtype)


def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """silu(first half) * second half along ``dim``."""
    x = input if dim in (-1, input.ndim - 1) else mint.transpose(input, dim, -1)
    flat = mint.reshape(x.astype(ms.float32), (-1, x.shape[-1]))
    out = mint.reshape(kernels.swiglu(flat), (*x.shape[:-1], x.shape[-1] // 2)).astype(input.dtype)
    return out if x is input else mint.transpose(out, dim, -1)


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    x = input.astype(ms.float32)
    scaled = 0.7978845608 * (x + 0.044715 * x * x * x)
    inner = mint.tanh(scaled) if approximate == "tanh" else mint.erf(x * 0.70710678)
    return (0.5 * x * (1 + inner)).astype(input.dtype)
