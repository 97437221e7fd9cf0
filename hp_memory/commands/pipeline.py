"""``hp-memory pipeline``: a pipeline regression, or with ``show=true`` the timeline of the configured schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hp_memory.config.app import compose, to_object
from hp_memory.config.schema import PipelineConfig
from hp_memory.errors import ConfigError
from hp_memory.experiment import experiment
from hp_memory.experiment.job import launch_workers, prepare_run_dir
from hp_memory.pipeline import show
from hp_memory.pipeline.regression import report
from hp_memory.pipeline.regression.cases import Case, expand
from hp_memory.pipeline.regression.job import Job, read_results, write_job
from hp_memory.report.table import console as make_console
from hp_memory.runs.paths import check_output, run_dir_path

WORKER = "hp_memory.pipeline.regression.worker"


def run(cfg: PipelineConfig) -> int:
    """Returns 0 only if every case passed on every rank."""
    if cfg.show:  # the schedule by itself: no model's layers need to fit
        cfg.pipeline.validate("pipeline")
        picture = None if cfg.picture is None else check_output("picture", cfg.picture, show.PICTURES)
        return _show(cfg, picture)
    plan = experiment.of("pipeline", cfg).plan
    cfg.matrix.validate("matrix")
    cases = expand(cfg.matrix)
    _check(cfg, cases)
    if cfg.launch.dry_run:
        return launch_workers(cfg, WORKER, run_dir_path(cfg.run_dir, cfg.run_root, cfg.name))
    job = Job(cfg.matrix, {n: to_object(compose("layout_only", [f"layout={n}"])).layout for n in cfg.matrix.layout})
    run_dir = prepare_run_dir(cfg, plan)
    write_job(run_dir, job)
    make_console().print(f"{len(cases)} cases, run directory {run_dir}", markup=False, highlight=False, soft_wrap=True)
    code = launch_workers(cfg, WORKER, run_dir)
    return _report(run_dir, cases) or code if cfg.launch.action == "run" else code


def _check(cfg: PipelineConfig, cases: Sequence[Case]) -> None:
    """Refuse what no worker could run, before one starts.

    Raises:
        ConfigError: stages the workers don't form, a split the model's layers don't allow.
    """
    if not cases:
        raise ConfigError(
            "matrix.microbatches", list(cfg.matrix.microbatches), "no schedule takes these with these stages"
        )
    for stages in cfg.matrix.stages if cfg.parallel.pipeline > 1 else ():
        if stages != cfg.parallel.pipeline:
            raise ConfigError(
                "matrix.stages", stages, f"the workers form parallel.pipeline={cfg.parallel.pipeline} stages"
            )
    for case in cases:
        layers = max(cfg.model.num_layers, case.settings.chunks)
        case.settings.layers_of_chunks(layers, "matrix")


def _report(run_dir: Path, cases: Sequence[Case]) -> int:
    console = make_console()
    results = {result.case: result for result in read_results(run_dir)}
    console.print(report.summary(cases, results).rich())
    failed = report.failures(cases, results)
    for line in failed:
        console.print(line, style="bold red", markup=False)
    path = report.write(run_dir, cases, results)
    console.print(f"{len(cases)} cases, {len(failed)} failures; {path}", markup=False, highlight=False, soft_wrap=True)
    return 1 if failed else 0


def _show(cfg: PipelineConfig, picture: Path | None) -> int:
    console = make_console()
    console.print(show.text(cfg.pipeline), markup=False, highlight=False, soft_wrap=True)
    console.print(show.figures(cfg.pipeline).rich())
    if picture is not None:
        show.picture(cfg.pipeline, picture)
        console.print(f"wrote {cfg.picture}", markup=False, highlight=False, soft_wrap=True)
    return 0
