"""Time per step of MindFormers' Trainer with the callback, relative to without it.

Two trainers of the tiny DeepSeek-V3 live in one process and take steps in turn; only the ratio within a pair means
something on a busy machine. ``python benchmarks/mindformers_callback.py [--pairs 12] [LAYOUT ...]``
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import mindspore as ms

from hp_memory.config import app as hydra_app
from hp_memory.layout import build_plan
from hp_memory.mindformers import environment, trainer
from hp_memory.mindformers.families import fingerprint
from hp_memory.train.data import load_corpus
from hp_memory.train.process import use_one_thread

LAYOUTS = ("none", "full", "op_exclude", "region_exclude", "chain_exclude")


class Stepper:
    """A Trainer whose steps are taken one by one, as its own loop takes them."""

    def __init__(self, cfg: Any, corpus: Any, callbacks: list[Any]) -> None:
        from mindformers.pynative.trainer.trainer import Trainer

        config = trainer._config(cfg, Path(tempfile.mkdtemp()))
        config["checkpoint"] = {"enable_save": False}
        self.trainer = Trainer(config=config, train_dataset=trainer._dataset(cfg, corpus), callbacks=callbacks)
        self.trainer.state = self.trainer._init_train_state()
        self.trainer.callback_handler.on_train_begin(self.trainer.config, self.trainer.state)
        self.rows = self.trainer._create_dataset_iterator(self.trainer.train_dataset)
        self.trainer.model[0].set_train(True)

    def step(self) -> float:
        """Seconds of the forwards, backwards and the update of one step."""
        inputs, t = self.trainer.get_batch(self.rows), self.trainer
        t.callback_handler.on_step_begin(t.config, t.state)
        t.monitor.reset()
        began = time.perf_counter()
        loss, norm = t.training_step(inputs, loss=0.0, grad_norm=0.0, step=t.state.global_step)
        loss.asnumpy()
        seconds = time.perf_counter() - began
        t.state.global_step += 1
        t.callback_handler.on_step_end(t.config, t.state, loss=loss, grad_norm=norm, monitor=t.monitor)
        return seconds


def measure(layout: str, pairs: int) -> str:
    """One line: the median ratio with its quartiles, and the median seconds without the callback."""
    from hp_memory.mindformers.callback import HPMemoryCallback

    overrides = ["recipe=tiny_deepseek_v3", f"layout={layout}", f"train.steps={pairs + 2}"]
    cfg = hydra_app.to_object(hydra_app.compose("train", overrides))
    corpus = load_corpus(cfg.data)
    plan = build_plan(cfg.layout, fingerprint(cfg.model, cfg.parallel))
    plain, planned = Stepper(cfg, corpus, []), Stepper(cfg, corpus, [HPMemoryCallback(plan.to_dict())])
    for _ in range(2):  # the first step is observed, and kernels are selected
        plain.step(), planned.step()
    times = [(plain.step(), planned.step()) for _ in range(pairs)]
    low, middle, high = statistics.quantiles([b / a for a, b in times], n=4)
    seconds = statistics.median(a for a, _ in times)
    return f"{layout:16} {middle:.2f} [{low:.2f}-{high:.2f}] of {seconds:.3f} s without the callback"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("layouts", nargs="*", default=LAYOUTS)
    options = parser.parse_args()
    os.environ.setdefault("LOCAL_DEFAULT_PATH", tempfile.mkdtemp())
    ms.set_device("CPU")
    use_one_thread()
    environment.prepare()
    for layout in options.layouts:
        print("RATIO", measure(layout, options.pairs), flush=True)


if __name__ == "__main__":
    main()
