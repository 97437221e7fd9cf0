"""The cases of the design document, by its names."""

from __future__ import annotations

import pytest
from mindspore import mint, ops

from hp_memory.activation import observe

# all2all moves tokens and needs nothing for backward; resort neither; gmm saves its input; its output is read by the
# combine behind the chain, which is replayed.
CHAIN = {
    "all2all": lambda self, x: x + 0.0,
    "resort": lambda self, x: x * 2.0,
    "gmm": lambda self, x: mint.matmul(x, self.w),
    "combine": lambda self, x: ops.tanh(x),
}


def test_b_and_d_of_five_operations_run_once_and_their_outputs_are_kept(chain_model, steps, tensor):
    parts = {
        "A": lambda self, x: x * 1.5,
        "B": lambda self, x: x + 1.0,
        "C": lambda self, x: x * 0.5,
        "D": lambda self, x: x - 2.0,
        "E": lambda self, x: mint.matmul(ops.tanh(x), self.w),
    }
    plain, saved = chain_model(parts, boundary=False), chain_model(parts, saved="BD")
    x = tensor(3, 4)
    want = steps.run(plain.run, x, weights=plain.block.trainable_params())
    with observe() as observation:
        got = steps.run(saved.run, x, weights=saved.block.trainable_params())
    assert steps.same(want, got)
    assert saved.calls == {"A": 2, "B": 1, "C": 2, "D": 1, "E": 2}
    kept = [(held.region, held.reason) for held in observation.held if held.region in "ABCDE"]
    assert kept == [("B", "output kept for replay"), ("D", "output kept for replay")]


def held_of(observation, regions):
    return [(h.region, h.reason) for h in observation.held if h.region in regions]


@pytest.mark.parametrize("step", [1, 2])
def test_op_exclude_holds_three_without_remaking_inputs_and_two_with(chain_model, steps, tensor, step):
    legacy = {"save_output": True, "remake_inputs": False}
    for options, expected in (
        (
            legacy,
            [
                ("all2all", "output kept for replay"),
                ("gmm", "input not rebuildable"),
                ("gmm", "output kept for replay"),
            ],
        ),
        ({}, [("all2all", "output kept for replay"), ("gmm", "output kept for replay")]),
    ):
        model = chain_model(CHAIN, saved=("all2all", "gmm"), **options)
        for _ in range(step):
            with observe() as observation:
                steps.run(model.run, tensor(3, 4))
        assert held_of(observation, CHAIN) == expected


def test_region_exclude_holds_the_gmm_input_and_output(chain_model, steps, tensor):
    def span(self, x):
        return mint.matmul((x + 0.0) * 2.0, self.w)

    model = chain_model({"chain": span, "combine": CHAIN["combine"]}, saved=("chain",))
    with observe() as observation:
        steps.run(model.run, tensor(3, 4))
    assert held_of(observation, ["chain"]) == [("chain", "saved for backward"), ("chain", "output kept for replay")]
    assert model.calls == {"chain": 1, "combine": 2}


@pytest.mark.parametrize("step", [1, 2])
def test_chain_exclude_keeps_one_output_of_three(chain_model, steps, tensor, step):
    for options, outputs in (({"save_output": True}, 3), ({}, 1)):
        model = chain_model(CHAIN, saved=("all2all", "resort", "gmm"), **options)
        want = steps.run(chain_model(CHAIN, boundary=False).run, tensor(3, 4))
        for _ in range(step):
            with observe() as observation:
                got = steps.run(model.run, tensor(3, 4))
        assert steps.same(want, got)
        reasons = [reason for _, reason in held_of(observation, CHAIN)]
        # The gmm input is the output of resort: one storage, named by the stronger reason.
        shared = 1 if outputs == 3 else 0
        assert reasons.count("output kept for replay") + shared == outputs
        assert reasons.count("saved for backward") == 1
