"""The cases of the design document, by its names."""

from __future__ import annotations

import mindspore as ms
import pytest
from mindspore import mint, ops

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, observe

# all2all moves tokens and needs nothing for backward; resort neither; gmm saves its input; its output is read by the
# combine after the chain, which is replayed.
CHAIN = {
    "all2all": lambda self, x: x + 0.0,
    "resort": lambda self, x: x * 2.0,
    "gmm": lambda self, x: mint.matmul(x, self.w),
    "combine": lambda self, x: ops.tanh(x),
}


@pytest.mark.parametrize(
    ("save_output", "outputs"),
    # The document keeps both. C reads B's output, but nothing needs what C makes: D, which takes it, doesn't run again.
    [(True, ["B", "D"]), (None, ["D"])],
)
def test_b_and_d_of_five_operations_run_once(chain_model, steps, tensor, save_output, outputs):
    parts = {
        "A": lambda self, x: x * 1.5,
        "B": lambda self, x: x + 1.0,
        "C": lambda self, x: x * 0.5,
        "D": lambda self, x: x - 2.0,
        "E": lambda self, x: mint.matmul(ops.tanh(x), self.w),
    }
    plain, saved = chain_model(parts, boundary=False), chain_model(parts, saved="BD", save_output=save_output)
    x = tensor(3, 4)
    want = steps.run(plain.run, x, weights=plain.block.trainable_params())
    with observe() as observation:
        got = steps.run(saved.run, x, weights=saved.block.trainable_params())
    assert steps.same(want, got)
    assert saved.calls == {"A": 2, "B": 1, "C": 2, "D": 1, "E": 2}
    kept = [(held.region, held.reason) for held in observation.held if held.region in "ABCDE"]
    assert kept == [(name, "output kept for replay") for name in outputs]


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


@pytest.mark.parametrize("early_stop", [False, True])
def test_region_at_the_tail_with_nothing_else_saved(steps, tensor, early_stop):
    """Reading the region's own input is what starts the replay; an early stop must not end it before the region."""
    calls = []

    def tail(x):
        calls.append(1)
        return x * x

    def block(call):
        return lambda x: call(x * 1.5 + 1.0)

    region = checkpoint_exclude_wrapper(tail, name="tail")
    want = steps.run(block(lambda x: x * x), tensor(3, 4))
    assert steps.same(want, steps.run(checkpoint_wrapper(block(region), early_stop=early_stop), tensor(3, 4)))
    assert len(calls) == 1


@pytest.mark.parametrize("early_stop", [False, True])
def test_region_behind_the_last_saved_tensor(steps, tensor, early_stop):
    region = checkpoint_exclude_wrapper(lambda x: x * x, name="tail")

    def block(call):
        return lambda x: call(ops.tanh(x) * 2.0)

    want = steps.run(block(lambda x: x * x), tensor(3, 4))
    assert steps.same(want, steps.run(checkpoint_wrapper(block(region), early_stop=early_stop), tensor(3, 4)))


def test_hooks_around_the_block_get_its_inputs(steps, tensor):
    """An offload of somebody else packs the block inputs; what regions keep stays with the regions."""
    packed = []

    def pack(saved):
        packed.append(tuple(saved.shape))
        return saved.data

    def under_hooks(call):
        def run(x):
            with ms.saved_tensors_hooks(pack, lambda saved: saved):
                return call(x)

        return run

    region = checkpoint_exclude_wrapper(lambda x: x * x, name="r")
    block = checkpoint_wrapper(lambda x: ops.tanh(region(ops.tanh(x))))

    def plain(x):
        y = ops.tanh(x)
        return ops.tanh(y * y)

    assert steps.same(steps.run(plain, tensor(3, 4)), steps.run(under_hooks(block), tensor(3, 4)))
    assert (3, 4) in packed
