"""MindFormers' own ``_distribute_router``, which runs for each MoE layer under tensor parallelism, under every layout.

Its hooks make distributed tensors of what goes into a router, and plain ones again (or not) of what comes out. The
distributed tensor here is a Tensor subclass with the mechanism of HyperParallel's: operations run on its local part
through ``__fallback__``. All are replicated, as those of a router are.
"""

from __future__ import annotations

import driver
import mindspore as ms
from mindspore._c_expression import NoFallbackGuard


class Replicated(ms.Tensor):
    """Its local part is the whole."""

    device_mesh = "mesh"

    def __new__(cls, local: ms.Tensor) -> Replicated:
        made = ms.Tensor._make_subclass(cls, local)
        made._local = local
        return made

    def __init__(self, local: ms.Tensor) -> None:
        pass

    @staticmethod
    def from_local(local: ms.Tensor, mesh: object = None, placements: object = None) -> Replicated:
        return Replicated(local)

    @property
    def placements(self) -> tuple:
        return placements()

    def to_local(self) -> ms.Tensor:
        return self._local

    def redistribute(self, **_: object) -> Replicated:
        return self

    def __fallback__(self, func: object, args: tuple = (), kwargs: dict | None = None) -> object:
        with NoFallbackGuard():
            out = func(*mapped(args, local), **mapped(kwargs or {}, local))
        return mapped(out, lambda value: Replicated(value) if type(value) is ms.Tensor else value)


def placements() -> tuple:
    from hyper_parallel.core.dtensor.placement_types import Replicate

    return (Replicate(),)


def local(value: object) -> object:
    return value.to_local() if isinstance(value, Replicated) else value


def mapped(tree: object, fn: object) -> object:
    if isinstance(tree, (tuple, list)):
        return type(tree)(mapped(item, fn) for item in tree)
    if isinstance(tree, dict):
        return {key: mapped(item, fn) for key, item in tree.items()}
    return fn(tree)


def plain_tensors_answer_too() -> None:
    """The CPU's stand-ins of top-k and counting return plain tensors, which MindFormers' hooks ask the same."""
    ms.Tensor.placements = property(lambda self: placements())
    ms.Tensor.redistribute = lambda self, **_: self
    ms.Tensor.to_local = lambda self: self


def step(plan: str | None, use_local_output: bool) -> dict:
    """Loss and gradients of one forward and backward."""
    from mindformers.pynative.base_models.gpt import parallelize
    from mindformers.pynative.trainer.trainer import Trainer

    from hp_memory.mindformers.callback import HPMemoryCallback

    cfg = driver.config("deepseek_v3")
    cfg["model"]["moe_aux_loss_coeff"] = 0.0  # its tracker is written by parts, which needs a rule of its own
    trainer = Trainer(config=cfg, train_dataset=driver.dataset())
    model, replicated = trainer.model[0], placements() * 3
    routers = [layer.mlp.router for layer in model.model.decoder.layers if hasattr(layer.mlp, "router")]
    for router in routers:
        parallelize._distribute_router(router, None, replicated, replicated, use_local_output)
    if plan is not None:
        HPMemoryCallback(plan).install(model.model.decoder, None, trainer.config)
    model.set_train(True)
    batch = next(iter(driver.dataset().create_dict_iterator()))
    loss = model(input_ids=batch["input_ids"][:1], labels=batch["labels"][:1])[0]
    loss.backward()
    grads = {p.name: driver.digest(p.grad) for p in model.trainable_params() if p.grad is not None}
    return {"loss": float(loss.asnumpy().ravel()[0]), "grads": grads, "routers": len(routers)}


def main() -> dict:
    """Every layout, with routers that return plain tensors (MindFormers' choice) and distributed ones."""
    from mindformers.pynative.base_models.gpt import parallelize

    plain_tensors_answer_too()
    parallelize.DTensor = Replicated
    return {
        str(use_local): {plan or "plain": step(plan, use_local) for plan in (None, *driver.NAMED)}
        for use_local in (True, False)
    }
