from __future__ import annotations

import json

import pytest

from hp_memory.errors import ConfigError
from hp_memory.offload import GraphFormatError
from hp_memory.offload.files import mark_remote, read_graph, read_kernel_times

GRAPH = {
    "parameters": [{"name": "layers.0.weight", "bytes": 8}],
    "nodes": [{"name": "a", "op": "Op", "inputs": [["layers.0.weight", 0, "load"]], "output_bytes": [4]}],
    "graph_outputs": [["a", 0]],
}


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_a_graph_as_json(write):
    graph = read_graph(write("g.json", json.dumps(GRAPH)))
    assert graph.nodes[0].inputs[0].load
    assert graph.label(graph.outputs[0]) == "a"


def test_files_that_are_no_graph(write):
    with pytest.raises(ConfigError, match=r"accepted: \.ir, \.json"):
        read_graph(write("g.onnx", ""))
    with pytest.raises(GraphFormatError, match=r"g.json:2"):
        read_graph(write("g.json", "{\n]"))
    with pytest.raises(GraphFormatError, match="missing or malformed 'output_bytes'"):
        read_graph(write("g.json", json.dumps(GRAPH | {"nodes": [{"name": "a", "op": "Op", "inputs": []}]})))
    with pytest.raises(GraphFormatError, match="'a' is read before it exists"):
        read_graph(write("g.json", json.dumps(GRAPH | {"nodes": []})))


def test_remote_parameters_by_pattern(write):
    graph = read_graph(write("g.json", json.dumps(GRAPH)))
    mark_remote(graph, ["layers.*.weight"])
    assert graph.parameters["layers.0.weight"].remote
    with pytest.raises(ConfigError, match=r"remote\[0\]='layer.0.weight'"):
        mark_remote(graph, ["layer.0.weight"])


def test_kernel_times(write):
    graph = read_graph(write("g.json", json.dumps(GRAPH)))
    assert read_kernel_times(write("t.csv", "name,us\na,2.5\n"), graph) == {"a": 2.5}
    for text in ("name,us\nb,1\n", "name,us\na,soon\n", "kernel,us\na,1\n", "name,us\na,-1\n"):
        with pytest.raises(ConfigError, match="kernel_times"):
            read_kernel_times(write("t.csv", text), graph)
