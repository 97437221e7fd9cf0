"""A user's training step, compiled and dumped in a process of its own: MindSpore reads where to dump only once."""

from __future__ import annotations

import json
import sys

import mindspore as ms
import numpy as np
from mindspore import nn

from hp_memory.offload import OffloadSettings
from hp_memory.offload.actor_set import read_actor_set
from hp_memory.offload.dump import graph_of_call
from hp_memory.offload.places import jit_arguments


def main(folder: str) -> dict:
    ms.set_device("CPU")
    net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
    optimizer = nn.Adam(net.trainable_params())
    loss_of = nn.CrossEntropyLoss()

    def forward(x, y):
        return loss_of(net(x), y)

    gradients = ms.value_and_grad(forward, None, optimizer.parameters)

    @ms.jit(**jit_arguments(OffloadSettings(auto_offload="activation")))
    def step(x, y):
        loss, grads = gradients(x, y)
        optimizer(grads)
        return loss

    x, y = ms.Tensor(np.ones((4, 8), np.float32)), ms.Tensor([0, 1, 2, 3], ms.int32)
    graph = read_actor_set(graph_of_call(step, x, y, directory=folder))
    return {
        "ops": sorted({node.op for node in graph.nodes}),
        "weights": {name: p.type.shape for name, p in graph.parameters.items() if name.startswith("0.")},
        "outputs": len(graph.outputs),
    }


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1])))
