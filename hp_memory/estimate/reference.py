"""The reference model on the meta device: its own code and its CPU kernels, under a given routing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint
from mindspore.common._grad_function import _Function

from hp_memory.cpu import collectives as cpu_collectives
from hp_memory.cpu import kernels as cpu_kernels
from hp_memory.estimate import values
from hp_memory.models import devices
from hp_memory.models.groups import Group
from hp_memory.models.reference.model import Model
from hp_memory.models.settings import ModelSettings


def balanced(tokens: int, settings: ModelSettings) -> np.ndarray:
    """Chosen experts (T, k) int32 such that every expert gets the same number of tokens, as far as it divides."""
    flat = np.arange(tokens * settings.top_k) % settings.num_experts
    return flat.reshape(tokens, settings.top_k).astype(np.int32)


def _scores(chosen: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Scores (T, E) whose greatest k per row are the chosen experts, in their order."""
    scores = np.zeros(shape, np.float32)
    np.put_along_axis(scores, chosen, np.arange(chosen.shape[1], 0, -1, dtype=np.float32)[None], axis=1)
    return scores


class _Travel(_Function):
    """Rows go to other ranks without values. Like the real exchange it saves nothing."""

    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.back = in_splits
        return mint.empty((sum(out_splits), *x.shape[1:]), dtype=x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return mint.empty((sum(ctx.back), *grad.shape[1:]), dtype=grad.dtype), None, None


def _collectives() -> SimpleNamespace:
    """Between ranks only shapes travel, and every rank of a group is taken to route as this one does."""

    def all_to_all_single(x: Tensor, out_splits: Any, in_splits: Any, group: Group) -> Tensor:
        if group.size == 1:
            return cpu_collectives.all_to_all_single(x, out_splits, in_splits, group)
        return _Travel.apply(x, tuple(out_splits), tuple(in_splits))

    def gather_list(x: Tensor, group: Group) -> list[Tensor]:
        return [x] * group.size

    return SimpleNamespace(all_to_all_single=all_to_all_single, gather_list=gather_list)


@contextmanager
def on_meta(chosen: np.ndarray) -> Iterator[None]:
    """While inside, the model is built with its CPU kernels on the meta device and routes as ``chosen`` (T, k) says."""
    before = devices.kernels, devices.collectives
    together = _collectives()
    devices.kernels, devices.collectives = (lambda: cpu_kernels), (lambda: together)

    def inject(tensor: Tensor) -> np.ndarray | None:
        return _scores(chosen, tuple(tensor.shape)) if tensor.ndim == 2 and tensor.dtype == ms.float32 else None

    with ExitStack() as stack:
        stack.callback(lambda: _restore(before))
        stack.enter_context(values.remembered(inject))
        stack.enter_context(ms.DeviceCtx("meta"))
        yield


def _restore(before: tuple) -> None:
    devices.kernels, devices.collectives = before


def build(settings: ModelSettings, group: Group, layers: range, *, ends: bool = True) -> Model:
    """The model, or a run of its layers, without storage. Call inside ``on_meta``."""
    return Model(settings, group, layers, embedding=ends, head=ends)


def hidden_states(settings: ModelSettings, sequences: int) -> Tensor:
    """Hidden states (B*S, H) of one micro-batch. Call inside ``on_meta``."""
    return mint.empty((sequences * settings.seq_length, settings.hidden_size), dtype=ms.float32)
