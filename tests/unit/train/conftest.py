"""A run directory of a tiny model on a short text."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from hp_memory.host.settings import HostSettings
from hp_memory.layout import LayoutSettings, build_plan, plan_file
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.settings import ModelSettings, ParallelSettings
from hp_memory.train.settings import DataSettings, TrainSettings
from hp_memory.train.text import TEXT, read_text


@pytest.fixture
def settings():
    return ModelSettings(
        family="reference",
        num_layers=2,
        hidden_size=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        ffn_size=24,
        first_dense_layers=1,
        num_experts=4,
        top_k=2,
        expert_ffn_size=12,
        shared_experts=1,
        vocab_size=1024,
        seq_length=16,
    )


@pytest.fixture(scope="session")
def short_text(tmp_path_factory):
    """The first verses of the shipped text, as a file of their own."""
    path = tmp_path_factory.mktemp("text") / "verses.txt"
    path.write_text("".join(read_text(TEXT).splitlines(keepends=True)[:60]))
    return path


@pytest.fixture
def make_run(tmp_path, settings, short_text):
    """make_run(name, layout, **train): a run directory as the launcher prepares it."""

    def make(name, layout="none", model=settings, **train):
        run_dir = tmp_path / name
        run_dir.mkdir()
        sizes = TrainSettings(**{"steps": 4, "micro_batch_size": 2, "eval_batches": 1, "warmup_steps": 2} | train)
        config = {
            "model": model,
            "parallel": ParallelSettings(),
            "data": DataSettings(text=str(short_text), validation_fraction=0.1),
            "train": sizes,
            "host": HostSettings(),
            "other": {"groups": "are left alone"},
        }
        OmegaConf.save(OmegaConf.create(config), run_dir / "config.yaml")
        default = "save" if layout == "none" else "recompute"
        plan = build_plan(LayoutSettings(layout, default), fingerprint(model))
        (run_dir / plan_file.NAME).write_text(plan_file.text(plan))
        return run_dir

    return make
