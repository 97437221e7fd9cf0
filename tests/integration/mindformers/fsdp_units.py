"""A block with FSDP units inside, as MindFormers' layers have: what a step holds and computes under saved regions."""

from __future__ import annotations

import hashlib
import json

import mindspore as ms
import numpy as np
from mindspore import mint, nn

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, observe
from hp_memory.mindformers.standin.autograd import enable_mindspore_backward_compat
from hp_memory.mindformers.standin.fully_shard import fully_shard
from hp_memory.mindformers.standin.mesh import DeviceMesh

WIDTH = 64
SAVED = ((), ("norm",), ("up",), ("norm", "up"))


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        draw = np.random.default_rng(3)
        weights = [ms.Tensor(draw.standard_normal((WIDTH, WIDTH)).astype(np.float32)) for _ in range(2)]
        self.norm = nn.LayerNorm((WIDTH,))
        self.up = nn.Dense(WIDTH, WIDTH, weights[0], has_bias=False)
        self.down = nn.Dense(WIDTH, WIDTH, weights[1], has_bias=False)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.down(mint.tanh(self.up(mint.tanh(self.norm(x)))))


def shard(block: Block, reshard: bool) -> list:
    """Inner units first; their schedulers."""
    mesh = DeviceMesh("cpu", [0], mesh_dim_names=("fsdp",))
    cells = [cell for _, cell in block.cells_and_names() if type(cell) in (nn.LayerNorm, nn.Dense)][:2]
    return [fully_shard(cell, mesh=mesh, reshard_after_forward=reshard).hsdp_scheduler for cell in (*cells, block)]


def step(saved: tuple[str, ...] | None, sharded: bool, reshard: bool = True) -> dict:
    """Digests of the gradients, bytes reported as held, bytes of gathered parameters between forward and backward.

    ``saved`` is None for a block without a plan.
    """
    block = Block()
    # A plan is installed before the units are made; the Cells keep their places.
    parts = {name: getattr(block, name) for name in ("norm", "up")}
    for name in saved or ():
        setattr(block, name, checkpoint_exclude_wrapper(parts[name]))
    run = block if saved is None else checkpoint_wrapper(block)
    units = shard(block, reshard) if sharded else []
    x = ms.Tensor(np.random.default_rng(5).standard_normal((4, WIDTH)).astype(np.float32))
    x.requires_grad = True
    with observe() as observation:
        loss = run(x).sum()
        held = sorted(item.nbytes for item in observation.held)
        gathered = [part.buffer.untyped_storage().size() for unit in units for part in unit.sharded]
        loss.backward()
    # A unit reduces into ``main_grad`` at the end of its backward.
    grads = [part.held.main_grad for unit in units for part in unit.sharded]
    return {
        # Wrapping changes the order of the Cells, not what they compute.
        "grads": sorted(hashlib.sha256(g.asnumpy().tobytes()).hexdigest() for g in grads),
        "held": held,
        "gathered": gathered,
    }


def main() -> dict:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    enable_mindspore_backward_compat()
    return {
        f"{reshard} {'+'.join(saved)}": {
            "plain": step(None, sharded=True, reshard=reshard),
            "plain unsharded": step(None, sharded=False),
            "unsharded": step(saved, sharded=False),
            "planned": step(saved, sharded=True, reshard=reshard),
        }
        for reshard in (True, False)
        for saved in SAVED
    }


if __name__ == "__main__":
    print("RESULT " + json.dumps(main()))
