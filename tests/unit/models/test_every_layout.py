"""All layouts of a block of the reference model: what is held, and how much is run again.

One way through them in ``make test``. With ``HP_MEMORY_LAYOUTS=all`` (``make test-nightly``) every one: 512 of a dense
block, and the 16,384 of a MoE block that save attention, which the dense ones go through.
"""

from __future__ import annotations

import itertools
import os
import random

import numpy as np
import pytest

from hp_memory.install import install
from hp_memory.layout import ALWAYS_SAVED, LayoutSettings, build_plan
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.settings import ModelSettings, ParallelSettings
from tests.unit.models import live_set

ALL = os.environ.get("HP_MEMORY_LAYOUTS") == "all"
pytestmark = pytest.mark.timeout(3 * 3600 if ALL else 120)
MODEL = ModelSettings(
    family="reference", num_layers=2, hidden_size=8, num_heads=2, num_kv_heads=1, head_dim=4, ffn_size=12,
    first_dense_layers=1, num_experts=2, top_k=1, expert_ffn_size=6, shared_experts=1, vocab_size=16, seq_length=3,
)  # fmt: skip
SEQUENCES = 2
# Bookkeeping of saving and replaying, not the model's.
OWN = {"StopGradient", "Empty"}


class Reused:
    """One model, put under one layout after another."""

    def __init__(self):
        import mindspore as ms
        from mindspore import MsDispatchMode

        from hp_memory.activation import is_recomputing
        from hp_memory.models.reference import build, region_map

        class Count(MsDispatchMode):
            def __ms_dispatch__(self, func, args, kwargs=None):
                counted.replayed += is_recomputing() and func.name not in OWN
                return func(*args, **(kwargs or {}))

        counted = self
        self.counting = Count
        self.model = build(MODEL, ParallelSettings())
        self.sites = region_map(self.model)
        self.parameters = {p.untyped_storage().data_ptr() for p in self.model.get_parameters()}
        self.owners = [self.model, *(cell for _, cell in self.model.cells_and_names())]
        rows = np.random.default_rng(0).standard_normal((SEQUENCES * MODEL.seq_length, MODEL.hidden_size))
        self.x = ms.Tensor(rows.astype(np.float32))
        self.replayed = 0
        self.mark = fingerprint(MODEL)

    def run(self, kind, replayed, early_stop=True):
        """(what is held after the second forward, operations of its replay) with these regions of a block replayed."""
        import mindspore as ms

        from hp_memory.activation import observe

        before = [(owner, dict(owner.__dict__), dict(owner._cells)) for owner in self.owners]
        layout = LayoutSettings("some", "save", recompute=sorted(replayed), early_stop=early_stop)
        try:
            install(self.model, build_plan(layout, self.mark), self.sites)
            block = list(self.model.layers)[MODEL.kinds.index(kind)]
            held = {}

            def forward(x):
                with observe() as seen:
                    out = block(x)
                held.clear()
                held.update((one.storage, one) for one in seen.living() if one.storage not in self.parameters)
                return out

            step = ms.value_and_grad(forward, 0, ms.ParameterTuple(block.trainable_params()))
            step(self.x)
            self.replayed = 0
            with self.counting():
                step(self.x)
            return list(held.values()), self.replayed
        finally:
            for owner, attributes, cells in before:
                owner.__dict__.clear()
                owner.__dict__.update(attributes)
                owner._cells.clear()
                owner._cells.update(cells)


@pytest.fixture(scope="module")
def reused(mindspore):
    return Reused()


def total(held):
    return sum(one.nbytes for one in held)


def layouts(kind):
    """Sets of replayed regions: all of them, or a way from replaying everything to nothing, a region at a time."""
    free = [r for r in live_set.ROWS[kind] if r not in (*ALWAYS_SAVED, live_set.ADDITION)]
    if not ALL:
        random.Random(kind).shuffle(free)
        return [frozenset(free[i:]) for i in range(len(free) + 1)]
    if kind == "moe":
        free = [r for r in free if not r.startswith("attention")]
    return [frozenset(some) for n in range(len(free) + 1) for some in itertools.combinations(free, n)]


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_a_block_holds_the_live_set_and_saving_more_never_replays_more(reused, kind):
    from hp_memory.models.reference import saved

    values = saved.sizes(MODEL, SEQUENCES, SEQUENCES * MODEL.seq_length * MODEL.top_k)
    plain = sum(one.nbytes for one in reused.run(kind, frozenset())[0])
    counts = live_set.nbytes({"counts"}, kind, values) if kind == "moe" else 0
    operations = {}
    for replayed in layouts(kind):
        held, operations[replayed] = reused.run(kind, replayed)
        found = sum(one.nbytes for one in held)
        assert found == live_set.nbytes(live_set.held(kind, replayed), kind, values), sorted(replayed)
        # Decisions are kept by any boundary; the counts are the one that no gradient reads.
        assert found <= plain + reused.x.nbytes + counts, sorted(replayed)
    for replayed, ran in operations.items():
        for region in replayed:
            assert operations.get(replayed - {region}, 0) <= ran, (region, sorted(replayed))


@pytest.mark.parametrize("replayed", [{"attention.qkv_proj"}, {"compute.act"}, {"router.gate", "mlp.norm"}])
def test_a_replay_ends_before_the_additions_of_residuals(reused, replayed):
    early, whole = (reused.run("moe", replayed, early_stop=stop)[1] for stop in (True, False))
    assert early <= whole - 2
