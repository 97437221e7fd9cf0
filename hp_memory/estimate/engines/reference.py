"""The reference model on the meta device: its own code and its CPU kernels, under a given routing."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

from hp_memory.errors import ConfigError
from hp_memory.estimate.account.check import LayerCheck, compare, distinct_layouts, saved_regions
from hp_memory.estimate.tracing import values
from hp_memory.estimate.tracing.record import LayerTrace, ModelTrace
from hp_memory.estimate.tracing.shape_rules import arrive
from hp_memory.estimate.tracing.trace import constants_of, mark, record_layer
from hp_memory.estimate.workload import HEAD_REGIONS, Workload, parameters_of
from hp_memory.install import install
from hp_memory.kernels import devices
from hp_memory.kernels.cpu import collectives as cpu_collectives
from hp_memory.kernels.cpu import kernels as cpu_kernels
from hp_memory.kernels.groups import Group
from hp_memory.layout import ActivationPlan, LayerPlan
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.reference.init import is_expert
from hp_memory.models.reference.model import Model, next_token_loss
from hp_memory.models.reference.model import build as build_real
from hp_memory.models.reference.regions import region_map
from hp_memory.models.settings import REFERENCE, ModelSettings, ParallelSettings, one_of_each, with_layers

NOTES = ("the loss on the meta device is mint's cross entropy: the trainer's own has no shape rule there",)


def balanced(tokens: int, settings: ModelSettings) -> np.ndarray:
    """Chosen experts (T, k) int32 such that every expert gets the same number of tokens, as far as it divides."""
    flat = np.arange(tokens * settings.top_k) % settings.num_experts
    return flat.reshape(tokens, settings.top_k).astype(np.int32)


def _scores(chosen: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Scores (T, E) whose greatest k per row are the chosen experts, in their order."""
    scores = np.zeros(shape, np.float32)
    np.put_along_axis(scores, chosen, np.arange(chosen.shape[1], 0, -1, dtype=np.float32)[None], axis=1)
    return scores


def _collectives() -> SimpleNamespace:
    """Between ranks only shapes travel, and every rank of a group is taken to route as this one does."""

    def all_to_all_single(x: Tensor, out_splits: Any, in_splits: Any, group: Group) -> Tensor:
        if group.size == 1:
            return cpu_collectives.all_to_all_single(x, out_splits, in_splits, group)
        return arrive(x, (sum(out_splits), *x.shape[1:]))

    def gather_list(x: Tensor, group: Group) -> list[Tensor]:
        return [x] * group.size

    return SimpleNamespace(all_to_all_single=all_to_all_single, gather_list=gather_list)


@contextmanager
def on_meta(chosen: np.ndarray) -> Iterator[None]:
    """While inside, the model is built with its CPU kernels on the meta device and routes as ``chosen`` (T, k) says."""
    before = devices.kernels, devices.collectives
    # A namespace with the functions of the module that it stands for.
    together = cast(ModuleType, _collectives())
    devices.kernels, devices.collectives = (lambda: cpu_kernels), (lambda: together)

    def inject(tensor: Tensor) -> np.ndarray | None:
        return _scores(chosen, tuple(tensor.shape)) if tensor.ndim == 2 and tensor.dtype == ms.float32 else None

    with ExitStack() as stack:
        stack.callback(lambda: _restore(before))
        # Masks and index tables are made once and kept: those of the CPU can't be used here, nor these there.
        _forget_tables()
        stack.callback(_forget_tables)
        stack.enter_context(values.remembered(inject))
        stack.enter_context(ms.DeviceCtx("meta"))
        yield


def _forget_tables() -> None:
    """Empties the caches of the kernels' modules."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("hp_memory.kernels.cpu.", "hp_memory.models.reference.")):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _restore(before: tuple) -> None:
    devices.kernels, devices.collectives = before


@cache
def _warm_up() -> None:
    """Runs a tiny model on the CPU, once per process, before anything runs on the meta device.

    Which kernel an operation's backward uses is settled by its first run in a process; settled on the meta device, it
    is one that a CPU lacks (softmax), and training in the same process would fail.
    """
    sizes: dict[str, Any] = {
        "num_layers": 2, "hidden_size": 8, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "ffn_size": 8,
        "first_dense_layers": 1, "num_experts": 2, "top_k": 1, "expert_ffn_size": 8, "shared_experts": 1,
    }  # fmt: skip
    model = build_real(ModelSettings(REFERENCE, **sizes, vocab_size=8, seq_length=4), ParallelSettings())
    ids = ops.zeros((1, 4), ms.int32)
    weights = ms.ParameterTuple(model.trainable_params())
    ms.value_and_grad(lambda x: next_token_loss(model(x), x), None, weights)(ids)


def trace(work: Workload, chosen: np.ndarray | None = None) -> ModelTrace:
    """A dense and a MoE layer, the embedding and the head; ``chosen`` (T, k) replaces the balanced routing."""
    if work.imbalance != 1:
        raise ConfigError("estimate.imbalance", work.imbalance, "the reference model is traced under a routing", (1,))
    _warm_up()
    with on_meta(balanced(work.tokens, work.model) if chosen is None else chosen):
        small = one_of_each(work.model)
        model = _build(work, small)
        layers = {kind: _record_block(work, model, layer, kind)[0] for layer, kind in enumerate(small.kinds)}
        head, embedding = _record_head(work, model), _record_embedding(work, model)
    total = sum(p.size for t in (head, embedding) for p in t.parameters if p.trainable)
    total += sum(_whole(work, p) for kind in work.model.kinds for p in layers[kind].parameters if p.trainable)
    return ModelTrace(work.model.kinds, layers, embedding, head, total, NOTES)


def check(
    work: Workload, plain: ModelTrace, plan: ActivationPlan, chosen: np.ndarray | None = None
) -> list[LayerCheck]:
    """Each kind and layout of the plan once, installed by the installer of a real run."""
    _warm_up()
    layers = distinct_layouts(plan)
    small = with_layers(work.model, *(sum(p.kind == kind for p in layers) for kind in ("dense", "moe")))
    with on_meta(balanced(work.tokens, work.model) if chosen is None else chosen):
        model = _build(work, small)
        renumbered = tuple(LayerPlan(i, p.kind, p.layout) for i, p in enumerate(layers))
        receipt = install(model, ActivationPlan(fingerprint(small), renumbered), region_map(model))
        checks = []
        for i, layer in enumerate(layers):
            traced, installed = _record_block(work, model, i, layer.kind, saved_regions(layer))
            checks.append(compare(traced, plain.layers[layer.kind], layer, installed, receipt.in_words()))
    return checks


def _build(work: Workload, small: ModelSettings) -> Model:
    size = work.parallel.expert
    group = Group(tuple(range(size)), 0, "experts" if size > 1 else None)
    return Model(small, group, range(small.num_layers))


def _whole(work: Workload, parameter: Any) -> int:
    return parameter.size * (work.parallel.expert if parameter.expert else 1)


def _hidden(work: Workload) -> Tensor:
    return mint.zeros((work.tokens, work.model.hidden_size), dtype=ms.float32)


def _record_block(
    work: Workload, model: Model, layer: int, kind: str, saved: Collection[str] = ()
) -> tuple[LayerTrace, Any]:
    sites = region_map(model)[layer].sites
    for site in sites:
        if len(site.regions) == 1:
            mark(site.owner, site.attr, site.regions[0])
    block = model.layers._cells[str(layer)]
    regions = tuple(site.regions[0] for site in sites if len(site.regions) == 1)
    traced = LayerTrace(kind, regions)
    weights = list(block.trainable_params())
    # Kernels make their tables when they first run, and keep them.
    block(_hidden(work))
    installed = record_layer(traced, block, [_hidden(work)], weights, constants_of(block), work.views, saved)
    traced.parameters = parameters_of(list(block.parameters_and_names()), is_expert)
    return traced, installed


def _record_head(work: Workload, model: Model) -> LayerTrace:
    labels = mint.zeros((work.tokens,), dtype=ms.int32)

    def run(x: Tensor) -> Tensor:
        return mint.nn.functional.cross_entropy(mint.matmul(model.norm(x), model.head), labels)

    traced = LayerTrace("head", HEAD_REGIONS)
    mark(model, "norm", "final_norm")
    record_layer(traced, run, [_hidden(work)], [model.norm.weight, model.head], [labels], work.views)
    named = [("norm.weight", model.norm.weight), ("head", model.head)]
    traced.parameters = parameters_of(named, is_expert)
    return traced


def _record_embedding(work: Workload, model: Model) -> LayerTrace:
    """Only its parameters and the rows it makes count: a gather saves the token ids."""
    traced = LayerTrace("embedding", ())
    traced.parameters = parameters_of([("embedding", model.embedding)], is_expert)
    return traced
