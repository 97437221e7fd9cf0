from __future__ import annotations

import pytest

from hp_memory.estimate.tracing.flops import flops


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "expected"),
    [
        ("MatMulExt", [(3, 5), (5, 7)], [(3, 7)], 2 * 3 * 5 * 7),
        ("MatMulExt", [(3, 5), (7, 5)], [(3, 7)], 2 * 3 * 5 * 7),  # transposed operand
        ("MatMulExt", [(5, 3), (5, 7)], [(3, 7)], 2 * 3 * 5 * 7),
        ("MatMulExt", [(4, 2, 5), (5, 7)], [(4, 2, 7)], 2 * 8 * 5 * 7),
        ("BatchMatMul", [(2, 4, 3, 5), (2, 4, 5, 7)], [(2, 4, 3, 7)], 2 * 8 * 3 * 5 * 7),
        ("GroupedMatmul", [(10, 4), (3, 4, 6)], [(10, 6)], 2 * 10 * 4 * 6),
        ("GroupedMatmul", [(4, 10), (10, 6)], [(3, 4, 6)], 2 * 4 * 10 * 6),
        ("FlashAttentionScore", [(1, 2, 8, 4)] * 3, [(1, 2, 8, 4)], 4 * 2 * 8 * 8 * 4 // 2),
        # Two groups of heads share keys and values; 3 sequences of 8 queries see 16 keys each.
        (
            "FlashAttentionScore",
            [(3, 8, 4 * 5), (3, 16, 2 * 5), (3, 16, 2 * 7)],
            [(3, 4, 8, 8), (3, 4, 8, 8), (1,), (3, 8, 4 * 7)],
            4 * 3 * 4 * 8 * 16 * (5 + 7) // 4,
        ),
        (
            "FlashAttentionScoreGrad",
            [(8, 3, 4 * 5), (16, 3, 2 * 5), (16, 3, 2 * 7), (8, 3, 4 * 7), (3, 4, 8, 8)],
            [(8, 3, 4 * 5)],
            10 * 3 * 4 * 8 * 16 * (5 + 7) // 4,
        ),
        ("AddExt", [(3, 5), (3, 5)], [(3, 5)], 0),
    ],
)
def test_products_count_two_per_multiply_add(name, inputs, outputs, expected):
    assert flops(name, inputs, outputs) == expected
