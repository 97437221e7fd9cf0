"""The regression's checks can fail: each fault is planted where it would really happen, and must be named."""

from __future__ import annotations

import pytest

from hp_memory.layout import LayoutSettings
from hp_memory.models.settings import ModelSettings
from hp_memory.pipeline.regression.cases import Case
from hp_memory.pipeline.regression.job import Result

CASE = Case("zb_h1", "chain_exclude", microbatches=3, split_backward=True, prefire_recompute=True)
MODEL = ModelSettings(
    family="reference", num_layers=2, hidden_size=16, num_heads=2, num_kv_heads=2, head_dim=8, ffn_size=32,
    first_dense_layers=0, num_experts=4, top_k=2, expert_ffn_size=8, shared_experts=1, vocab_size=32, seq_length=8,
)  # fmt: skip
SAVED = ["all2all", "compute", "gmm", "combine.unsort"]


@pytest.fixture(scope="module")
def executor(mindspore):
    from hp_memory.pipeline.regression.execute import Executor
    from hp_memory.pipeline.regression.model import Bench

    return Executor(Bench(MODEL, {"chain_exclude": LayoutSettings("chain_exclude", "recompute", save=SAVED)}))


@pytest.fixture
def failures(executor):
    def run(check="check_numbers"):
        result = Result(CASE.name)
        getattr(executor, check)(CASE, result)
        return result.failures

    return run


def test_nothing_fails_without_a_fault(failures):
    assert failures() == {}
    assert failures("check_memory") == {}


def test_a_dropped_dw(failures, monkeypatch):
    from hp_memory.pipeline.chunk import Chunk

    add = Chunk._add
    calls = iter(range(100))
    monkeypatch.setattr(Chunk, "_add", lambda self, found: add(self, found) if next(calls) != 2 else None)
    assert "gradients" in failures()


def test_a_gradient_that_is_off_by_a_thousandth(failures, monkeypatch):
    from hp_memory.pipeline.runner import RankRunner

    gradient = RankRunner._gradient

    def scaled(self, chunk, micro):
        return tuple(g * 1.001 if micro == 1 else g for g in gradient(self, chunk, micro))

    monkeypatch.setattr(RankRunner, "_gradient", scaled)
    assert {"gradients", "whole batch"} <= set(failures())


def test_one_session_for_two_micro_batches(failures, monkeypatch):
    """The end of one clears what the other has replayed: it replays again."""
    from hp_memory.pipeline.session import RecomputeSession

    init = RecomputeSession.__init__

    def same(self, name, rule="share"):
        init(self, name, rule)
        self._id = ("hp_memory.pipeline", name.rpartition("chunk")[2])

    monkeypatch.setattr(RecomputeSession, "__init__", same)
    found = failures()
    assert found, "a shared session went unseen"
    assert {"replays", "nothing alive"} & set(found)


def test_a_handle_bound_to_another_micro_batch(failures, monkeypatch):
    """Every replay of a block starts from the input of its first micro-batch."""
    from hp_memory.activation.invocation import Invocation

    recover, first = Invocation.recover_inputs, {}

    def wrong(self):
        return first.setdefault(self.boundary.name, recover(self))

    monkeypatch.setattr(Invocation, "recover_inputs", wrong)
    found = failures()
    assert "backward got an input of another invocation" in found["bindings"]
    assert "gradients" in found


def test_split_sizes_of_another_micro_batch(failures, monkeypatch):
    """Dispatch state that belongs to the layer instead of the call: the last forward's is used everywhere."""
    from hp_memory.activation.exclude import Record

    give, last = Record.hand_out, {}

    def wrong(self, *args):
        out = give(self, *args)
        return last.setdefault(self.region.name, out) if self.region.name.endswith("dispatch.counts") else out

    monkeypatch.setattr(Record, "hand_out", wrong)
    assert "saw something else than its forward" in failures().get("bindings", "")


def test_a_step_that_breaks_is_a_failed_case_and_leaves_nothing_open(executor, monkeypatch):
    from hp_memory.pipeline.chunk import Chunk
    from hp_memory.pipeline.session import native_leftovers, open_sessions

    def broken(self, micro):
        raise RuntimeError("boom")

    monkeypatch.setattr(Chunk, "dw", broken)
    assert executor.run(CASE).failures == {"run": "boom"}
    assert (open_sessions(), native_leftovers()) == ((), 0)


def test_a_forward_that_is_kept_for_ever(failures, monkeypatch):
    from hp_memory.pipeline.chunk import Chunk

    kept, dw = [], Chunk.dw

    def leak(self, micro):
        kept.append(self._flying[micro])
        dw(self, micro)

    monkeypatch.setattr(Chunk, "dw", leak)
    monkeypatch.setattr("hp_memory.pipeline.split_backward.SplitBackward.dw", _dw_that_keeps_the_graph)
    assert "nothing alive" in failures()


def _dw_that_keeps_the_graph(self):
    from hp_memory.pipeline.split_backward import _engine

    self._enter("dx", "dw")
    self._graph.cut_at_boundary()
    return _engine(self._edges, self._grads, self._weights, retain=True)


def test_a_schedule_that_holds_more_than_it_says(failures, monkeypatch):
    """The prediction is made for ZB-H1; what runs is GPipe's order."""
    from hp_memory.pipeline.generate import generate
    from hp_memory.pipeline.messages import add_messages
    from hp_memory.pipeline.regression.execute import Executor

    execute = Executor._execute
    other = add_messages(generate("gpipe", 2, 3, split=True, prefire=True))

    def wrong(self, case, schedule, built, after=None):
        return execute(self, case, other if schedule == case.settings.build_schedule() else schedule, built, after)

    monkeypatch.setattr(Executor, "_execute", wrong)
    assert "predicted" in failures("check_memory")["memory"]
