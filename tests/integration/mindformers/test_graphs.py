"""Static recompute in compiled graphs: which operations MindSpore duplicates, against lists written by hand."""

from __future__ import annotations

import pytest

# One script does all the work, in the first test's time.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def results(script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    return script("graphs.py", MS_DEV_SAVE_GRAPHS="1", MS_DEV_SAVE_GRAPHS_PATH=str(folder))


# Region by its operation, in order: router Sigmoid, permute Exp, all2all.in Sin, resort Square, gmm.up Cos, act Tanh,
# gmm.down Atan, unsort Softplus, all2all.out Asinh, unpermute Sinh. Sigmoid, Exp, Tanh, Asinh: the gradient reads the
# output; the others': the input.
DUPLICATED = {
    "none": [],
    "full": ["Exp", "Sin", "Square", "Cos", "Tanh", "Atan", "Softplus", "Asinh", "Sinh"],
    # Softplus is replayed by the plan but not by the graph: no gradient reads its output (Asinh's reads Asinh's own).
    "op_exclude": ["Exp", "Square", "Tanh", "Sinh"],
    "region_exclude": ["Exp", "Sinh"],
    "chain_exclude": ["Exp", "Sinh"],
}


@pytest.mark.parametrize("layout", DUPLICATED)
def test_each_layout_duplicates_what_it_replays_and_nothing_else(results, layout):
    assert results["layouts"][layout]["duplicated"] == dict.fromkeys(DUPLICATED[layout], 1)


def test_the_documents_example(results):
    """A, B, C, D, E with B and D excluded: A and C run again, E makes the block's output."""
    assert results["document"]["duplicated"] == {"Sin": 1, "Exp": 1}


def test_a_region_of_functions_is_refused(results):
    assert "layers.0.gmm_up (gmm.up) can't be saved in a graph" in results["by_function"]


def test_a_path_without_blocks_is_refused(results):
    assert "decoder.layers: Network has no list of blocks" in results["no_list"]


def test_model_train_compiles_with_the_plan_and_refuses_a_late_one(results):
    assert results["model"]["nodes"] == len(DUPLICATED["op_exclude"])
    assert results["model"]["wrapped"] == 11
    assert "compiled already" in results["model"]["late"]
