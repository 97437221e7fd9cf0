"""Model and parallel settings: what is refused, and with which path."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hp_memory.errors import ConfigError
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.settings import ParallelSettings


def test_a_valid_model_passes(settings):
    settings.validate()
    ParallelSettings(data=4, expert=2).validate("parallel", settings)


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"num_layers": 0}, "model.num_layers"),
        ({"num_kv_heads": 2}, "model.num_kv_heads"),
        ({"first_dense_layers": 3}, "model.first_dense_layers"),
        ({"top_k": 5}, "model.top_k"),
        ({"head_dim": 5}, "model.head_dim"),
        ({"scoring": "softmx"}, "model.scoring"),
        ({"mtp_layers": 1}, "model.mtp_layers"),
        ({"n_group": 2}, "model.n_group"),
        ({"family": "other", "n_group": 3}, "model.n_group"),
        ({"family": "other", "topk_group": 2}, "model.topk_group"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_by_its_path(settings, change, path):
    with pytest.raises(ConfigError) as caught:
        replace(settings, **change).validate()
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("sizes", "path"),
    [
        ({"data": 3, "expert": 3}, "parallel.expert"),
        ({"data": 2, "expert": 4}, "parallel.expert"),
        ({"data": 0}, "parallel.data"),
        ({"data": 4, "fsdp": 3}, "parallel.fsdp"),
        ({"data": 2, "tensor": 2}, "parallel.tensor"),
        ({"context": 2}, "parallel.context"),
        ({"context_method": "ring"}, "parallel.context_method"),
        ({"context_method": "ulysses"}, "parallel.context_method"),
    ],
)
def test_parallel_sizes_that_do_not_fit_are_refused(settings, sizes, path):
    with pytest.raises(ConfigError) as caught:
        ParallelSettings(**sizes).validate("parallel", settings)
    assert caught.value.path == path


def test_a_dense_model_needs_no_expert_sizes(settings):
    replace(settings, first_dense_layers=2, num_experts=0, top_k=0, expert_ffn_size=0).validate()


def test_fingerprint_names_each_kinds_regions(settings):
    mark = fingerprint(settings)
    assert mark.kinds == ("dense", "moe")
    assert "shared_experts.up" in mark.regions["moe"]
    assert "shared_experts.up" not in fingerprint(replace(settings, shared_experts=0)).regions["moe"]
    assert "mlp.up" in mark.regions["dense"]
    assert not {"attention.qk_norm", "attention.q_up", "attention.kv_up"} & set(mark.regions["dense"])


def test_latent_attention_has_up_projections_and_other_families_norms_of_heads(settings):
    plain, latent = (
        set(fingerprint(replace(settings, **change)).regions["moe"])
        for change in ({"family": "qwen3_moe"}, {"family": "deepseek_v3", "kv_lora_rank": 4})
    )
    assert latent - plain == {"attention.q_up", "attention.kv_up"}
    assert "attention.qk_norm" in plain


def test_fingerprint_tells_models_apart_and_not_trainings(settings):
    digest = fingerprint(settings).digest
    assert fingerprint(replace(settings, hidden_size=32)).digest != digest
    assert fingerprint(replace(settings, top_k=1)).digest != digest
    assert fingerprint(replace(settings, seq_length=9, aux_loss_coeff=0.1)).digest == digest
