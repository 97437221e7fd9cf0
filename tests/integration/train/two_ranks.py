"""One of two ranks under msrun: ``two_ranks.py --run-dir DIR``. Writes ``ok_<rank>`` for each part that held."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from hp_memory.kernels.cpu import collectives
from hp_memory.models.reference import build, next_token_loss
from hp_memory.models.settings import ModelSettings, ParallelSettings
from hp_memory.train.data import MicroBatch
from hp_memory.train.process import Groups, require_agreement, run_worker, start
from hp_memory.train.run_files import read_settings
from hp_memory.train.settings import TrainSettings
from hp_memory.train.trainer import Trainer


def main(run_dir: Path) -> None:
    """Runs every part; the test looks for what each leaves behind."""
    settings = read_settings(run_dir)
    groups = start(settings.parallel)
    parts = {
        "uneven all-to-all": lambda: uneven_all_to_all(groups),
        "other collectives": lambda: other_collectives(groups),
        "two ranks compute what one does": lambda: same_as_one_rank(settings.model, groups),
        "a rank without rows": lambda: one_expert_gets_everything(settings.model, groups),
        "disagreement is noticed": lambda: disagreement(groups),
    }
    for name, part in parts.items():
        part()
        (run_dir / f"{name} {groups.world.index}").touch()
    train_and_resume(run_dir, groups)


def uneven_all_to_all(groups: Groups) -> None:
    """Rank 0 sends 3 rows to itself and none to rank 1; rank 1 sends 2 and 1."""
    rank = groups.world.index
    splits = [[3, 0], [2, 1]]
    rows = sum(splits[rank])
    x = Tensor(np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) + 100 * rank)
    received = [splits[sender][rank] for sender in range(2)]

    def send(x):
        return collectives.all_to_all_single(x, received, splits[rank], groups.world)

    want = [[0, 2, 4, 100, 102], [104]][rank]
    assert send(x).asnumpy()[:, 0].tolist() == want
    # Each receiver weighs what it got by its rank + 1, so a sender's gradient says where its rows went.
    grad = ms.grad(lambda x: (send(x) * float(rank + 1)).sum())(x)
    assert grad.asnumpy()[:, 0].tolist() == [[1, 1, 1], [1, 1, 2]][rank]


def other_collectives(groups: Groups) -> None:
    """Gather, scatter and reduce, with the gradients that sums and copies have."""
    rank = groups.world.index
    x = Tensor(np.full((2, 1), rank + 1, np.float32))

    def both(collective, weight):
        out = collective(x, groups.world)
        grad = ms.grad(lambda x: (collective(x, groups.world) * Tensor(weight)).sum())(x)
        return out.asnumpy().ravel().tolist(), grad.asnumpy().ravel().tolist()

    weight = np.arange(4, dtype=np.float32).reshape(4, 1)
    mine = weight[2 * rank : 2 * rank + 2].ravel()
    assert both(collectives.all_gather, weight) == ([1, 1, 2, 2], (2 * mine).tolist())
    scaled = np.full((1, 1), rank + 1.0, np.float32)
    assert both(collectives.reduce_scatter, scaled) == ([3], [1, 2])
    assert both(collectives.all_reduce, np.full((2, 1), rank + 1.0, np.float32)) == ([3, 3], [3, 3])


def same_as_one_rank(model: ModelSettings, groups: Groups) -> None:
    """Losses and gradients of experts spread over two ranks are those of one rank that sees both batches."""
    # The balancing loss is each rank's own, so it is left out.
    model = replace(model, aux_loss_coeff=0.0)
    sizes = TrainSettings(steps=1, micro_batch_size=2)
    batches = [_batch(model, seed) for seed in range(2)]
    spread = Trainer(build(model, ParallelSettings(data=2, expert=2), group=groups.experts), sizes, groups)
    alone = Trainer(build(model, ParallelSettings()), sizes, Groups())
    loss, grads = spread.loss_and_grads([batches[groups.world.index]])
    want_loss, want = alone.loss_and_grads(batches)
    assert abs(loss - want_loss) < 1e-5
    wanted = {p.name: g.asnumpy() for p, g in zip(alone.parameters, want, strict=True)}
    for parameter, grad in zip(spread.parameters, grads, strict=True):
        whole = wanted[parameter.name]
        share = parameter.shape[0]
        first = groups.experts.index * share if whole.shape != parameter.shape else 0
        np.testing.assert_allclose(grad.asnumpy(), whole[first : first + share], rtol=1e-3, atol=2e-6)


def one_expert_gets_everything(model: ModelSettings, groups: Groups) -> None:
    """All tokens go to the experts of rank 0: rank 1 computes on no rows, and every gradient is still finite."""
    group = groups.experts
    network = build(model, ParallelSettings(data=2, expert=2), group=group)
    moe = network.layers[1].moe
    for router in (block.moe.router for block in network.layers if block.kind == "moe"):
        construct = router.construct

        def first_experts(x, construct=construct):
            probs, _, _ = construct(x)
            indices = np.tile(np.arange(model.top_k, dtype=np.int32), (x.shape[0], 1))
            counts = np.bincount(indices.ravel(), minlength=model.num_experts).astype(np.int32)
            return probs, Tensor(indices), Tensor(counts)

        object.__setattr__(router, "construct", first_experts)
    batch, parameters = _batch(model, 0), network.trainable_params()
    loss, grads = ms.value_and_grad(lambda x, y: next_token_loss(network(x), y), None, parameters)(
        Tensor(batch.tokens), Tensor(batch.labels)
    )
    tokens = batch.tokens.size
    assert moe.received_rows == (2 * tokens * model.top_k if group.index == 0 else 0)
    assert np.isfinite(loss.asnumpy())
    assert all(np.isfinite(grad.asnumpy()).all() for grad in grads)


def disagreement(groups: Groups) -> None:
    """Both ranks hear that their digests differ."""
    require_agreement("ab", "plan", groups.world)
    with pytest.raises(RuntimeError, match=r"ranks \[1\] have another plan"):
        require_agreement(f"0{groups.world.index}", "plan", groups.world)


def train_and_resume(run_dir: Path, groups: Groups) -> None:
    """A run, and one resumed from its middle under another layout; the test compares what they wrote."""
    from hp_memory.train import worker

    def already_started(*_):
        return groups

    worker.start = already_started
    for name in ("whole", "resumed"):
        worker.train(run_dir / name)


def _batch(model: ModelSettings, seed: int) -> MicroBatch:
    ids = np.random.default_rng(seed).integers(0, model.vocab_size, (2, model.seq_length + 1)).astype(np.int32)
    return MicroBatch(ids[:, :-1].copy(), ids[:, 1:].copy())


if __name__ == "__main__":
    run_worker(main)
