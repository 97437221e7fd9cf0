"""Checkpoints, plain YAML, refusals and the place of installation, with the real Trainer; prints JSON."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import driver
import routers
import yaml

MODEL = "qwen3_moe"
ROOT = Path(tempfile.mkdtemp())


def error_of(call: object, *args: object, **kwargs: object) -> str:
    """The messages of what ``call`` raises, outermost first; empty if nothing."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        messages = []
        while error is not None:
            messages.append(f"{type(error).__name__}: {error}")
            error = error.__cause__
        return "\n".join(messages)
    return ""


def checkpoint_files(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*.safetensors"))
    }


def saving(name: str, steps: int, load: str = "") -> dict:
    cfg = driver.config(MODEL)
    cfg["training"]["steps"] = steps
    cfg["checkpoint"] = {
        "save_path": str(ROOT / name),
        "save_interleaved_steps": 1,
        "load_path": load,
        "prefix": "tiny",
    }
    return cfg


def checkpoints() -> dict:
    """Two steps plain and under a plan; then the second step alone from the first's checkpoint, under another plan."""
    from hp_memory.mindformers.callback import HPMemoryCallback

    _, plain = driver.train(saving("plain", 2))
    _, planned = driver.train(saving("planned", 2), [HPMemoryCallback("op_exclude")])
    first = str(ROOT / "planned" / "iteration_00000001")
    _, resumed = driver.train(saving("resumed", 2, first), [HPMemoryCallback("full")])
    return {
        "plain": checkpoint_files(ROOT / "plain"),
        "planned": checkpoint_files(ROOT / "planned"),
        "plain_losses": plain["losses"],
        "planned_losses": planned["losses"],
        "resumed_losses": resumed["losses"],
        "params_equal": plain["params"] == planned["params"] == resumed["params"],
    }


def restarts() -> dict:
    """``engine=mindformers`` undisturbed, and going on from what a job leaves that dies while it saves step 4."""
    from mindformers.pynative.transformers.moe.moe_utils import get_moe_layer_wise_logging_tracker

    from hp_memory.config import app as hydra_app
    from hp_memory.experiment import experiment
    from hp_memory.launch.launcher import restart
    from hp_memory.mindformers import trainer
    from hp_memory.runs import mindformers_checkpoints as checkpoints
    from hp_memory.runs import variables

    (ROOT / "text").write_text("In the beginning God created the heaven and the earth. " * 200)
    words = ["recipe=tiny_qwen3_moe", "train.steps=4", "train.save_every=2", f"data.text={ROOT / 'text'}"]
    cfg = hydra_app.to_object(hydra_app.compose("train", words))
    plan = experiment.of("train", cfg).plan
    get_moe_layer_wise_logging_tracker().clear()
    straight = trainer.run(cfg, plan, ROOT / "straight")
    saved = ROOT / "broken" / checkpoints.FOLDER
    shutil.copytree(ROOT / "straight" / checkpoints.FOLDER, saved)
    (saved / checkpoints.TRACKER).write_text("2")
    (saved / "iteration_00000004" / "common.json").unlink()
    os.environ[variables.RESUME] = str(restart.last_complete(ROOT / "broken"))
    broken = trainer.run(cfg, plan, ROOT / "broken")
    del os.environ[variables.RESUME]
    return {"straight": straight["losses"], "broken": broken["losses"], "steps": broken["steps"]}


def plain_yaml() -> dict:
    """A MindFormers YAML file whose only word about us is the callbacks stanza."""
    report = ROOT / "report.json"
    layout = {"name": "mine", "default": "recompute", "layers": [{"layers": "1", "save": ["gmm"]}]}
    stanza = {"type": "HPMemoryCallback", "plan": layout, "report": str(report)}
    file = ROOT / "train.yaml"
    file.write_text(yaml.safe_dump(driver.config(MODEL, callbacks=[stanza])))
    _, seen = driver.train(str(file))
    return {"runs": json.loads(report.read_text())["runs"], "losses": seen["losses"]}


def evaluation() -> dict:
    """The same run with evaluation passes between the steps; MindFormers counts their tokens in both."""
    import mindspore as ms
    from mindformers.pynative.callback import TrainerCallback
    from mindspore.graph.api import _no_grad

    from hp_memory.mindformers.callback import HPMemoryCallback

    losses: list[list[str]] = [[], []]

    class Evaluate(TrainerCallback):
        def __init__(self, into: list[str]) -> None:
            self.into = into

        def on_step_end(self, args: object, state: object, model: object = None, **_: object) -> None:
            tokens, labels = (ms.Tensor(column[None]) for column in driver.Counting()[3])
            with _no_grad():
                out = model[0](input_ids=tokens, labels=labels)
            self.into.append(float((out if isinstance(out, ms.Tensor) else out[0]).asnumpy().ravel()[0]).hex())

    cfg = driver.config(MODEL)
    cfg["training"]["steps"] = 2
    _, plain = driver.train(cfg, [Evaluate(losses[0])])
    _, planned = driver.train(cfg, [HPMemoryCallback("chain_exclude"), Evaluate(losses[1])])
    same = {what: plain[what] == planned[what] for what in ("losses", "grads", "params", "tokens")}
    return same | {"evaluated": losses[0] == losses[1] and len(losses[0]) == 2}


def refusals() -> dict:
    from hp_memory.mindformers.callback import HPMemoryCallback

    def with_config(plan: object = "full", **sections: object) -> str:
        return error_of(driver.train, driver.config(MODEL, **sections), [HPMemoryCallback(plan)])

    full = {"mode": "full", "full_recompute_layer": ["0"]}
    return {
        "own_recompute": with_config(recompute=full),
        "own_swap": with_config(swap={"enable": True}),
        "misspelt_region": with_config({"name": "x", "default": "recompute", "save": ["gmm.upp"]}),
        "backend": error_of(HPMemoryCallback, "full", backend="hyper_parallel"),
        "bypassed": bypassed(),
        "renamed": renamed(),
    }


def bypassed() -> str:
    """A region that something put back behind our back is found on the first step."""
    from mindformers.pynative.callback import TrainerCallback

    from hp_memory.mindformers.callback import HPMemoryCallback

    class Meddler(TrainerCallback):
        def on_train_begin(self, args: object, state: object, model: object = None, **_: object) -> None:
            experts = model[0].model.decoder.layers[1].mlp.experts
            object.__setattr__(experts, "permute", type(experts).permute.__get__(experts))

    return error_of(driver.train, driver.config(MODEL), [HPMemoryCallback("full"), Meddler()])


def renamed() -> str:
    """Another MindFormers: the map names the attribute that it misses."""
    from mindformers.pynative.transformers.moe.experts import GroupedMLP

    from hp_memory.mindformers.callback import HPMemoryCallback

    unpermute = GroupedMLP.unpermute
    GroupedMLP.un_permute = unpermute
    del GroupedMLP.unpermute
    try:
        return error_of(driver.train, driver.config(MODEL), [HPMemoryCallback("full")])
    finally:
        GroupedMLP.unpermute = unpermute


def under_parallelism() -> dict:
    """MindFormers' own parallelisation with the mesh and FSDP faked: what is wrapped when FSDP begins."""
    from mindformers.pynative.base_models.gpt import parallelize
    from mindformers.pynative.trainer import trainer as trainer_module

    from hp_memory.install import receipt_of

    seen: dict = {"original": parallelize.apply_ac.__qualname__}
    dims = SimpleNamespace(
        **dict.fromkeys(("pp_enabled", "tp_enabled", "ep_enabled", "cp_enabled", "dp_cp_enabled"), False),
        get_optional_mesh=lambda name: None,
    )

    def fsdp(model: object, *_: object) -> None:
        receipt = receipt_of(model.model.decoder)
        seen["wrapped_before_fsdp"] = 0 if receipt is None else len(receipt.wrapped)

    stanza = {"type": "HPMemoryCallback", "plan": "op_exclude"}
    trainer = trainer_module.Trainer(config=driver.config(MODEL, callbacks=[stanza]), train_dataset=driver.dataset())
    seen["stage"] = stage_of(trainer.model[0])
    trainer_module.ParallelDims = SimpleNamespace(from_config=lambda *_: dims)
    parallelize.apply_fsdp = fsdp
    mode = trainer.config.recompute.mode
    trainer._apply_parallelism(trainer.model[0], trainer.config.parallelism)
    seen["mode_kept"] = trainer.config.recompute.mode == mode == "None"
    seen["apply_ac_back"] = parallelize.apply_ac.__qualname__ == seen["original"]
    begin = trainer.callback_handler.on_train_begin
    begin(trainer.config, trainer._init_train_state())
    seen["receipts"] = len(trainer.callback_handler.callbacks[-1].receipts[0].wrapped)
    trainer.callback_handler.callbacks[-1].request = "full"
    seen["other_plan"] = error_of(begin, trainer.config, trainer._init_train_state())
    trainer.config.recompute.mode = "full"
    seen["both"] = error_of(trainer._apply_parallelism, trainer.model[0], trainer.config.parallelism)
    return seen


def stage_of(model: object) -> list[int]:
    """A pipeline stage with the second layer only takes that layer's part of the plan, by its global id."""
    import mindspore as ms

    from hp_memory.mindformers.callback import HPMemoryCallback

    with ms.DeviceCtx("meta"):
        part = type(model)(model.config, layer_start=1, layer_end=1, stage_idx=1)
    config = SimpleNamespace(
        model=SimpleNamespace(model_type=MODEL), parallelism=SimpleNamespace(expert_parallel=1), recompute=None
    )
    receipt = HPMemoryCallback("op_exclude").install(part.model.decoder, None, config)
    return sorted({wrapped.layer for wrapped in receipt.wrapped})


def distributed_routers() -> dict:
    return routers.main()


# The last one changes Tensor.
PARTS = (checkpoints, restarts, plain_yaml, evaluation, refusals, under_parallelism, distributed_routers)

if __name__ == "__main__":
    driver.prepare()
    results = {part.__name__: part() for part in PARTS}
    print("RESULT " + json.dumps(results))
