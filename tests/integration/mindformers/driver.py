"""Trains a tiny MindFormers model once per layout in one process and prints what happened as JSON.

Run as ``python driver.py MODEL [LAYOUT ...]``; ``-`` is the plain Trainer without a callback.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time

import mindspore as ms
import numpy as np

STEPS, SEQ, VOCAB = 2, 16, 96

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
    section = model_section(settings, "float32") | sections.pop("model", {})
    return {
        "checkpoint": {"enable_save": False},
        "training": {"steps": STEPS, "local_batch_size": 1, "global_batch_size": 2, "seed": 7},
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

    trainer = Trainer(config=cfg, train_dataset=dataset(), callbacks=callbacks)
    seen: dict = {"losses": [], "grads": [], "seconds": []}
    update, step = trainer._optimizer_update, trainer.training_step

    def record_then_update() -> object:
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


def prepare() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE, runtime_num_threads=1)
    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    from hp_memory.mindformers import environment

    environment.prepare()


def main(name: str, layouts: list[str]) -> dict:
    prepare()
    from hp_memory.mindformers.callback import HPMemoryCallback

    results = {}
    for layout in layouts:
        callbacks = [] if layout == "-" else [HPMemoryCallback(json.loads(layout) if layout[0] == "{" else layout)]
        _, results[layout] = train(config(name), callbacks)
        if callbacks:
            results[layout]["report"] = callbacks[0].to_dict()
    return results


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1], sys.argv[2:])))
