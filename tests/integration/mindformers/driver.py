"""Trains tiny MindFormers models with and without a plan in one process, and prints what happened as JSON."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time

import mindspore as ms
import numpy as np

SEQ, VOCAB = 16, 96
STEPS = {"deepseek_v3": 2}  # of the others one

COMMON = {
    "hidden_size": 32,
    "num_heads": 4,
    "expert_ffn_size": 16,
    "num_experts": 4,
    "top_k": 2,
    "vocab_size": VOCAB,
    "seq_length": SEQ,
}
MODELS = {
    "deepseek_v3": {
        "family": "deepseek_v3",
        "num_layers": 2,
        "num_kv_heads": 4,
        "head_dim": 12,
        "ffn_size": 64,
        "first_dense_layers": 1,
        "shared_experts": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "scoring": "sigmoid",
        "n_group": 2,
    },
    "qwen3_moe": {"family": "qwen3_moe", "num_layers": 2, "num_kv_heads": 2, "head_dim": 8, "ffn_size": 64},
    "qwen3": {
        "family": "qwen3",
        "num_layers": 2,
        "num_kv_heads": 2,
        "head_dim": 8,
        "ffn_size": 64,
        "first_dense_layers": 2,
        "num_experts": 0,
        "top_k": 0,
        "expert_ffn_size": 0,
    },
}
MODELS["qwen3_moe_fused"] = MODELS["qwen3_moe"]
SECTION = {"qwen3_moe_fused": {"hidden_act": "fusedswiglu"}}
MODELS["deepseek_v3_mtp"] = MODELS["deepseek_v3"] | {"mtp_layers": 1}


class Counting:
    """Rows that count up: something a model can learn in a few steps."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        row = ((index * 7 + np.arange(SEQ + 1) * 3) % (VOCAB - 2) + 2).astype(np.int32)
        return row[:-1], row[1:]

    def __len__(self) -> int:
        return 32


def config(name: str, **sections: object) -> dict:
    from hp_memory.models.mindformers_settings import model_section
    from hp_memory.models.settings import ModelSettings

    settings = ModelSettings(**(COMMON | MODELS[name]))
    settings.validate()
    section = model_section(settings, "float32") | SECTION.get(name, {})
    return {
        "checkpoint": {"enable_save": False},
        "training": {"steps": STEPS.get(name, 1), "local_batch_size": 1, "global_batch_size": 2, "seed": 7},
        "optimizer": {"type": "AdamW"},
        "lr_scheduler": {"type": "ConstantWarmUpLR", "learning_rate": 0.01, "warmup_ratio": 0.0},
        "train_dataset": {"dataloader": {"type": "MindDataset"}},
        "context": {"device_target": "CPU"},
        "model": section,
    } | sections


def dataset(batch: int = 2) -> object:
    import mindspore.dataset as ds

    rows = ds.GeneratorDataset(Counting(), ["input_ids", "labels"], shuffle=False)
    return rows.batch(batch, drop_remainder=True)


def digest(tensor: object) -> str:
    return hashlib.sha256(tensor.asnumpy().tobytes()).hexdigest()[:16]


def train(cfg: dict, callbacks: list | None = None) -> tuple[object, dict]:
    """Trains as ``cfg`` says: the Trainer, and losses, gradients, parameters and times."""
    from mindformers.pynative.trainer.trainer import Trainer
    from mindformers.pynative.transformers.moe.moe_utils import get_moe_layer_wise_logging_tracker

    get_moe_layer_wise_logging_tracker().clear()  # MindFormers' is global and sized by the first model
    trainer = Trainer(config=cfg, train_dataset=dataset(), callbacks=callbacks)
    seen: dict = {"losses": [], "grads": [], "seconds": [], "tokens": [], "aux": []}
    update, step = trainer._optimizer_update, trainer.training_step

    def record_then_update() -> object:
        for name, p in trainer.model[0].parameters_and_names():
            if name.endswith("tokens_per_expert"):
                seen["tokens"].append(p.asnumpy().tolist())
        seen["aux"].append([float(v).hex() for v in aux_losses()])
        seen["grads"].append({p.name: digest(p.grad) for p in trainer.optimizer.parameters if p.grad is not None})
        return update()

    def timed(*args: object, **kwargs: object) -> object:
        start = time.perf_counter()
        loss, norm = step(*args, **kwargs)
        seen["seconds"].append(time.perf_counter() - start)
        seen["losses"].append(float(loss.asnumpy().ravel()[0]).hex())
        return loss, norm

    trainer._optimizer_update, trainer.training_step = record_then_update, timed
    names = [p.name for p in trainer.model[0].get_parameters()]
    trainer.train()
    seen["params"] = {name: digest(p) for name, p in trainer.model[0].parameters_and_names()}
    seen["names_kept"] = names == [p.name for p in trainer.model[0].get_parameters()]
    ids = {id(p) for p in trainer.model[0].trainable_params()}
    seen["optimizer_kept"] = {id(p) for p in trainer.optimizer.parameters} == ids
    return trainer, seen


def aux_losses() -> list[float]:
    """What MindFormers has logged of each layer's load balancing loss since the last step."""
    from mindformers.pynative.transformers.moe.moe_utils import get_moe_layer_wise_logging_tracker

    tracker = get_moe_layer_wise_logging_tracker()
    return tracker["values"].asnumpy().tolist() if "values" in tracker else []


def prepare() -> None:
    os.environ.setdefault("LOCAL_DEFAULT_PATH", tempfile.mkdtemp())  # MindFormers writes its logs below it
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    from hp_memory.mindformers import environment
    from hp_memory.train.process import use_one_thread

    use_one_thread()
    environment.prepare()


NAMED = ("none", "full", "op_exclude", "region_exclude", "chain_exclude")
ATTENTION = {"name": "attention_only", "default": "save", "recompute": ["attention"]}
BY_LAYER = {
    "name": "by_layer",
    "default": "recompute",
    "layers": [{"layers": "mtp", "save": ["gmm", "shared_experts"]}],
}
CASES: dict[str, tuple] = {
    "deepseek_v3": NAMED,
    "qwen3_moe": ("full", "region_exclude", ATTENTION),
    "qwen3_moe_fused": ("op_exclude",),
    "qwen3": ("full", ATTENTION),
    "deepseek_v3_mtp": ("chain_exclude", BY_LAYER),
}


def main() -> dict:
    """Each model under the plain Trainer and under its plans."""
    prepare()
    from hp_memory.mindformers.callback import HPMemoryCallback

    results: dict = {}
    for name, plans in CASES.items():
        _, plain = train(config(name))
        results[name] = {"plain": plain}
        for plan in plans:
            callback = HPMemoryCallback(plan)
            _, seen = train(config(name), [callback])
            results[name][plan if isinstance(plan, str) else plan["name"]] = seen | {"report": callback.to_dict()}
    return results


if __name__ == "__main__":
    print("RESULT " + json.dumps(main()))
