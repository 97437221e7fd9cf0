"""What a MindFormers model holds and runs again: under our layouts, and under its own full recompute that saves topk.

Their ``exclude_op: [topk]`` needs HyperParallel's dispatcher. Here MindFormers' own ``apply_ac`` chooses the layers,
MindSpore's recompute drops what they save, and what the router's ``topk`` returns is kept.
"""

from __future__ import annotations

from dataclasses import replace

import driver
import mindspore as ms
from mindspore import MsDispatchMode, nn

SIZES = {"hidden_size": 128, "seq_length": 512, "num_experts": 8, "expert_ffn_size": 32, "ffn_size": 256}
TOKENS = SIZES["seq_length"]
HALVES = {"hidden_size": 256, "ffn_size": 2048, "expert_ffn_size": 512, "num_experts": 2, "top_k": 1, "n_group": 1}


class Recomputed(nn.Cell):
    """A block under MindSpore's own recompute."""

    def __init__(self, block: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.block = block

    def construct(self, *args: object, **kwargs: object) -> object:
        return ms.recompute(self.block, *args, use_reentrant=False, **kwargs)


def keep_topk(router: nn.Cell) -> None:
    """What the router's ``topk`` returns stays, as it would for a replay. (No backward is run.)"""
    original, kept = router.topk, []

    def topk(*args: object, **kwargs: object) -> tuple:
        kept.append(original(*args, **kwargs))
        return kept[-1]

    router.topk = topk


def model(sizes: dict) -> tuple[nn.Cell, object]:
    from mindformers.pynative.trainer.trainer import Trainer
    from mindformers.pynative.transformers.moe.moe_utils import get_moe_layer_wise_logging_tracker

    from hp_memory.mindformers.families import fingerprint, model_section
    from hp_memory.models.settings import ModelSettings, ParallelSettings

    get_moe_layer_wise_logging_tracker().clear()
    settings = ModelSettings(**(driver.COMMON | driver.MODELS["deepseek_v3"] | sizes))
    cfg = driver.config("deepseek_v3") | {"model": model_section(settings, "float32")}
    built = Trainer(config=cfg, train_dataset=driver.dataset()).model[0]
    return built, fingerprint(settings, ParallelSettings())


def installed(layout: str, sizes: dict, early_stop: bool = True) -> nn.Cell:
    from hp_memory.config.app import compose, to_object
    from hp_memory.install import install
    from hp_memory.layout import build_plan
    from hp_memory.mindformers import backend
    from hp_memory.mindformers.region_map import region_map

    built, mark = model(sizes)
    settings = to_object(compose("layout_only", [f"layout={layout}"])).layout
    plan = build_plan(replace(settings, early_stop=early_stop), mark)
    install(built.model.decoder, plan, region_map(built), backend.wrappers("native"))
    return built


def their_own() -> nn.Cell:
    """MindFormers' full recompute of all layers."""
    from mindformers.pynative.config.config import RecomputeCommConfig, RecomputeConfig, SwapConfig
    from mindformers.pynative.distributed import activation_checkpoint as theirs

    built, _ = model(SIZES)
    decoder = built.model.decoder
    for block in decoder.layers._cells.values():
        if hasattr(block.mlp, "router"):
            keep_topk(block.mlp.router)
    wrapper = theirs.checkpoint_wrapper
    theirs.checkpoint_wrapper = lambda cell, **_: Recomputed(cell)
    try:
        every = RecomputeConfig(mode="full", full_recompute_layer=["0-1"])
        theirs.apply_ac(decoder, every, RecomputeCommConfig(), SwapConfig(), 1)
    finally:
        theirs.checkpoint_wrapper = wrapper
    return built


def tokens(length: int) -> tuple[ms.Tensor, ms.Tensor]:
    import numpy as np

    row = ((np.arange(length + 1) * 7) % (driver.VOCAB - 2) + 2).astype(np.int32)[None]
    return ms.Tensor(row[:, :-1].copy()), ms.Tensor(row[:, 1:].copy())


def loss_of(built: nn.Cell, length: int) -> object:
    ids, labels = tokens(length)

    def forward() -> ms.Tensor:
        out = built(input_ids=ids, labels=labels)
        return out if isinstance(out, ms.Tensor) else out[0]

    return forward


def held() -> dict[str, float]:
    """KiB by which the process grows per forward that is kept: no hook takes part in that figure."""
    from hp_memory.compare.memory import growth_per_forward

    built = {"none": installed("none", SIZES), "full": installed("full", SIZES), "theirs": their_own()}
    return {name: growth_per_forward(loss_of(one, TOKENS), forwards=4) / 1024 for name, one in built.items()}


def weights() -> dict[str, tuple[float, float]]:
    """KiB that MindFormers' own Linear and experts hold as saved regions, beside those of their weights in half."""
    built, _ = model(HALVES)
    dense, moe = built.model.decoder.layers
    linear, experts = dense.mlp.linear_fc1, moe.mlp.experts
    linear.compute_dtype = experts.compute_dtype = ms.float16
    calls = {"linear": (linear, linear, ()), "experts": (experts, experts.experts_forward, (ms.Tensor([2, 4]),))}
    return {name: (_saved(body, *more), _half_kib(cell)) for name, (cell, body, more) in calls.items()}


def _saved(body: object, *more: ms.Tensor) -> float:
    from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper
    from hp_memory.compare.memory import growth_per_forward

    saved = checkpoint_exclude_wrapper(body, name="saved")
    x = ms.ops.ones((4, HALVES["hidden_size"]), ms.float32)
    x.requires_grad_()
    return growth_per_forward(checkpoint_wrapper(lambda: saved(ms.ops.tanh(x), *more)), forwards=4) / 1024


def _half_kib(cell: nn.Cell) -> float:
    return sum(p.size for p in cell.trainable_params()) * 2 / 1024


class Replayed(MsDispatchMode):
    """Counts the operations of replays."""

    def __init__(self) -> None:
        self.operations = 0

    def __ms_dispatch__(self, func: object, args: tuple, kwargs: dict | None = None) -> object:
        from hp_memory.activation import is_recomputing

        self.operations += is_recomputing() and func.name != "StopGradient"
        return func(*args, **(kwargs or {}))


def operations() -> dict[str, list[int]]:
    """For each layout the operations of a step's replays that run to the end, and of those that end early."""
    found: dict[str, list[int]] = {}
    for layout in ("full", "chain_exclude"):
        for early_stop in (False, True):
            built = installed(layout, {}, early_stop)
            step = ms.value_and_grad(loss_of(built, driver.SEQ), None, ms.ParameterTuple(built.trainable_params()))
            step()
            with Replayed() as counting:
                step()
            found.setdefault(layout, []).append(counting.operations)
    return found


def found() -> dict:
    return {"held": held(), "operations": operations(), "weights": weights()}


if __name__ == "__main__":
    driver.prepare()
    print(found())
