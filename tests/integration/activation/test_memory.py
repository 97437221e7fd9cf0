"""The memory test of the design document, small, through the script that also runs on Ascend; and whole chains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, ops

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, observe
from hp_memory.activation.probe import block_of, was_freed

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "activation_memory.py"


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    out = tmp_path_factory.mktemp("memory") / "figures.json"
    command = [sys.executable, str(SCRIPT), "--rows", "1024", "--width", "512", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]  # the script checks its own figures
    return json.loads(out.read_text()), done.stdout


@pytest.mark.timeout(300)
class TestDocument:
    def test_held_after_forward(self, figures):
        found, _ = figures
        assert [round(found[mode]["held MiB"]) for mode in ("recompute", "exclude", "legacy")] == [0, 2, 4]
        assert found["exclude"]["norm output freed after forward"] is True
        assert found["legacy"]["norm output freed after forward"] is False

    def test_who_holds_it(self, figures):
        found, _ = figures
        held = found["legacy"]["held after forward"]["gmm"]["held"]
        large = sorted(item["reason"] for item in held if item["bytes"] > 1 << 20)
        assert large == ["input not rebuildable", "output kept for replay"]

    def test_bounds_on_ascend(self, figures):
        found, text = figures
        if found["exclude"]["device"] == "CPU":
            assert "not checked: bounds of the allocator on Ascend" in text
            pytest.skip("needs an Ascend device: the allocator's bounds of the design document's section 13.4.7")


@pytest.mark.parametrize("length", [3, 6])
@pytest.mark.parametrize("step", [1, 2])
def test_of_a_chain_one_output_is_retained(length, step):
    """Storages by reuse, not by hooks. All addresses are distinct while each is taken, or a reuse is a proof too."""
    blocks = []

    def link(x):
        out = x * 1.0001
        blocks.append(block_of(out))
        return out

    regions = [checkpoint_exclude_wrapper(link, name=f"r{i}") for i in range(length)]

    def block(x):
        for region in regions:
            x = region(x)
        return ops.tanh(x)

    wrapped = checkpoint_wrapper(block)
    verdicts = []

    def loss(x):
        blocks.clear()
        out = wrapped(x).sum()
        taken = {b.address for b in blocks}
        verdicts[:] = [was_freed(b) for b in blocks if b.address in taken]
        return out

    for _ in range(step):
        with observe() as observation:
            ms.value_and_grad(loss, 0)(ops.zeros((1024, 1024), ms.float32))
    last = blocks[-1].address
    assert {b.address for b, freed in zip(blocks, verdicts, strict=True) if not freed} == {last}
    assert sum(h.reason == "output kept for replay" for h in observation.held) == 1


def test_the_stand_in_of_the_grouped_matmul_saves_what_the_ascend_primitive_saves():
    """Shapes and dtypes that both pack, the primitive on the meta device, where it has no kernel but a gradient."""
    from hp_memory.kernels.ascend.kernels import grouped_matmul as primitive
    from hp_memory.kernels.cpu.kernels import grouped_matmul

    def saved(call, *tensors):
        found = []

        def pack(tensor):
            found.append((tuple(tensor.shape), str(tensor.dtype)))
            return tensor.data

        def run(x, weight):
            with ms.saved_tensors_hooks(pack, lambda tensor: tensor):
                return call(x, weight, ends).sum()

        *inputs, ends = tensors
        ms.value_and_grad(run, (0, 1))(*inputs)
        return sorted(found)

    x, weight = ms.Tensor(np.ones((6, 4), np.float32)), ms.Tensor(np.ones((2, 4, 8), np.float32))
    ends = ms.Tensor(np.array([2, 6], np.int64))
    on_cpu = saved(grouped_matmul, x, weight, ends)
    with ms.DeviceCtx("meta"):
        on_meta = saved(primitive, mint.ones((6, 4)), mint.ones((2, 4, 8)), mint.ones((2,), dtype=ms.int64))
    assert on_cpu == on_meta
