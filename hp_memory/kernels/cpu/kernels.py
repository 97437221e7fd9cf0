"""All kernels under the names that ``hp_memory.kernels.ascend.kernels`` has too."""

from __future__ import annotations

from hp_memory.kernels.cpu.attention import causal_attention
from hp_memory.kernels.cpu.experts import grouped_matmul, swiglu
from hp_memory.kernels.cpu.loss import cross_entropy
from hp_memory.kernels.cpu.norm import rms_norm
from hp_memory.kernels.cpu.rotary import rotary_qkv
from hp_memory.kernels.cpu.routing import count_per_expert, reorder, token_permute, token_unpermute, topk

__all__ = [
    "causal_attention",
    "count_per_expert",
    "cross_entropy",
    "grouped_matmul",
    "reorder",
    "rms_norm",
    "rotary_qkv",
    "swiglu",
    "token_permute",
    "token_unpermute",
    "topk",
]
