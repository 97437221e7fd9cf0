"""FLOPs of an operation from its name and shapes. A multiply-add is two; element-wise operations count as 0.

Only products count: they are what a replay spends its time on apart from moving bytes, which the cost model of the
search adds from the bytes an operation reads and writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Shape = tuple[int, ...]

MATMULS = ("MatMul", "MatMulExt", "MatMulV2", "BatchMatMul", "BatchMatMulExt", "BatchMatMulV2", "Mm", "Dense", "BMM")
GROUPED = ("GroupedMatmul", "GroupedMatmulV2", "GroupedMatmulV4")


def flops(name: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> int:
    """FLOPs of one operation.

    Args:
        name: the operation's name as MindSpore dispatches it.
        inputs: shapes of its tensor inputs, in order.
        outputs: shapes of its tensor outputs.
    """
    if not outputs or not inputs:
        return 0
    if name in MATMULS:
        return _product(inputs, outputs[0])
    if name in GROUPED:
        return _grouped(inputs, outputs[0])
    if name == "FlashAttentionScore":
        return _attention(inputs, outputs, outputs[-1], 1)
    if name == "FlashAttentionScoreGrad":
        # Recomputes the scores, then four products: 2.5 times the forward's two.
        return _attention(inputs, inputs, inputs[3], 2.5)
    return 0


def _product(inputs: Sequence[Shape], output: Shape) -> int:
    """2 * elements of the output * length of the sum, which is what both inputs share."""
    left, right = inputs[0], inputs[1]
    if not left or not right:
        return 0
    squared = math.prod(left) * math.prod(right) * math.prod(output)
    batch = math.prod(output[:-2]) if len(left) == len(right) == len(output) > 2 else 1
    # (b*m*k)(b*k*n)(b*m*n) = b^3 (m k n)^2, whatever is transposed.
    return 2 * batch * math.isqrt(squared // batch**3)


def _grouped(inputs: Sequence[Shape], output: Shape) -> int:
    """Each row is multiplied by one expert's matrix: (R, K) x (G, K, N); weights' gradient: (K, R) x (R, N)."""
    x, other = inputs[0], inputs[1]
    if len(other) == 3:
        return 2 * x[0] * other[1] * other[2]
    return 2 * math.prod(x) * output[-1]


def _attention(inputs: Sequence[Shape], around: Sequence[Shape], out: Shape, times: float) -> int:
    """Causal attention over (B, N, S, D), or (S, B, N*D) or (B, S, N*D), inputs: half of 4 * B * N * S^2 * D.

    Args:
        inputs: queries, keys and values first.
        around: where the softmax's statistics (B, N, S, 8) are; they tell the latter two layouts apart.
        out: shape of what attention returns.
    """
    q, k, v = inputs[:3]
    if len(q) == 4:
        batch, heads, seq, dim = q
        return int(times * batch * heads * seq * k[2] * (dim + v[3]))
    batch, _, seq, _ = next(shape for shape in around if len(shape) == 4 and shape[-1] == 8)
    return int(times * batch * seq * (k[0] * k[1] // batch) * (q[2] + out[2]))
