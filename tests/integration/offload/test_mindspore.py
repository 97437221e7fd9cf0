"""Against the real MindSpore on a CPU: its settings, and the graph of a compiled training step."""

from __future__ import annotations

import numpy as np
import pytest

from hp_memory.offload import OffloadSettings
from hp_memory.offload.actor_set import read_actor_set
from hp_memory.offload.apply import capability, compile_config_module, compile_config_of, jit_arguments
from hp_memory.offload.dump import graph_of_call


def test_mindspore_has_every_setting(mindspore):
    assert all(hasattr(compile_config_module(), name) for name in compile_config_of(OffloadSettings()))


def test_without_a_device_it_is_said_that_nothing_is_moved(mindspore):
    can, why = capability()
    assert can or "ignores it" in why


def test_a_misspelt_option_is_refused_by_jit(mindspore):
    with pytest.raises(ValueError, match="auto_offload"):
        mindspore.jit(lambda x: x, auto_offload="activaction")(mindspore.Tensor([1.0]))


def test_the_graph_of_a_users_training_step_is_dumped_and_read(mindspore, tmp_path):
    from mindspore import nn

    net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
    optimizer = nn.Adam(net.trainable_params())
    loss_of = nn.CrossEntropyLoss()

    def forward(x, y):
        return loss_of(net(x), y)

    gradients = mindspore.value_and_grad(forward, None, optimizer.parameters)

    @mindspore.jit(**jit_arguments(OffloadSettings(auto_offload="activation")))
    def step(x, y):
        loss, grads = gradients(x, y)
        optimizer(grads)
        return loss

    x, y = mindspore.Tensor(np.ones((4, 8), np.float32)), mindspore.Tensor([0, 1, 2, 3], mindspore.int32)
    graph = read_actor_set(graph_of_call(step, x, y, directory=str(tmp_path)))
    assert {"MatMul", "Adam"} <= {node.op for node in graph.nodes}
    weights = {name: p.type.shape for name, p in graph.parameters.items() if name.startswith("0.")}
    assert weights == {"0.weight": (16, 8), "0.bias": (16,)}
    assert len(graph.outputs) == 1
