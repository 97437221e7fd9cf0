"""One of two ranks under msrun: MindFormers' real ExpertParallel with an emulated all-to-all. Writes its findings."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import driver
import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.graph.api import _no_grad

from hp_memory.activation import observe
from hp_memory.errors import HPMemoryError
from hp_memory.install import install
from hp_memory.kernels.groups import Group
from hp_memory.models.settings import ParallelSettings
from hp_memory.train.process import start

PARALLEL = ParallelSettings(data=2, expert=2)
MODEL = "deepseek_v3"


def build(group: Group, spread: bool = True, exchange_type: type | None = None) -> object:
    """A model with the same parameters at every call, its experts spread over the group."""
    from hyper_parallel import DeviceMesh
    from mindformers.pynative.config import TrainConfig
    from mindformers.pynative.distributed.expert_parallel import ExpertParallel
    from mindformers.pynative.trainer.trainer import patch_pynative_modules
    from mindformers.pynative.trainer.utils import _build_model

    patch_pynative_modules()
    ms.manual_seed(7)
    np.random.seed(7)
    with ms.DeviceCtx("meta"):
        model = _build_model(TrainConfig.from_dict(driver.config(MODEL)))
    model.to_empty()
    with _no_grad():
        model.init_states()
    model.set_train(True)
    for layer in model.model.decoder.layers if spread else ():
        if hasattr(layer.mlp, "experts"):
            exchange = (exchange_type or ExpertParallel)()
            exchange._apply(layer.mlp.experts, DeviceMesh("cpu", [0, 1], mesh_dim_names=("ep",), rank=group.index))
    return model


def step(model: object, rank: int) -> dict:
    """One forward and backward of this rank's own tokens."""
    rows = [driver.Counting()[rank * 2 + i] for i in range(2)]
    tokens, labels = (Tensor(np.stack(column)) for column in zip(*rows, strict=True))
    out = model(input_ids=tokens, labels=labels)
    loss = out if isinstance(out, Tensor) else out[0]
    loss.backward()
    grads = {p.name: driver.digest(p.grad) for p in model.trainable_params() if p.grad is not None}
    return {"loss": float(loss.asnumpy().ravel()[0]), "grads": grads}


def layouts(group: Group) -> dict:
    """Every named layout against the same job without a plan, and what ran."""
    from hp_memory.mindformers import backend, plan_request, verify
    from hp_memory.mindformers.families import fingerprint, settings_of
    from hp_memory.mindformers.region_map import blocks_of

    plain = step(build(group), group.index)
    alone = step(build(group, spread=False), group.index)
    found: dict = {"plain": plain, "alone_loss": alone["loss"]}
    for name in driver.NAMED:
        model = build(group)
        mark = fingerprint(settings_of(model.model.decoder.config, MODEL), PARALLEL)
        plan = plan_request.resolve(name, mark)
        decoder = model.model.decoder
        receipt = install(decoder, plan, blocks_of(decoder), backend.wrappers("native"))
        with observe() as observation:
            found[name] = step(model, group.index)
        found[name] |= {"runs": verify.check([receipt], observation, 1), "not_applied": receipt.not_applied}
    return found


def refusals(group: Group) -> dict:
    """Dispatchers whose regions don't exist, different plans, and a mesh of more ranks than there are."""
    import hyper_parallel
    from mindformers.pynative.distributed.ep_overlap import OverlapExpertParallel
    from mindformers.pynative.distributed.expert_parallel import DeredundancyExpertParallel

    from hp_memory.mindformers import agreement
    from hp_memory.mindformers.region_map import blocks_of

    return {
        "overlap": error(lambda: blocks_of(build(group, True, lambda: OverlapExpertParallel(None)).model.decoder)),
        "deredundancy": error(lambda: blocks_of(build(group, True, DeredundancyExpertParallel).model.decoder)),
        "one_plan": error(lambda: agreement.same_plan("0123456789abcdef")),
        "two_plans": error(lambda: agreement.same_plan(f"0123456789abcde{group.index}")),
        "mesh": error(lambda: hyper_parallel.init_device_mesh("cpu", (4,))),
    }


def error(call: Callable[[], object]) -> str:
    try:
        call()
    except HPMemoryError as raised:
        return f"{type(raised).__name__}: {raised}"
    return ""


def main(folder: Path) -> None:
    os.environ.setdefault("LOCAL_DEFAULT_PATH", tempfile.mkdtemp())
    group = start(PARALLEL).world
    from hp_memory.mindformers import environment
    from hp_memory.runs import ranks

    environment.prepare(ranks.world_size())
    from hyper_parallel.platform.mindspore.autograd_compat import enable_mindspore_backward_compat

    import hp_memory.mindformers.callback  # noqa: F401  hooks the Trainer

    enable_mindspore_backward_compat()
    found = {"layouts": layouts(group), "refusals": refusals(group)}
    (folder / f"rank_{group.index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
