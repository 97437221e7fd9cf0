from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from hp_memory.offload import GraphFormatError, Output, ParameterRef
from hp_memory.offload.actor_set import read_actor_set, split_arguments
from hp_memory.offload.writes import UNSIGNED, WRITES_INPUTS, written_inputs

DATA = Path(__file__).parents[2] / "data" / "offload"

SMALL = """%1 = kernel_graph_0_HostDSActor(param_x) op control(%0)
\t# shape : <(4, 8)> -> <(4, 8)>
\t# type : <Tensor[Float16]> -> <Tensor[Float16]>
\t# AID : kernel_graph_0_HostDSActor
%2 = kernel_graph0:Split-op0(%1[0], I64(1), I64(2))
\t# device context: CPU_0
\t# shape : <(4, 8)> <NoShape> <NoShape> -> <(4, 4)> <(4, 4)>
\t# type : <Tensor[Float16]> <Int64> <Int64> -> <Tensor[Float16]> <Tensor[Float16]>
\t# AID : 0_Default/Split-op0
%3 = 7_FusionActor(%2[1])
\t# shape : <(4, 4)> -> <(4, 4)>
\t# type : <Tensor[Float16]> -> <Tensor[Float16]>
\t# AID : 7_FusionActor
%4 = kernel_graph0:Add-op0(%3[0], Tensor(shape=[2, 1], dtype=Float16, value=
[[ 1.0]
 [ 2.0]]))
\t# shape : <(4, 4)> <(2, 1)> -> <(4, 4)>
\t# type : <Tensor[Float16]> <Tensor[Float16]> -> <Tensor[Float16]>
\t# AID : 2_Default/Add-op0
%5 = kernel_graph0:AssignAdd-op0(%param_step, Tensor(shape=[1], dtype=Int32, value=[1])) op control(%0)
\t# shape : <(1)> <(1)> -> <(1)>
\t# type : <Ref[Tensor[Int32]]> <Tensor[Int32]> -> <Tensor[Int32]>
\t# AID : 1_Default/AssignAdd-op0
%6 = kernel_graph_0_OutputActor(%4[0]) op control(%5)
\t# shape : <(4, 4)> -> <(4, 4)>
\t# type : <Tensor[Float16]> -> <Tensor[Float16]>
"""


@pytest.fixture
def read(tmp_path):
    def read(text):
        path = tmp_path / "graph.ir"
        path.write_text(text)
        return read_actor_set(path)

    return read


def test_order_is_the_one_of_the_positions_and_actors_are_passed_through(read):
    graph = read(SMALL)
    assert [node.op for node in graph.nodes] == ["Split", "AssignAdd", "Add"]
    assert [node.inputs for node in graph.nodes] == [(ParameterRef("x"),), (ParameterRef("step"),), (Output(0, 1),)]
    assert graph.nodes[0].output_bytes == (32, 32)
    assert graph.nodes[0].types[1].dtype == "Float16"
    assert graph.nodes[1].ref_outputs == ((0, 0),)
    assert graph.outputs == (Output(2, 0),)
    assert {name: p.nbytes for name, p in graph.parameters.items()} == {"x": 64, "step": 4}


@pytest.mark.parametrize(
    ("before", "after", "line", "words"),
    [
        ("]> <Tensor[Int32]> -> <Tensor[Int32]>", "]> <Tensor[Int32]> -> <Tensor[Odd]>", 20, "'Tensor[Odd]'"),
        ("%3[0], ", "%30[0], ", 14, "%30[0] doesn't exist"),
        ("%3[0], ", "what?, ", 14, "not understood"),
        ("# AID : 2_Default", "# AID : 1_Default", 20, "position 1 is taken twice"),
        ("# AID : 2_Default/Add-op0", "# nothing : here", 14, "no AID"),
        ("%4 = kernel", "odd line\n%4 = kernel", 14, "neither a record nor a detail"),
        ("%6 = ", "%5 = ", 24, "%5 is defined twice"),
        ("\t# device context: CPU_0", "\t# device", 6, "not a detail"),
    ],
)  # fmt: skip
def test_an_odd_line_is_an_error_with_its_number(read, before, after, line, words):
    assert before in SMALL
    with pytest.raises(GraphFormatError) as error:
        read(SMALL.replace(before, after, 1))
    assert f"graph.ir:{line}: " in str(error.value)
    assert words in str(error.value)


def test_a_gap_in_the_positions_and_a_cut_file_are_errors(read):
    with pytest.raises(GraphFormatError, match="no kernel has position 2"):
        read(SMALL.replace("2_Default", "5_Default"))
    with pytest.raises(GraphFormatError, match="ends inside this record"):
        read(SMALL[: SMALL.index("[[ 1.0]")])


@pytest.mark.parametrize(("name", "kernels", "parameters"), [("mlp", 138, 60), ("attn_moe", 333, 78)])
def test_recorded_training_steps_are_read(name, kernels, parameters):
    graph = read_actor_set(DATA / f"{name}_train_step.actor_set.ir")
    assert (len(graph.nodes), len(graph.parameters), len(graph.outputs)) == (kernels, parameters, 1)


def test_arguments_split_outside_brackets():
    assert split_arguments("%1[0], Tensor(shape=[1, 2], value=[1]), (2, 3)") == [
        "%1[0]",
        "Tensor(shape=[1, 2], value=[1])",
        "(2, 3)",
    ]
    assert split_arguments("") == []


DUMPS = Path(__file__).parents[2] / "data" / "offload" / "dumps"


def dump(name):
    return read_actor_set(DUMPS / f"{name}.ir")


def test_graphs_after_the_first_of_a_process_are_counted_on():
    assert [node.op for node in dump("second").nodes] == ["MatMul", "ReLU", "Mul"]


def test_views_are_memory_of_their_input_without_a_mark_for_the_optimizer():
    graph = dump("views")
    views = [node for node in graph.nodes if node.unmarked_view]
    assert [node.op for node in views] == ["NarrowView", "TransposeExtView", "SplitTensorView"]
    assert not any(node.view for node in views)


@pytest.mark.parametrize(
    ("name", "op", "shared"),
    [
        ("sgd", "SGD", ((0, 0),)),
        ("rmsprop", "ApplyRMSProp", ((0, 0),)),
        ("adagrad", "ApplyAdagrad", ((0, 0), (1, 1))),
    ],
)
def test_updates_of_parameters_make_no_new_memory(name, op, shared):
    assert [node.ref_outputs for node in dump(name).nodes if node.op == op] == [shared, shared]


@pytest.mark.parametrize(("name", "first"), [("nonzero", "Default/NonZero-op0"), ("dynamic", "a")])
def test_a_dynamic_shape_is_read_with_unknown_bytes(name, first):
    assert dump(name).unknown_bytes() == first


def test_numbers_are_no_tensors_and_text_is_no_argument():
    assert [node.op for node in dump("dynamic").nodes if node.no_tensor] == ["ShapeCalc"]
    printed = next(node for node in dump("print").nodes if node.op == "Print")
    assert printed.inputs == (Output(0),)


@pytest.mark.parametrize("name", ["if", "while"])
def test_control_flow_is_refused_with_what_to_do(name):
    with pytest.raises(GraphFormatError, match=r"control flow .* Decide with Python values, or jit the part without"):
        dump(name)


def signatures(folder):
    """Inputs that a kernel writes, by MindSpore's own sources."""
    found = {}
    for path in folder.rglob("*.py"):
        text = path.read_text()
        for made in ast.parse(text).body if "RW_WRITE" in text else ():
            for line in made.body if isinstance(made, ast.ClassDef) else ():
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "__mindspore_signature__":
                    items = enumerate(getattr(line.value, "elts", ()))
                    found[made.name] = tuple(k for k, item in items if "RW_WRITE" in ast.unparse(item))
    return found


def test_written_inputs_are_those_of_mindspores_signatures():
    spec = find_spec("mindspore")
    theirs = signatures(Path(spec.submodule_search_locations[0]) / "ops")
    assert {op: theirs.get(op) for op in WRITES_INPUTS} == WRITES_INPUTS
    first = {op: written for op, written in theirs.items() if op.startswith("Inplace") and written}
    assert {op for op in first if written_inputs(op) != first[op]} == set()
    assert not theirs.keys() & UNSIGNED.keys()
