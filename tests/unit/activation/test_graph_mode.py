"""What is wrapped refuses to be compiled, and says what to do."""

from __future__ import annotations

import inspect

import mindspore as ms
import pytest
from mindspore import nn

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, region
from hp_memory.errors import GraphModeError


def double(x):
    return x + x


class Inner(nn.Cell):
    def construct(self, x):
        return double(x)


class Outer(nn.Cell):
    """Calls what it is given: a Cell, a callable or, as ``part``, a method of its own."""

    def __init__(self, called=None):
        super().__init__()
        self.called = called or self.part

    def part(self, x):
        return double(x)

    def construct(self, x):
        return self.called(x)


class Listed(nn.Cell):
    def __init__(self, cell):
        super().__init__()
        self.cells_in_turn = nn.CellList([cell])

    def construct(self, x):
        for cell in self.cells_in_turn:
            x = cell(x)
        return x


def wrapped_method():
    outer = Outer()
    outer.called = checkpoint_exclude_wrapper(outer.part, name="here")
    return outer


MODELS = {
    "the Cell itself": lambda: checkpoint_wrapper(Inner(), name="here"),
    "within a Cell": lambda: Outer(checkpoint_wrapper(Inner(), name="here")),
    "in a list": lambda: Listed(checkpoint_wrapper(Inner(), name="here")),
    "region": lambda: Outer(region(Inner(), name="here")),
    "callable": lambda: Outer(checkpoint_wrapper(double, name="here")),
    "method": wrapped_method,
}
each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


@pytest.fixture
def graph_mode(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # the compiler leaves files where it fails
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


@each_model
def test_in_graph_mode(make, graph_mode, tensor):
    with pytest.raises(GraphModeError, match=r"here is wrapped .*PyNative only") as error:
        make()(tensor(2, 2))
    assert "PYNATIVE_MODE" in str(error.value)


@each_model
def test_under_jit(make, tensor, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    model, x = make(), tensor(2, 2)
    assert (model(x) == x + x).all()
    with pytest.raises(GraphModeError, match="here is wrapped"):
        ms.jit(model)(x)
    assert (model(x) == x + x).all()


def test_a_wrapped_cell_takes_further_children():
    face = checkpoint_wrapper(Inner(), name="here")
    face.late = nn.Dense(2, 2)
    assert [name for name, _ in face.cells_and_names()] == ["", "late"]


@pytest.mark.parametrize("target", [Inner(), double])
def test_looking_at_all_attributes_is_no_compilation(target):
    assert dict(inspect.getmembers(checkpoint_wrapper(target, name="here")))["_hp_part"].name == "here"
