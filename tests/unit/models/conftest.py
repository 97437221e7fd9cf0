"""A small reference model whose sizes differ from each other, so that a mixed-up dimension shows."""

from __future__ import annotations

import numpy as np
import pytest

from hp_memory.models.settings import ModelSettings, ParallelSettings


@pytest.fixture
def settings():
    return ModelSettings(
        family="reference",
        num_layers=2,
        hidden_size=16,
        num_heads=3,
        num_kv_heads=1,
        head_dim=4,
        ffn_size=20,
        first_dense_layers=1,
        num_experts=4,
        top_k=2,
        expert_ffn_size=12,
        shared_experts=1,
        vocab_size=50,
        seq_length=7,
    )


@pytest.fixture
def build(mindspore):
    """build(settings, **options): the model on one rank."""
    from hp_memory.models.reference import build

    return lambda settings, **options: build(settings, ParallelSettings(), **options)


@pytest.fixture
def tokens(mindspore, settings):
    """Two sequences of token ids, and the ids that follow them."""
    ids = np.random.default_rng(0).integers(0, settings.vocab_size, (2, settings.seq_length + 1)).astype(np.int32)
    return mindspore.Tensor(ids[:, :-1].copy()), mindspore.Tensor(ids[:, 1:].copy())
