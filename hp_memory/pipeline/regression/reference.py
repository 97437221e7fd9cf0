"""What the numbers must be: the whole model without pipeline or checkpoint, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from mindspore import Tensor, ops

from hp_memory.pipeline.regression.cases import Case
from hp_memory.pipeline.regression.model import EMBEDDING, HEAD, Bench, Part, tied_loss
from hp_memory.pipeline.split_backward import record, whole_backward

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Reference:
    """Losses and gradients by micro-batch, embedding and head kept apart, and those of the whole batch at once.

    ``whole_batch`` has one truly tied embedding; None where a balance loss makes the batch non-linear.
    """

    losses: tuple[float, ...]
    grads: tuple[Arrays, ...]
    whole_loss: float
    whole_batch: Arrays | None

    def accumulated(self, name: str, order: Sequence[int]) -> np.ndarray:
        """The sum over micro-batches of one parameter's gradient, in this order."""
        total = self.grads[order[0]][name]
        for micro in order[1:]:
            total = total + self.grads[micro][name]
        return total


def compute(bench: Bench, case: Case) -> Reference:
    """The reference of a case; it depends on the model's layers, the micro-batches and the balance loss only."""
    settings = bench.model_settings(case)
    part = bench.part(case, range(settings.num_layers), first=True, last=True)
    tokens, labels = bench.data(case)
    losses, grads = [], []
    for micro in range(case.microbatches):
        loss, found = _one(part, Tensor(tokens[micro]), Tensor(labels[micro]), case.microbatches)
        losses.append(loss)
        grads.append(found)
    whole_loss, whole = _whole_batch(part, tokens, labels)
    return Reference(tuple(losses), tuple(grads), whole_loss, None if case.aux_loss else whole)


def array_of(gradient: Tensor | None) -> np.ndarray:
    """A gradient that must be there."""
    assert gradient is not None
    return gradient.asnumpy()


def _one(part: Part, tokens: Tensor, labels: Tensor, micros: int) -> tuple[float, Arrays]:
    weights = part.trainable_params()
    loss = record(part, tokens, labels)
    found = whole_backward((loss,), (ops.ones_like(loss) / micros,), weights)
    return float(loss.asnumpy()), {w.name: array_of(g) for w, g in zip(weights, found, strict=True)}


def _whole_batch(part: Part, tokens: np.ndarray, labels: np.ndarray) -> tuple[float, Arrays]:
    weights = [w for w in part.trainable_params() if w.name != HEAD]
    everything = Tensor(tokens.reshape(-1, tokens.shape[-1])), Tensor(labels.reshape(-1, labels.shape[-1]))
    loss = record(tied_loss, part, *everything)
    found = whole_backward((loss,), (ops.ones_like(loss),), weights)
    return float(loss.asnumpy()), {w.name: array_of(g) for w, g in zip(weights, found, strict=True)}


def tie(grads: Mapping[str, np.ndarray]) -> Arrays:
    """Gradients with the head's contribution added to the embedding's, each summed over micro-batches before."""
    tied = {name: grad for name, grad in grads.items() if name != HEAD}
    if EMBEDDING in grads and HEAD in grads:
        tied[EMBEDDING] = grads[EMBEDDING] + grads[HEAD].T
    return tied
