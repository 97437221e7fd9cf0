"""One rank of an msrun job: trains every case of ``cases.json`` with MindFormers' Trainer, one after the other.

In a case ``{folder}`` stands for the job's folder. Writes ``rank_<n>.json``: for each case what the Trainer saw, or the
error that it ended with.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import driver
import numpy as np

from hp_memory.mindformers.trainer import data_rank
from hp_memory.models.settings import ParallelSettings
from hp_memory.runs import ranks

ROWS = 4  # of a step, over all ranks, where a case doesn't say how many


class Part:
    """The rows of one data parallel rank, as MindFormers shards them: every n-th."""

    def __init__(self, shard: int, of: int) -> None:
        self.rows, self.shard, self.of = driver.Counting(), shard, of

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.rows[index * self.of + self.shard]

    def __len__(self) -> int:
        return len(self.rows) // self.of


def dataset(shard: int, of: int, step: int) -> object:
    import mindspore.dataset as ds

    rows = ds.GeneratorDataset(Part(shard, of), ["input_ids", "labels"], shuffle=False)
    return rows.batch(step // of, drop_remainder=True)


def parallelism(case: dict) -> dict:
    wanted = {"data_parallel_shard": -1} | case.get("parallelism", {})
    return {} if case.get("alone") else {"parallelism": wanted}


def sizes(case: dict) -> ParallelSettings:
    wanted = {} if case.get("alone") else case.get("parallelism", {})
    rest = {name: wanted.get(f"{name}_parallel", 1) for name in ("tensor", "context", "pipeline")}
    data = 1 if case.get("alone") else ranks.world_size() // int(np.prod(list(rest.values())))
    return ParallelSettings(data=data, **rest)


@contextlib.contextmanager
def trainer_of_this_case(case: dict) -> Iterator[None]:
    """Told of one process, a Trainer trains by itself; several in one process must not end the communication."""
    from mindformers.pynative.trainer import trainer as module

    plain = module.get_world_size, module.destroy_process_group
    module.destroy_process_group = lambda: None
    if case.get("alone"):
        module.get_world_size = lambda: 1
    try:
        yield
    finally:
        module.get_world_size, module.destroy_process_group = plain


@contextlib.contextmanager
def counted_pairs() -> Iterator[list[str]]:
    """The backwards that ran beside a forward, by the name of their thread, which is never the main one."""
    from hp_memory.mindformers.standin.overlap import CommComputeOverlap

    plain, pairs = CommComputeOverlap.run, []

    def run(self: CommComputeOverlap, fwd_fn: Callable[[], None], bwd_fn: Callable[[], None]) -> None:
        def backward() -> None:
            assert threading.current_thread() is not threading.main_thread()
            pairs.append(threading.current_thread().name)
            bwd_fn()

        plain(self, fwd_fn, backward)

    CommComputeOverlap.run = run
    try:
        yield pairs
    finally:
        CommComputeOverlap.run = plain


def train(case: dict, folder: Path) -> dict:
    from hp_memory.mindformers.callback import HPMemoryCallback

    callback = HPMemoryCallback(case["plan"]) if case.get("plan") else None
    parallel = sizes(case)
    step = case.get("rows", ROWS)
    rows = dataset(data_rank(parallel, 0 if case.get("alone") else ranks.rank()), parallel.data, step)
    sections = parallelism(case) | {key: case[key] for key in ("recompute", "checkpoint") if key in case}
    cfg = driver.config(case["model"], **sections)
    cfg["training"] |= {"steps": case.get("steps", 2), "global_batch_size": step}
    with trainer_of_this_case(case), counted_pairs() as pairs:
        trainer, seen = driver.train(cfg, [callback] if callback else None, rows, case.get("same_start", False))
    seen["pairs"] = len(pairs)
    seen["states"] = {p.name: driver.digest(p) for p in trainer.optimizer.get_parameters()}
    if case.get("whole"):
        save_whole(trainer, folder, case["name"])
    if callback:
        seen["report"] = callback.to_dict()
    return seen


def save_whole(trainer: object, folder: Path, name: str) -> None:
    """The whole parameters after the last step, per stage; every rank has its part of the gathering to do."""
    parameters = [p for part in trainer.model for p in part.get_parameters()]
    values = {p.name: getattr(p, "full_tensor", lambda p=p: p)().asnumpy() for p in parameters}
    if trainer.parallel_dims is None or not trainer.parallel_dims.pp_enabled:
        stage = 0
    else:
        stage = trainer.parallel_dims.get_mesh("pp").get_local_rank()
    np.savez(folder / f"{name}_{stage}.npz", **values)


def main(folder: Path) -> None:
    os.environ.setdefault("LOCAL_DEFAULT_PATH", str(folder / f"mindformers_{ranks.rank()}"))
    driver.prepare()
    found = {}
    cases = (folder / "cases.json").read_text().replace("{folder}", str(folder))
    for case in json.loads(cases):
        try:
            found[case["name"]] = train(case, folder)
        except Exception as error:
            # A failed rank leaves the others in a collective: nothing can follow in this job.
            found[case["name"]] = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            break
    (folder / f"rank_{ranks.rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
