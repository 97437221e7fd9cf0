"""A backward in two halves over MindSpore's PyNative engine: gradients of inputs now, of weights later.

dx runs the engine once for the inputs only. The nodes where a weight's branch leaves the path from outputs to inputs
are the *boundary*; the gradient that arrives at each is written down on the way. dw cuts every edge of the boundary
that isn't a weight's, and runs the engine once more, from the boundary with the gradients written down. Neither half
computes what belongs to the other. Outputs that lead to no input (the first stage) are their own boundary: dw does all
the work.

The whole graph lives until dw, although half of it isn't read after dx. Letting go of it earlier gains little, since in
MindSpore 2.10 a saved tensor holds the node that made it, and breaks: nobody else owns the node of a custom function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor

from hp_memory.errors import SessionError
from hp_memory.mindspore.private import GradientEdge as _GradientEdge
from hp_memory.mindspore.private import executor as _pynative_executor
from hp_memory.mindspore.private import run_backward

Gradients = tuple[Tensor | None, ...]


def record(fn: Callable[..., Any], *args: Any, inputs: Sequence[Tensor] = (), **kwargs: Any) -> Any:
    """Run ``fn(*args, **kwargs)`` with the autograd graph recorded, without a ``value_and_grad`` around it.

    Args:
        inputs: leaves whose gradients are wanted later; weights need no mention.
    """
    for leaf in inputs:
        leaf.requires_grad_()
    before = _pynative_executor.grad_flag()
    _pynative_executor.set_grad_flag(True)
    try:
        return fn(*args, **kwargs)
    except BaseException:
        _pynative_executor.clear_res()
        raise
    finally:
        _pynative_executor.set_grad_flag(before)


def whole_backward(outputs: Sequence[Tensor], grads: Sequence[Tensor], wanted: Sequence[Tensor]) -> Gradients:
    """Gradients of ``wanted`` (inputs and weights) in one engine run; None where nothing leads there."""
    return _engine(outputs, grads, wanted, retain=False)


def _engine(roots: Sequence[Any], grads: Sequence[Tensor], wanted: Sequence[Tensor], retain: bool) -> Gradients:
    if not roots or not wanted:
        return (None,) * len(wanted)
    try:
        found = run_backward(
            tuple(roots), tuple(grads), retain, False, tuple(wanted), allow_unreachable=True, accumulate_grad=False
        )
    except BaseException:
        _pynative_executor.clear_res()
        raise
    return tuple(found)


class SplitBackward:
    """One recorded forward, to be walked back by ``dx`` and then ``dw``.

    Args:
        outputs: tensors of the forward; those without a graph are ignored.
        inputs: leaves given to ``record`` (may be empty: the first stage has none).
        weights: parameters whose gradients ``dw`` returns.
    """

    def __init__(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        self._outputs, self._inputs, self._weights = tuple(outputs), tuple(inputs), tuple(weights)
        self._graph: _Graph | None = None
        self._edges: list[_GradientEdge] = []
        self._grads: list[Tensor] = []
        self._state = "recorded"

    def dx(self, grads: Sequence[Tensor]) -> Gradients:
        """Gradients of the inputs, given those of the outputs; None for an input that no output depends on.

        Raises:
            SessionError: a second dx.
        """
        self._enter("recorded", "dx")
        live = [(out, grad) for out, grad in zip(self._outputs, grads, strict=True) if out._grad_node is not None]
        graph = _Graph([out._grad_node for out, _ in live], self._inputs, self._weights)
        caught: dict[int, Any] = {}
        hooks = [graph.nodes[key].register_prehook(_Catch(caught, key)) for key in graph.boundary]
        try:
            found = self._run_dx(graph, live)
        finally:
            for hook in hooks:
                hook.remove()
        self._remember(graph, caught, live)
        self._graph, self._outputs, self._inputs = graph, (), ()
        self._state = "dx"
        return found

    def _run_dx(self, graph: _Graph, live: list[tuple[Tensor, Tensor]]) -> Gradients:
        starts = [(out, grad) for out, grad in live if _key(out._grad_node) in graph.to_inputs]
        return _engine([out for out, _ in starts], [grad for _, grad in starts], self._inputs, retain=True)

    def _remember(self, graph: _Graph, caught: dict[int, Any], live: list[tuple[Tensor, Tensor]]) -> None:
        for key, grads in caught.items():
            for index, grad in enumerate(grads if isinstance(grads, (tuple, list)) else (grads,)):
                if grad is not None:
                    self._start_at(graph.nodes[key], index, grad)
        for out, grad in live:
            key = _key(out._grad_node)
            if key in graph.to_weights and key not in graph.to_inputs:
                self._start_at(out._grad_node, out._output_index, grad)

    def _start_at(self, node: Any, index: int, grad: Tensor) -> None:
        self._edges.append(_GradientEdge(grad_node=node, output_index=index, keep_alive_token=None))
        self._grads.append(grad)

    def dw(self) -> Gradients:
        """Gradients of the weights; None for a weight that no output depends on. Frees the graph.

        Raises:
            SessionError: before dx, after a dx that raised, or a second time.
        """
        self._enter("dx", "dw")
        graph = self._graph
        assert graph is not None  # dx ended well
        graph.cut_at_boundary()
        try:
            return _engine(self._edges, self._grads, self._weights, retain=False)
        finally:
            self._graph, self._edges, self._grads = None, [], []
            self._state = "dw"

    def _enter(self, expected: str, half: str) -> None:
        if self._state != expected:
            reason = "before dx" if self._state == "recorded" else f"after {self._state}"
            raise SessionError(f"{half} of a split backward called {reason}: dx runs once, then dw once")
        self._state = f"a {half} that raised"


class _Catch:
    """A prehook that writes down the gradient arriving at a node."""

    def __init__(self, caught: dict[int, Any], key: int) -> None:
        self.caught, self.key = caught, key

    def __call__(self, grads: Any) -> Any:
        self.caught[self.key] = grads
        return grads


def _key(node: Any) -> int:
    return int(node._unique_id())


class _Graph:
    """The autograd graph below some roots, and which of its nodes lead to inputs and to weights."""

    def __init__(self, roots: Sequence[Any], inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        self.nodes: dict[int, Any] = {}
        parents = self._walk(roots)
        self.to_inputs = self._above(inputs, parents)
        self.to_weights = self._above(weights, parents)
        self.boundary = [key for key in self.nodes if key in self.to_inputs and self._weight_slots(key)]

    def _walk(self, roots: Sequence[Any]) -> dict[int, set[int]]:
        parents: dict[int, set[int]] = {}
        self.nodes = {_key(root): root for root in roots}
        queue = deque(self.nodes.values())
        while queue:
            node = queue.popleft()
            for child in self._children(node):
                parents.setdefault(_key(child), set()).add(_key(node))
                if _key(child) not in self.nodes:
                    self.nodes[_key(child)] = child
                    queue.append(child)
        return parents

    @staticmethod
    def _children(node: Any) -> list[Any]:
        return [child for child, _ in node.next_functions if child is not None]

    def _above(self, leaves: Sequence[Tensor], parents: dict[int, set[int]]) -> set[int]:
        """The leaves' nodes and every node that leads to them."""
        found: set[int] = set()
        queue = deque(_key(t._grad_node) for t in leaves if t._grad_node is not None)
        while queue:
            key = queue.popleft()
            if key in self.nodes and key not in found:
                found.add(key)
                queue.extend(parents.get(key, ()))
        return found

    def _weight_slots(self, key: int) -> list[int]:
        """Edges of a node that lead to weights and to no input."""
        edges = enumerate(self.nodes[key].next_functions)
        return [slot for slot, (child, _) in edges if child is not None and self._only_weights(_key(child))]

    def _only_weights(self, key: int) -> bool:
        return key in self.to_weights and key not in self.to_inputs

    def cut_at_boundary(self) -> None:
        """Leave the boundary's nodes no edge but those towards weights."""
        for key in self.boundary:
            node, keep = self.nodes[key], set(self._weight_slots(key))
            for slot in range(len(node.next_functions)):
                if slot not in keep:
                    node._set_next_edge(slot, None)
