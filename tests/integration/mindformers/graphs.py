"""Compiles a step under each layout and counts the nodes that MindSpore duplicates for a replay; prints JSON.

Every region is one operation of a kind that no other region has, so that a duplicated node names its region.
MindSpore writes the graphs where MS_DEV_SAVE_GRAPHS_PATH says; MS_DEV_SAVE_GRAPHS=1.
"""

from __future__ import annotations

import collections
import json
import os
import re
import shutil
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import operations as P

from hp_memory.mindformers.graph_callback import HPMemoryGraphCallback
from hp_memory.train.process import use_one_thread

FOLDER = Path(os.environ["MS_DEV_SAVE_GRAPHS_PATH"])

# Region -> an operation whose gradient reads its input or its output.
OPERATIONS = {
    "router": P.Sigmoid,
    "dispatch.permute": P.Exp,
    "all2all.in": P.Sin,
    "compute.resort": P.Square,
    "gmm.up": P.Cos,
    "compute.act": P.Tanh,
    "gmm.down": P.Atan,
    "combine.unsort": P.Softplus,
    "all2all.out": P.Asinh,
    "combine.unpermute": P.Sinh,
}
CELLS = {region: region.replace(".", "_") for region in OPERATIONS}


class Region(nn.Cell):
    def __init__(self, operation: type) -> None:
        super().__init__()
        self.operation = operation()

    def construct(self, x: Tensor) -> Tensor:
        return self.operation(x)


class Block(nn.Cell):
    """A chain of all regions of the way through the experts, and a last operation that makes the block's output."""

    def __init__(self) -> None:
        super().__init__()
        for region, operation in OPERATIONS.items():
            setattr(self, CELLS[region], Region(operation))
        self.chain = [getattr(self, name) for name in CELLS.values()]
        self.last = nn.Dense(8, 8)

    def construct(self, x: Tensor) -> Tensor:
        for region in self.chain:
            x = region(x)
        return self.last(x)


class Network(nn.Cell):
    def __init__(self, block: type = Block) -> None:
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.layers = nn.CellList([block()])

    def construct(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x.sum()


class Letters(nn.Cell):
    """The design document's A, B, C, D, E."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (Region(op) for op in (P.Sin, P.Cos, P.Exp, P.Atan))
        self.e = nn.Dense(8, 8)

    def construct(self, x: Tensor) -> Tensor:
        return self.e(self.d(self.c(self.b(self.a(x)))))


class ByFunction(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return ops.tanh(x) * 2


def duplicated(network: nn.Cell) -> dict[str, int]:
    """Operation -> how many nodes of it the compiled step has twice."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    gradients = ms.value_and_grad(network, None, network.trainable_params())

    @ms.jit
    def step(x: Tensor) -> Tensor:
        return gradients(x)

    step(Tensor(np.full((4, 8), 0.5, np.float32)))
    counts: collections.Counter[str] = collections.Counter()
    for file in FOLDER.rglob("graph_build*.ir"):
        for line in file.read_text().splitlines():
            if "duplicated: Bool(1)" in line and "cnode_attrs" in line:
                counts[re.search(r"= (?:PrimFunc_)?(\w+)\(", line).group(1)] += 1
    return dict(counts)


def under(plan: object, cells: dict = CELLS, block: type = Block) -> dict:
    network = Network(block)
    callback = HPMemoryGraphCallback(plan, layers="layers", cells=cells)
    callback.apply(network)
    return {"duplicated": duplicated(network), "receipt": callback.receipt.to_dict()}


def error_of(plan: object, **kwargs: object) -> str:
    try:
        under(plan, **kwargs)
    except RuntimeError as error:
        return str(error)
    return ""


def trained_by_model() -> dict:
    """``mindspore.train.Model`` in graph mode: the callback comes before the first compilation, and once only."""
    import mindspore.dataset as ds

    ms.set_context(mode=ms.GRAPH_MODE)
    network = Network()
    wrapped = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    rows = ds.NumpySlicesDataset({"x": np.full((2, 4, 8), 0.5, np.float32)}, shuffle=False)
    callback = HPMemoryGraphCallback("op_exclude", layers="network.layers", cells=CELLS)
    shutil.rmtree(FOLDER, ignore_errors=True)
    model = ms.train.Model(wrapped)
    model.train(1, rows, callbacks=[callback], dataset_sink_mode=False)
    nodes = sum(
        "duplicated: Bool(1)" in line
        for file in FOLDER.rglob("graph_build*.ir")
        for line in file.read_text().splitlines()
    )
    late = HPMemoryGraphCallback("full", layers="network.layers", cells=CELLS)
    try:
        late.apply(wrapped)
        message = ""
    except RuntimeError as error:
        message = str(error)
    return {"nodes": nodes, "wrapped": len(callback.receipt.wrapped), "late": message}


def main() -> dict:
    ms.set_device("CPU")
    use_one_thread()
    names = ("none", "full", "op_exclude", "region_exclude", "chain_exclude")
    letters = {"all2all.in": "a", "gmm.up": "b", "compute.act": "c", "gmm.down": "d"}
    document = {"name": "document", "default": "recompute", "save": ["gmm"]}
    by_function = type("WithFunction", (Block,), {})
    original = by_function.__init__

    def init(self: nn.Cell) -> None:
        original(self)
        self.gmm_up = ByFunction()

    by_function.__init__ = init
    return {
        "layouts": {name: under(name) for name in names},
        "document": under(document, letters, Letters),
        "by_function": error_of("op_exclude", block=by_function),
        "no_list": error_of_path(),
        "model": trained_by_model(),
    }


def error_of_path() -> str:
    try:
        HPMemoryGraphCallback("full", layers="decoder.layers", cells=CELLS).apply(Network())
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    print("RESULT " + json.dumps(main()))
