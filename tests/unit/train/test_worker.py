"""A whole worker on one rank, in this process: training, checkpoints, and resuming bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from hp_memory.errors import ConfigError, NotFinite
from hp_memory.runs.progress import read_progress


@pytest.fixture
def train(mindspore):
    from hp_memory.train.worker import train

    return train


def losses(run_dir):
    return {line["step"]: line["loss"] for line in read_progress(run_dir) if "loss" in line}


def test_a_run_leaves_progress_a_receipt_a_checkpoint_and_a_result(train, make_run):
    run_dir = make_run("run")
    train(run_dir)
    steps = [line for line in read_progress(run_dir) if "loss" in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4]
    assert all(line["tokens"] == 32 and line["seconds"] > 0 for line in steps)
    assert (run_dir / "checkpoints/step_00000004/complete.json").is_file()
    assert json.loads((run_dir / "receipt_rank_0.json").read_text())["wrapped"]
    result = json.loads((run_dir / "result.json").read_text())
    assert result["steps"] == 4
    assert result["last_loss"] == steps[-1]["loss"]
    assert result["validation_loss"] > 0


def test_resuming_continues_the_losses_exactly_also_under_another_layout(train, make_run):
    whole = make_run("whole", steps=6, decay_steps=6, save_every=3)
    train(whole)
    for layout in ("none", "full"):
        resumed = make_run(f"resumed_{layout}", layout, steps=6, decay_steps=6)
        first = str(whole / "checkpoints/step_00000003")
        config = (resumed / "config.yaml").read_text()
        (resumed / "config.yaml").write_text(config.replace("resume_from: null", f"resume_from: {first}"))
        train(resumed)
        assert losses(resumed) == {step: loss for step, loss in losses(whole).items() if step > 3}
        from hp_memory.runs.checkpoint import load_rank

        final = [load_rank(run / "checkpoints/step_00000006", 0) for run in (whole, resumed)]
        assert all(np.array_equal(final[0][name], final[1][name]) for name in final[0])


def test_every_layout_gives_the_same_losses(train, make_run):
    runs = [make_run(layout, layout, micro_batches=2, steps=3) for layout in ("none", "full")]
    for run_dir in runs:
        train(run_dir)
    assert losses(runs[0]) == losses(runs[1])
    # A replay that routed again would have counted every token twice, which shows nowhere in the loss.
    busiest = [[line["busiest"] for line in read_progress(run_dir) if "busiest" in line] for run_dir in runs]
    assert busiest[0] == busiest[1]


@pytest.mark.parametrize("layout", ["none", "full"])
def test_the_routers_count_each_token_once(mindspore, settings, layout):
    from hp_memory.install import install
    from hp_memory.layout import LayoutSettings, build_plan
    from hp_memory.models.fingerprint import fingerprint
    from hp_memory.models.reference import build, region_map
    from hp_memory.models.settings import ParallelSettings
    from hp_memory.train.data import MicroBatch
    from hp_memory.train.process import Groups
    from hp_memory.train.settings import TrainSettings
    from hp_memory.train.trainer import Trainer

    model = build(settings, ParallelSettings())
    plan = build_plan(LayoutSettings(layout, "save" if layout == "none" else "recompute"), fingerprint(settings))
    install(model, plan, region_map(model))
    ids = np.random.default_rng(0).integers(0, 1024, (2, 17)).astype(np.int32)
    batch = [MicroBatch(ids[:, :-1].copy(), ids[:, 1:].copy())]
    Trainer(model, TrainSettings(steps=1, micro_batch_size=2), Groups()).train_step(batch)
    assert [load.sum() for load in model.take_expert_loads()] == [2 * 16 * settings.top_k]


def test_micro_batches_add_up_to_the_larger_batch(mindspore, settings):
    from hp_memory.models.reference import build
    from hp_memory.models.settings import ParallelSettings
    from hp_memory.train.data import MicroBatch
    from hp_memory.train.process import Groups
    from hp_memory.train.settings import TrainSettings
    from hp_memory.train.trainer import Trainer

    # Without the balancing loss, which is not a mean over tokens.
    settings = replace(settings, aux_loss_coeff=0.0)
    ids = np.random.default_rng(0).integers(0, 1024, (4, 17)).astype(np.int32)
    whole = MicroBatch(ids[:, :-1].copy(), ids[:, 1:].copy())
    halves = [MicroBatch(whole.tokens[i : i + 2], whole.labels[i : i + 2]) for i in (0, 2)]
    model = build(settings, ParallelSettings())
    trainer = Trainer(model, TrainSettings(steps=1, micro_batch_size=2), Groups())
    called = []
    one, two = trainer.loss_and_grads([whole]), trainer.loss_and_grads(halves, lambda: called.append(True))
    assert len(called) == 2
    assert one[0] == pytest.approx(two[0], rel=1e-6)
    for a, b in zip(one[1], two[1], strict=True):
        np.testing.assert_allclose(a.asnumpy(), b.asnumpy(), rtol=1e-3, atol=1e-6)


def test_a_checkpoint_of_another_model_is_refused(train, make_run, settings):
    other = make_run("other")
    train(other)
    last = str(other / "checkpoints/step_00000004")
    run_dir = make_run("run", model=replace(settings, hidden_size=32), resume_from=last)
    with pytest.raises(ConfigError, match="another model"):
        train(run_dir)


def test_settings_with_a_key_that_does_not_exist_are_refused(make_run):
    from omegaconf.errors import ConfigKeyError

    from hp_memory.train.run_files import read_settings

    run_dir = make_run("run")
    text = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(text.replace("micro_batches:", "micro_batchs:"))
    with pytest.raises(ConfigKeyError, match="micro_batchs"):
        read_settings(run_dir)


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_good_checkpoint(train, make_run, monkeypatch):
    from hp_memory.runs import checkpoint
    from hp_memory.train.trainer import Trainer

    honest = Trainer.loss_and_grads

    def spoilt(self, batch, after_forward=None):
        loss, grads = honest(self, batch, after_forward)
        if self.step == 2:
            self._own_loss = self._own_loss * float("nan")
            return float("nan"), grads
        return loss, grads

    monkeypatch.setattr(Trainer, "loss_and_grads", spoilt)
    run_dir = make_run("run", save_every=1)
    with pytest.raises(NotFinite, match=r"loss of step 3 is nan: not finite on rank\(s\) \[0\]"):
        train(run_dir)
    assert [checkpoint.read_info(folder).step for folder in checkpoint.complete(run_dir)] == [1, 2]
    assert checkpoint.damage(checkpoint.newest(run_dir)) is None


def test_an_array_of_another_shape_is_refused_before_anything_is_loaded(mindspore, settings):
    from hp_memory.models.reference import build
    from hp_memory.models.settings import ParallelSettings
    from hp_memory.runs.checkpoint import DamagedCheckpoint
    from hp_memory.train.process import Groups
    from hp_memory.train.settings import TrainSettings
    from hp_memory.train.trainer import Trainer

    trainer = Trainer(build(settings, ParallelSettings()), TrainSettings(steps=1), Groups())
    arrays = trainer.state()
    last = trainer.parameters[-1].name
    first = {name: array + 1 for name, array in arrays.items()}
    with pytest.raises(DamagedCheckpoint, match=last):
        trainer.load_state(first | {last: np.zeros((7, 7), np.float32)}, 1)
    assert all(np.array_equal(p.asnumpy(), arrays[p.name]) for p in trainer.parameters)
