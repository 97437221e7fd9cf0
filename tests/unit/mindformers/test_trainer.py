"""What the MindFormers engine refuses before it imports MindFormers: as `train` asks."""

from __future__ import annotations

import pytest

from hp_memory.config import app as hydra_app
from hp_memory.errors import ConfigError
from hp_memory.experiment import experiment
from hp_memory.mindformers.trainer_yaml.train_config import train_config


def config(*overrides: str):
    return hydra_app.to_object(hydra_app.compose("train", list(overrides)))


def test_offload_without_a_graph():
    with pytest.raises(ConfigError, match="compiled graphs"):
        experiment.of("train", config("recipe=tiny_qwen3_moe", "offload.auto_offload=activation"))


def test_a_sound_recipe_passes():
    experiment.of("train", config("recipe=tiny_qwen3_moe"))


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (("pipeline.schedule=zb_v", "pipeline.split_backward=true"), "MindFormers has no such schedule"),
        (("pipeline.stages=8",), "parallel.pipeline is 16"),
        (("parallel.pipeline=1",), "parallel.pipeline is 1"),
        (("pipeline.microbatches=16",), "one number for both"),
        (("pipeline.session=keep",), "no such setting"),
        (("pipeline.prefire_recompute=true",), "no such setting"),
        (("train.decay_steps=30000",), "cosine ends at train.steps"),
    ],
)
def test_pipelines_without_a_name_in_mindformers(overrides, text):
    with pytest.raises(ConfigError, match=text):
        train_config(config("recipe=deepseek_v3_671b", *overrides))


def test_dxdw_and_interleaving_arrive_under_mindformers_names():
    cfg = config(
        "recipe=qwen3_30b_a3b",
        "pipeline.schedule=interleaved_1f1b",
        "pipeline.interleave=2",
        "pipeline.layers_per_stage=[12,12,12,12]",
        "pipeline.split_backward=true",
        "pipeline.overlap_b_f=true",
    )
    section = train_config(cfg)["parallelism"]
    assert section["pipeline_parallel_interleave_num"] == 2
    assert section["pipeline_parallel_layers_per_stage"] == ["0-11,24-35", "12-23,36-47"]
    assert section["pipeline_parallel_enable_dxdw_split"]
    assert section["pipeline_parallel_overlap_b_f"]


def test_context_parallel_ranks_get_their_method_and_the_compressed_mask():
    found = train_config(config("recipe=deepseek_v3_671b", "parallel.context=2", "parallel.context_method=ulysses"))
    assert found["parallelism"]["context_parallel_method"] == "ulysses"
    assert found["model"]["use_attn_mask_compression"] is True
    alone = train_config(config("recipe=deepseek_v3_671b"))
    assert "context_parallel_method" not in alone["parallelism"]
    assert "use_attn_mask_compression" not in alone["model"]
