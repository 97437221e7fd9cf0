from __future__ import annotations

import pytest

from hp_memory.offload import HyperOffloadInput, OffloadSettings, graph_from_dict, run


def make_graph(spec: dict, outputs: list[str], nbytes: int = 1000, **marks: dict):
    """``spec``: name -> names it reads, in execution order; names not in it are parameters. ``marks``: by name."""
    read = [name for inputs in spec.values() for name in inputs]
    parameters = dict.fromkeys(name for name in read if name not in spec)
    nodes = [
        {"name": name, "op": "Op", "inputs": [[i, 0] for i in inputs], "output_bytes": [nbytes], **marks.get(name, {})}
        for name, inputs in spec.items()
    ]
    return graph_from_dict(
        {
            "parameters": [{"name": name, "bytes": nbytes, **marks.get(name, {})} for name in parameters],
            "nodes": nodes,
            "graph_outputs": [[name, 0] for name in outputs],
        }
    )


def plan_with(graph, **settings):
    return run(HyperOffloadInput(graph, OffloadSettings(**{"auto_offload": "activation", **settings})))


def order_in_words(plan) -> str:
    """The execution order with an operation as ``op(tensor)``, events and streams left out."""
    words = {"copy_to_host": "D2H", "copy_to_device": "H2D", "copy_to_host_inplace": "WB"}
    return " ".join(
        step.name if hasattr(step, "name") else f"{words.get(step.op, step.op)}({plan.label(step.data)})"
        for step in plan.execution_order()
    )


@pytest.fixture
def graph():
    return make_graph


@pytest.fixture
def plan():
    return plan_with


@pytest.fixture
def words():
    return order_in_words


@pytest.fixture
def step(graph):
    """A forward chain of 20 kernels and a backward chain that reads each result again, in reverse."""

    def step(half: int = 20, nbytes: int = 1000, **marks):
        spec = {"f0": ["x", "w"]}
        spec |= {f"f{k}": [f"f{k - 1}", "w"] for k in range(1, half)}
        spec |= {f"b{k}": [f"b{k + 1}" if k < half - 1 else f"f{k}", f"f{k}"] for k in reversed(range(half))}
        return graph(spec, ["b0"], nbytes, **marks)

    return step
