"""One rank of a calibration: ``python -m hp_memory.calibrate.worker --run-dir DIR``, started by the launcher.

Reads ``config.yaml`` in the run directory, and writes ``reports/rank_<r>.json`` there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor

from hp_memory.calibrate.regions import Call, Measured, catch_calls, measure
from hp_memory.layout import LayoutSettings, build_plan
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.reference import build, next_token_loss, region_map
from hp_memory.models.settings import one_of_each
from hp_memory.runs.progress import Progress
from hp_memory.runs.rank_report import write_rank_report
from hp_memory.runs.region_times import BETWEEN, HEAD
from hp_memory.train.process import Groups, device, run_worker, start
from hp_memory.train.run_files import RunSettings, read_config, read_settings

Rows = dict[str, dict[str, Measured]]


def calibrate(run_dir: Path) -> None:
    """Times every region of a layer of each kind, and what stands after the layers."""
    settings, repeats = read_settings(run_dir), read_config(run_dir).repeats
    groups = start(settings.parallel)
    progress = Progress(run_dir, groups.world.index)

    def timed(what: str, call: Call) -> Measured:
        progress.write(phase=f"timing {what}", step=0)
        return measure(call, repeats, _finish())

    found = _layers(settings, groups, timed) | {HEAD: {BETWEEN: timed(HEAD, _head(settings))}}
    rows = {kind: {region: asdict(row) for region, row in regions.items()} for kind, regions in found.items()}
    write_rank_report(run_dir, groups.world.index, times=rows, device=device())


def _finish() -> Callable[[], None]:
    """Waits for the device; on a CPU every call has run when it returns."""
    return ms.runtime.synchronize if device() != "CPU" else lambda: None


def _layers(settings: RunSettings, groups: Groups, timed: Callable[[str, Call], Measured]) -> Rows:
    small = one_of_each(settings.model)
    model = build(small, settings.parallel, group=groups.experts, seed=settings.train.seed)
    blocks = region_map(model)
    calls = catch_calls(model, build_plan(LayoutSettings(name="none", default="save"), fingerprint(small)), blocks)
    model(_tokens(settings))
    found: Rows = {}
    for block, sites in zip(model.layers, blocks, strict=True):
        own = {
            name.partition("/")[2]: call for name, call in calls.items() if name.startswith(f"layers.{sites.layer}/")
        }
        rows = {region: timed(f"{sites.kind} {region}", call) for region, call in own.items()}
        entry = next(iter(own.values()))  # the first region gets what the block gets
        whole = timed(f"{sites.kind} layer", Call(block, entry.args, entry.kwargs, block.trainable_params()))
        found[sites.kind] = rows | {BETWEEN: _rest(whole, list(rows.values()))}
    return found


def _rest(whole: Measured, parts: list[Measured]) -> Measured:
    """What a layer takes beside its regions."""
    forward = whole.forward - sum(part.forward for part in parts)
    backward = whole.backward - sum(part.backward for part in parts)
    return Measured(max(forward, 0.0), max(backward, 0.0), whole.spread)


def _head(settings: RunSettings) -> Call:
    head = build(settings.model, replace(settings.parallel, expert=1), layers=range(0), embedding=False)
    tokens = _tokens(settings)
    rows = Tensor(np.random.default_rng(0).normal(size=(tokens.size, settings.model.hidden_size)), ms.float32)
    return Call(lambda x: next_token_loss(head(x), tokens), (rows,), {}, head.trainable_params())


def _tokens(settings: RunSettings) -> Tensor:
    shape = (settings.train.micro_batch_size, settings.model.seq_length)
    return Tensor(np.random.default_rng(0).integers(0, settings.model.vocab_size, shape), ms.int32)


if __name__ == "__main__":
    run_worker(calibrate)
