"""A process of a regression: ``python -m hp_memory.pipeline.regression.worker --run-dir DIR``, started by the launcher.

Alone it runs all pipeline ranks with queues; as one of several workers it is one rank of the pipeline. Workers are laid
out stage by stage: the ranks of a stage, which share its experts, are consecutive.
"""

from __future__ import annotations

import logging
from pathlib import Path

from hp_memory.models.settings import ModelSettings, ParallelSettings
from hp_memory.pipeline.regression.cases import expand
from hp_memory.pipeline.regression.execute import Executor
from hp_memory.pipeline.regression.job import Job, Result, read_job, write_results
from hp_memory.pipeline.regression.model import Bench
from hp_memory.runs.progress import Progress
from hp_memory.train.process import Groups, run_worker, start
from hp_memory.train.run_files import read_config, typed_group

log = logging.getLogger(__name__)


def main(run_dir: Path) -> None:
    """Runs every case of the matrix and writes ``results/rank_<r>.json``."""
    config, job = read_config(run_dir), read_job(run_dir)
    model = typed_group(config, "model", ModelSettings)
    parallel = typed_group(config, "parallel", ParallelSettings)
    groups = start(parallel)
    rank = groups.world.index
    executor = _executor(model, parallel, job, groups)
    progress, results = Progress(run_dir, rank), []
    cases = expand(job.matrix)
    for i, case in enumerate(cases):
        result = executor.run(case)
        results.append(result)
        write_results(run_dir, rank, results)
        progress.write(step=i + 1, phase=f"case {i + 1} of {len(cases)}", case=case.name, passed=result.passed)
        log.info("%s %s (%.1f s) %s", _word(result), case.name, result.seconds, result.failures or "")
        if parallel.pipeline > 1 and "run" in result.failures:
            # The other ranks wait for messages of the step that failed: nothing after it can be trusted.
            raise RuntimeError(f"{case.name}: {result.failures['run']}")


def _executor(model: ModelSettings, parallel: ParallelSettings, job: Job, groups: Groups) -> Executor:
    bench = Bench(model, job.layouts, groups.experts, job.matrix.micro_batch_size, job.matrix.seed)
    if parallel.pipeline == 1:
        return Executor(bench)
    stage, within = divmod(groups.world.index, parallel.data)
    peers = [s * parallel.data + within for s in range(parallel.pipeline)]
    return Executor(bench, stage, peers, groups.world.name or "")


def _word(result: Result) -> str:
    return ("refused, as it must" if result.refused else "passed") if result.passed else "FAILED"


if __name__ == "__main__":
    run_worker(main)
