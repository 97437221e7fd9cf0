"""Causal attention with rotary positions, a method per region."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, mint, nn

from hp_memory.kernels import devices
from hp_memory.models.reference.layers import matrix
from hp_memory.models.settings import ModelSettings


def rotary_tables(seq_length: int, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin (S, D) of the angle position / theta^(2i/D), i counting the pairs (i, i + D/2) of a head."""
    speed = theta ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = np.outer(np.arange(seq_length), np.concatenate((speed, speed)))
    return Tensor(np.cos(angle).astype(np.float32)), Tensor(np.sin(angle).astype(np.float32))


class Attention(nn.Cell):
    """Regions ``attention.qkv_proj``, ``rope``, ``core`` and ``out``; the norm before them is the block's."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.heads, self.kv_heads = settings.num_heads, settings.num_kv_heads
        width = (self.heads + 2 * self.kv_heads) * settings.head_dim
        self.qkv_weight = matrix("qkv_weight", settings.hidden_size, width)
        self.out_weight = matrix("out_weight", self.heads * settings.head_dim, settings.hidden_size)
        self.cos, self.sin = rotary_tables(settings.seq_length, settings.head_dim, settings.rope_theta)
        self.kernels = devices.kernels()

    def construct(self, x: Tensor) -> Tensor:
        return self.out(self.core(*self.rope(self.qkv_proj(x))))

    def qkv_proj(self, x: Tensor) -> Tensor:
        """x (T, H) to the heads of q, then k, then v: (T, (N + 2 * N_kv) * D)."""
        return mint.matmul(x, self.qkv_weight)

    def rope(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The projection to q (B, N, S, D), k and v (B, N_kv, S, D), q and k turned by their position."""
        return self.kernels.rotary_qkv(projected, self.cos, self.sin, self.heads, self.kv_heads)

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.kernels.causal_attention(q, k, v)

    def out(self, x: Tensor) -> Tensor:
        return mint.matmul(x, self.out_weight)
