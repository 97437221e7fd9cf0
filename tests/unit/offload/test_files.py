from __future__ import annotations

import json

import pytest

from hp_memory.errors import ConfigError
from hp_memory.offload.files import mark_remote, read_graph, read_kernel_times

GRAPH = {
    "parameters": [{"name": "layers.0.weight", "bytes": 8}],
    "nodes": [{"name": "a", "op": "Op", "inputs": [["layers.0.weight", 0, "load"]], "output_bytes": [4]}],
    "graph_outputs": [["a", 0]],
}


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / name)

    return write


def test_a_graph_as_json(write):
    graph = read_graph(write("g.json", json.dumps(GRAPH)))
    assert graph.nodes[0].inputs[0].load
    assert graph.label(graph.outputs[0]) == "a"


def test_files_that_are_no_graph(write):
    with pytest.raises(ConfigError, match=r"accepted: \.ir, \.json"):
        read_graph(write("g.onnx", ""))
    with pytest.raises(ConfigError, match=r"g.json': 2: Expecting"):
        read_graph(write("g.json", "{\n]"))
    with pytest.raises(ConfigError, match="'a' is read before it exists"):
        read_graph(write("g.json", json.dumps(GRAPH | {"nodes": []})))
    for name in ("g.json", "g.ir"):
        with pytest.raises(ConfigError, match="is no text in UTF-8"):
            read_graph(write(name, b"\xff\xfe\x00{"))
    with pytest.raises(ConfigError, match="has no kernels"):
        read_graph(write("g.ir", ""))


NODE = {"name": "a", "op": "Op", "inputs": [["layers.0.weight", 0]], "output_bytes": [4]}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"output_bytes": None}, r"nodes\[0\]\.output_bytes must be a list"),
        ({"output_bytes": [-4]}, r"output_bytes\[0\]=-4 must be a whole number"),
        ({"output_bytes": [1.5]}, r"=1\.5 must be a whole number"),
        ({"output_bytes": [float("nan")]}, "=nan must be a whole number"),
        ({"output_bytes": [10**30]}, "must be a whole number from 0 to"),
        ({"output_bytes": []}, "is empty: a kernel has at least one output"),
        ({"name": "layers.0.weight"}, "is taken already"),
        ({"is_view": True}, "has no key 'is_view'; did you mean 'view'"),
        ({"view": True, "inputs": []}, "has no input"),
        ({"view": "yes"}, "view='yes' must be true or false"),
        ({"enable_offload": "false"}, "enable_offload='false' must be true or false"),
        ({"prefetch_distance": -1}, "prefetch_distance=-1 must be a whole number"),
        ({"ref_outputs": {"1": 0}}, "'1' is no output: there are 1"),
        ({"ref_outputs": {"0": 1}}, r"ref_outputs\.0=1 must be a whole number from 0 to 0"),
        ({"inputs": [["layers.0.weight", 3]]}, "=3 must be a whole number from 0 to 0"),
        ({"inputs": ["layers.0.weight"]}, "is no reference"),
        ({"device_bytes": [4, 4]}, "needs 1 numbers, one for each output"),
    ],
)
def test_a_graph_with_an_odd_node_is_refused_at_its_place(write, node, why):
    with pytest.raises(ConfigError, match=why):
        read_graph(write("g.json", json.dumps(GRAPH | {"nodes": [NODE | node]})))


def test_outputs_are_checked_too(write):
    with pytest.raises(ConfigError, match=r"graph_outputs\[0\]\[1\]=5"):
        read_graph(write("g.json", json.dumps(GRAPH | {"graph_outputs": [["a", 5]]})))
    with pytest.raises(ConfigError, match="has no key 'outputs'"):
        read_graph(write("g.json", json.dumps(GRAPH | {"outputs": []})))


def test_remote_parameters_by_pattern(write):
    graph = read_graph(write("g.json", json.dumps(GRAPH)))
    mark_remote(graph, ["layers.*.weight"])
    assert graph.parameters["layers.0.weight"].remote
    with pytest.raises(ConfigError, match=r"remote\[0\]='layer.0.weight'"):
        mark_remote(graph, ["layer.0.weight"])


def test_kernel_times(write):
    graph = read_graph(write("g.json", json.dumps(GRAPH)))
    assert read_kernel_times(write("t.csv", "name,us\na,2.5\n"), graph) == {"a": 2.5}
    assert read_kernel_times(write("t.csv", "\ufeffname,us\na,2.5\n"), graph) == {"a": 2.5}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name,us\nb,1\n", "line 2: 'b' is no kernel of the graph"),
        ("name,us\na,soon\n", "us='soon' is no time"),
        ("name,us\na,inf\n", "us='inf' is no time"),
        ("name,us\na,1e300\n", "is no time"),
        ("name,us\na,-1\n", "is no time"),
        ("name,us\na,1\na,2\n", "line 3: 'a' comes twice"),
        ("kernel,us\na,1\n", "has no column name"),
        ("", "has no column name"),
        ("name,us\n", "has no times"),
        (b"\xff\xfea", "is no CSV in UTF-8"),
    ],
)
def test_kernel_times_that_are_refused(write, text, why):
    graph = read_graph(write("g.json", json.dumps(GRAPH)))
    with pytest.raises(ConfigError, match=why):
        read_kernel_times(write("t.csv", text), graph)
