"""A MindFormers model on the meta device, at full size, as one rank of the job would run it.

MindFormers builds and runs its own code. What can't run without devices is replaced, and the report says so: the
collectives by rules for their shapes, host reads of routing counts by a given routing, and one in-place write.
"""

from __future__ import annotations

import importlib
import io
import logging
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn

from hp_memory.errors import ConfigError
from hp_memory.estimate.account.check import LayerCheck, compare, distinct_layouts, saved_regions
from hp_memory.estimate.engines import context_parallel, tensor_parallel
from hp_memory.estimate.tracing import values
from hp_memory.estimate.tracing.light_import import left_out
from hp_memory.estimate.tracing.record import LayerTrace, ModelTrace
from hp_memory.estimate.tracing.shape_rules import arrive
from hp_memory.estimate.tracing.trace import constants_of, mark, record_layer, tensors
from hp_memory.estimate.workload import HEAD_REGIONS, Workload, parameters_of
from hp_memory.install import install
from hp_memory.layout import REGIONS_OF_KIND, ActivationPlan, LayerPlan
from hp_memory.mindformers.families import fingerprint, model_section
from hp_memory.mindformers.region_map import gpt_model
from hp_memory.mindformers.region_map import region_map as region_map_of
from hp_memory.models.settings import ModelSettings, ParallelSettings, one_of_each, with_layers
from hp_memory.models.sites import BlockSites

_EP = "mindformers.pynative.distributed.expert_parallel"

NOTES = (
    "tensor parallel ranks hold their heads, their part of dense and shared MLPs and of the vocabulary, and between "
    "those an equal part of the sequence; the loss is taken over each rank's own part of the vocabulary",
    "collectives are shape rules: rows sent and received per rank come from the routing",
    "without expert parallelism GroupedMLP indexes rows and writes them in place, which the meta device can't: equal "
    "gathers stand there",
    "what MindFormers logs of auxiliary and MTP losses is left out",
)


@dataclass(frozen=True)
class Routing:
    """How many rows this rank's experts get.

    Attributes:
        sent: rows this rank sends to all ranks of its expert group (padding included).
        received: rows that arrive from all ranks for this rank's experts.
        ranks: size of the expert group.
        local_experts: experts on this rank.
    """

    sent: int
    received: int
    ranks: int
    local_experts: int

    def counts(self) -> np.ndarray:
        """Rows (ranks, local experts) float32 that arrive, spread as evenly as whole rows allow."""
        cells = self.ranks * self.local_experts
        each, rest = divmod(self.received, cells)
        flat = np.full(cells, each, np.float32)
        flat[:rest] += 1
        return flat.reshape(self.ranks, self.local_experts)


def routing_of(model: ModelSettings, parallel: ParallelSettings, tokens: int, imbalance: float) -> Routing:
    """The rows of one rank for ``tokens`` tokens of its own micro-batch; MindFormers pads one row per expert."""
    pad = model.num_experts if parallel.expert > 1 else 0
    sent = (tokens + pad) * model.top_k
    return Routing(sent, math.ceil(sent * imbalance), parallel.expert, model.num_experts // parallel.expert)


def _permute(self: Any, tokens: Tensor, top_scores: Tensor, chosen: Tensor, counts: Tensor) -> tuple[Tensor, ...]:
    """``GroupedMLP.permute`` with gathers in place of its indexing, which loses its gradient on the meta device."""
    ends = self.cumsum(self.cast(counts, chosen.dtype), dim=0, dtype=ms.int64)
    order = self.argsort(self.reshape(self.cast(chosen, ms.float32), (-1,)), stable=True)
    scores = mint.index_select(self.reshape(top_scores, (-1,)), 0, order)
    rows = self.reshape(tokens, (-1, tokens.shape[-1]))
    return ends, order, scores, mint.index_select(rows, 0, mint.floor_divide(order, self.top_k))


def _unpermute(self: Any, routed_output: Tensor, index: Tensor, probs: Tensor, shape: tuple) -> Tensor:
    """``GroupedMLP.unpermute`` with a gather in place of its indexed write; it saves the rows and the weights too."""
    weights = self.unsqueeze(self.cast(probs, routed_output.dtype), -1)
    rows = mint.index_select(self.mul(routed_output, weights), 0, index)
    return self.reshape(rows, (-1, self.top_k, shape[2])).sum(dim=1)


_REPLACED = (
    ("moe.experts", "GroupedMLP", "permute", _permute),
    ("moe.experts", "GroupedMLP", "unpermute", _unpermute),
    ("moe.router", "", "save_to_aux_losses_tracker", lambda *args, **kwargs: None),
    ("multi_token_prediction", "", "save_to_mtp_losses_tracker", lambda *args, **kwargs: None),
)


@contextmanager
def on_meta(routing: Routing | None) -> Iterator[None]:
    """While inside, MindFormers models are built and run on the meta device under ``routing``."""
    counts = routing.counts() if routing else None

    def inject(tensor: Tensor) -> np.ndarray | None:
        if counts is None:
            return None
        if tensor.shape == counts.shape:
            return counts
        return np.zeros(tensor.shape, np.int64) if tensor.ndim == 1 else None

    with ExitStack() as stack:
        for module, owner, name, replacement in _REPLACED:
            place = importlib.import_module(f"mindformers.pynative.transformers.{module}")
            place = getattr(place, owner) if owner else place
            stack.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, replacement)
        stack.enter_context(_quiet())
        stack.enter_context(values.remembered(inject))
        stack.enter_context(ms.DeviceCtx("meta"))
        yield


def prepare() -> str:
    """Makes MindFormers importable for a meta run, without the CPU kernels; returns what hyper_parallel is here."""
    from hp_memory.mindformers import standin

    line = standin.activate()
    # MindFormers writes its logs to a folder that it reads while it is imported.
    os.environ.setdefault("LOCAL_DEFAULT_PATH", tempfile.mkdtemp(prefix="mindformers-"))
    with left_out():
        trainer = importlib.import_module("mindformers.pynative.trainer.trainer")
    trainer.patch_pynative_modules()
    trainer.enable_mindspore_backward_compat()
    importlib.import_module("hp_memory.mindformers.generic_models")
    return line


@contextmanager
def _quiet() -> Iterator[None]:
    """MindFormers prints its whole config at every build."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


# What tensor parallelism divides of MindFormers' model section.
_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
_DIVIDED_EXPERT = "moe_shared_expert_intermediate_size"


def _local(section: dict[str, Any], tensor: int) -> dict[str, Any]:
    """The section with the sizes that one tensor parallel rank has."""
    found = dict(section)
    for name in (*_DIVIDED, _DIVIDED_EXPERT):
        whole = found.get(name)
        if not whole:
            continue
        if whole % tensor:
            raise ConfigError("parallel.tensor", tensor, f"doesn't divide the model's {name}={whole}")
        found[name] = whole // tensor
    return found


def build(
    model: ModelSettings, dtype: str, parallel: ParallelSettings | None = None, parameters_dtype: str | None = None
) -> Any:
    """The model class of MindFormers as one rank has it, without storage. Call inside ``on_meta``."""
    parallel = parallel or ParallelSettings()
    config = {
        "model": _local(model_section(model, dtype, parallel, parameters_dtype or dtype), parallel.tensor),
        "checkpoint": {"enable_save": False},
        "training": {"steps": 1, "local_batch_size": 1, "global_batch_size": 1},
        "optimizer": {"type": "AdamW"},
        "lr_scheduler": {"type": "ConstantWarmUpLR", "learning_rate": 1e-4, "warmup_ratio": 0.0},
        "parallelism": {},
        "train_dataset": {"dataloader": {"type": "GeneratorDataset"}},
        "context": {"device_target": "CPU"},
    }
    train_config = importlib.import_module("mindformers.pynative.config").TrainConfig.from_dict(config)
    return importlib.import_module("mindformers.pynative.trainer.utils")._build_model(train_config)


def spread_experts(layer: Any, parallel: ParallelSettings, routing: Routing) -> None:
    """Gives a MoE block this rank's experts only, and MindFormers' own dispatch and combine around them."""
    module: Any = importlib.import_module(_EP)
    utils: Any = importlib.import_module("mindformers.pynative.distributed.utils")
    mesh = _mesh(parallel.expert)
    before = utils.shard_module, module.get_rank, module.get_ep_group_name
    utils.shard_module = _keep_own_experts
    try:
        exchange = module.ExpertParallel()
        exchange._apply(layer.mlp.experts, mesh)
    finally:
        utils.shard_module = before[0]
    module.get_rank, module.get_ep_group_name = (lambda: 0), (lambda rank, size: "experts")
    exchange.all_to_all = lambda output_tensor_list, input_tensor_list, group: (output_tensor_list, None)
    exchange.all_to_all_single = _exchange(routing, layer.mlp.experts.hidden_size)


def _exchange(routing: Routing, width: int) -> Callable[..., tuple[Tensor, None]]:
    out, home = routing.received * width, routing.sent * width

    outward = True

    # Each forward sends rows out once and fetches them home once, and so does a replay of both. What a layout saves
    # isn't called again: then only the other way is, which the elements that come in tell apart.
    def all_to_all_single(output: Any, input: Tensor, **_: Any) -> tuple[Tensor, None]:
        nonlocal outward
        goes_out = outward if out == home else input.size == home
        outward = not goes_out
        return arrive(input, (out if goes_out else home,)), None

    return all_to_all_single


def _mesh(size: int) -> Any:
    mesh = importlib.import_module("hyper_parallel").DeviceMesh
    return mesh("npu", np.arange(size), mesh_dim_names=("ep",))


def _keep_own_experts(cell: Any, mesh: Any, plan: Any) -> Any:
    for name in ("weight1", "weight2"):
        whole = cell._params[name]
        shape = (whole.shape[0] // mesh.size(), *whole.shape[1:])
        own = Parameter(mint.empty(shape, dtype=whole.dtype), name=whole.name)
        own.device_mesh, own.to_local = mesh, _itself(own)
        cell._params[name] = own
    return cell


def _itself(parameter: Parameter) -> Callable[[], Parameter]:
    return lambda: parameter


def trace(work: Workload) -> ModelTrace:
    """A layer of each kind and the model's ends, from a model as large as asked for, and the whole model's size."""
    hyper_parallel = prepare()
    routing = _routing(work)
    with on_meta(routing):
        small = one_of_each(work.model)
        total = _count(work, small)
        model = _Model(work, small)
        layers = {b.kind: model.record(b)[0] for b in model.blocks}
        head, embedding = model.record_head(), model.record_embedding()
    return ModelTrace(work.model.kinds, layers, embedding, head, total, (hyper_parallel, *NOTES))


def check(work: Workload, plain: ModelTrace, plan: ActivationPlan) -> list[LayerCheck]:
    """Each kind and layout of the plan once, installed by the installer of a real run."""
    from hp_memory.mindformers import backend

    prepare()
    layers = distinct_layouts(plan)
    small = with_layers(work.model, *(sum(p.kind == kind for p in layers) for kind in ("dense", "moe")))
    small = replace(small, mtp_layers=sum(p.kind == "mtp" for p in layers))
    with on_meta(_routing(work)):
        model = _Model(work, small)
        renumbered = tuple(LayerPlan(i, p.kind, p.layout) for i, p in enumerate(layers))
        mark_ = fingerprint(small, work.parallel)
        receipt = install(model.gpt, ActivationPlan(mark_, renumbered), model.blocks, backend.wrappers("native"))
        checks = []
        for block, layer in zip(model.blocks, layers, strict=True):
            traced, installed = model.record(block, saved_regions(layer))
            checks.append(compare(traced, plain.layers[layer.kind], layer, installed, receipt.in_words()))
    return checks


def _routing(work: Workload) -> Routing | None:
    if not work.model.num_experts:
        return None
    return routing_of(work.model, work.parallel, work.local_tokens, work.imbalance)


def _count(work: Workload, small: ModelSettings) -> int:
    """Trainable parameters of the whole model, without those of MTP layers, which the published counts leave out."""
    gpt = gpt_model(build(replace(small, mtp_layers=0), work.dtype))
    kinds = Counter(work.model.kinds)
    total = sum(p.size for p in gpt.trainable_params())
    for kind, layer in zip(small.kinds, gpt.decoder.layers._cells.values(), strict=False):
        total += (kinds[kind] - 1) * sum(p.size for p in layer.trainable_params())
    return total


class _Passage(nn.Cell):
    """Stands where a block was, lets the hidden states through and keeps what the block is called with."""

    def __init__(self, block: Any) -> None:
        super().__init__(auto_prefix=False)
        object.__setattr__(self, "block", block)
        self.call: tuple[tuple, dict] | None = None

    def construct(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        self.call = args, kwargs
        return hidden_states, None


class _Model:
    """A small MindFormers model whose blocks are recorded one by one."""

    def __init__(self, work: Workload, small: ModelSettings) -> None:
        self.work = work
        self.gpt = gpt_model(build(small, work.dtype, work.parallel, work.parameters_dtype))
        self.gpt.set_train(True)
        self.ids = mint.zeros((work.sequences, work.local_length), dtype=ms.int32)
        blocks = [*self.gpt.decoder.layers._cells.values()]
        if self.gpt.mtp is not None:
            blocks += [layer.transformer_layer for layer in self.gpt.mtp.layers]
        routing = _routing(work)
        if work.parallel.expert > 1 and routing is not None:
            for block in blocks:
                if hasattr(block.mlp, "router"):
                    spread_experts(block, work.parallel, routing)
        # Before anything is put around constructs that the map replaces.
        self.blocks = region_map_of(self.gpt)
        if work.parallel.tensor > 1:
            tensor_parallel.spread(self.gpt, blocks, work.parallel.tensor)
        if work.parallel.context > 1:
            context_parallel.spread(blocks, work.parallel.context, work.parallel.context_method)
            # Positions then come with the batch, one row for each sequence.
            self.gpt.rotary_pos_emb.use_position_ids = True
        self.passages: dict[int, _Passage] = {}

    def _open(self) -> None:
        """Takes the blocks out of the model; what they are called with is learned from one forward."""
        if self.passages:
            return
        for block in self.blocks:
            inner = _child(block)
            self.passages[block.layer] = _Passage(inner)
            block.container._cells[str(block.key)] = self.passages[block.layer]
        self._forward()

    def _forward(self, **given: Tensor) -> Tensor:
        positions = self.ids if self.work.parallel.context > 1 else None
        return self.gpt(input_ids=self.ids, labels=self.ids, position_ids=positions, **given)[0]

    def record(self, block: BlockSites, saved: Collection[str] = ()) -> tuple[LayerTrace, Any]:
        """The trace of one block, and what its wrappers kept if a plan is installed."""
        self._open()
        passage = self.passages[block.layer]
        assert passage.call is not None, "the model's forward calls every block"
        args, kwargs = passage.call
        for site in block.sites:
            if len(site.regions) == 1:
                mark(site.owner, site.attr, site.regions[0])
        regions = tuple(dict.fromkeys(site.regions[0] for site in block.sites if len(site.regions) == 1))
        order = [r for r in REGIONS_OF_KIND[block.kind] if r in regions]
        traced = LayerTrace(block.kind, tuple(order))
        constants = [*tensors((args, kwargs)), *constants_of(passage.block)]
        installed = record_layer(
            traced,
            lambda x: passage.block(x, *args, **kwargs)[0],
            [self._hidden()],
            list(passage.block.trainable_params()),
            constants,
            self.work.views,
            saved,
        )
        traced.parameters = parameters_of(list(passage.block.parameters_and_names()), _is_expert)
        return traced, installed

    def record_head(self) -> LayerTrace:
        """What the last stage runs after the blocks: norm, MTP's own parts, logits, loss."""
        self._open()
        gpt = self.gpt
        cells = {"mtp": gpt.mtp, "output_layer": gpt.output_layer, "norm": gpt.decoder.final_layernorm}
        places = ((gpt.decoder, "final_layernorm", "final_norm"), (gpt, "mtp", "mtp"), (gpt, "output_layer", "head"))
        for owner, attr, region in (*places, (gpt, "compute_language_model_loss", "loss")):
            if getattr(owner, attr, None) is not None:
                mark(owner, attr, region)
        named = [(f"{name}.{n}", p) for name, cell in cells.items() if cell for n, p in cell.parameters_and_names()]
        traced = LayerTrace("head", HEAD_REGIONS)
        record_layer(
            traced,
            lambda x: self._forward(decoder_input=x),
            [self._hidden()],
            # MTP looks the next tokens up in the embedding of the first stage.
            [p for p in (*(p for _, p in named), *gpt.embedding.get_parameters()) if p.requires_grad],
            [self.ids, *constants_of(gpt)],
            self.work.views,
        )
        traced.parameters = parameters_of(named, _is_expert)
        return traced

    def record_embedding(self) -> LayerTrace:
        """Only its parameters count: a gather saves the token ids."""
        traced = LayerTrace("embedding", ())
        traced.parameters = parameters_of(list(self.gpt.embedding.parameters_and_names()), _is_expert)
        return traced

    def _hidden(self) -> Tensor:
        rows = self.work.local_length // self.work.parallel.tensor
        shape = (rows, self.work.sequences, self.work.model.hidden_size)
        return mint.zeros(shape, dtype=getattr(ms, self.work.dtype))


def _child(block: BlockSites) -> Any:
    return block.container._cells[str(block.key)]


def _is_expert(name: str) -> bool:
    return ".experts." in f".{name}"
