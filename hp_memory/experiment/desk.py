"""From a config to a running job: its plan, its run directory, and the launch of its workers."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import replace
from lzma import LZMAError
from pathlib import Path

from omegaconf import OmegaConf

from hp_memory.config.schema import HPConfig, validate
from hp_memory.errors import ConfigError
from hp_memory.launch.job import TaskFor, checked, launch
from hp_memory.launch.settings import LaunchSettings
from hp_memory.layout import ActivationPlan, LayoutSettings, ModelFingerprint, build_plan
from hp_memory.mindformers import conflicts, hyper_offload, limits
from hp_memory.mindformers.refusals import refuse_untrainable
from hp_memory.mindformers.train_config import train_config
from hp_memory.models.settings import REFERENCE
from hp_memory.pipeline.settings import check_plan, with_stage_layouts
from hp_memory.runs.environment import environment
from hp_memory.runs.paths import make_run_dir
from hp_memory.train.data import Batches, check_vocabulary, load_corpus

# Bytes of text per token of a sequence: no text, not even a packed one, makes fewer tokens of so many.
_SURELY_ENOUGH = 64


def checked_plan(cfg: HPConfig) -> ActivationPlan:
    """Checks the whole config and returns the activation plan it means.

    Raises:
        ConfigError: for whatever can't work, before anything is written or started.
    """
    validate(cfg)
    if cfg.launch.task:
        why = "this command starts workers of its own; `hp-memory launch` starts other programs"
        raise ConfigError("launch.task", list(cfg.launch.task), why)
    cfg.data.validate("data")
    if cfg.engine == "reference":
        check_vocabulary(cfg.data, cfg.model.vocab_size)
    else:
        refuse_untrainable(cfg)
        refuse_offload(cfg)
        limits.refuse(cfg)
        conflicts.refuse(train_config(cfg), with_plan=True)
    plan = plan_for(cfg, cfg.layout, "layout")
    check_plan(cfg.pipeline, plan, cfg.model.num_layers)
    return plan


# What reads these groups, where a command of the reference engine doesn't.
_READ_ELSEWHERE = {
    "pipeline": "has no effect here: pipelines of the reference model run under `hp-memory pipeline`",
    "offload": "has no effect here: HyperOffload acts on compiled graphs, this training is eager (PyNative)",
}


def refuse_unread_settings(cfg: HPConfig) -> None:
    """Refuses groups that nothing reads when the reference trainer runs a model eagerly and in one piece.

    Raises:
        ConfigError: saying what does read them.
    """
    if cfg.engine != "reference":
        return
    for group, why in _READ_ELSEWHERE.items():
        _refuse_changed(cfg, group, why)
    if cfg.parallel.pipeline != 1:
        raise ConfigError("parallel.pipeline", cfg.parallel.pipeline, _READ_ELSEWHERE["pipeline"], (1,))


def refuse_offload(cfg: HPConfig) -> None:
    """Refuses HyperOffload for MindFormers' PyNative Trainer, where it would have no effect.

    Raises:
        ConfigError: naming the first setting that isn't the default.
    """
    why = "has no effect here: HyperOffload is a pass of the graph compiler, MindFormers' PyNative models have no graph"
    _refuse_changed(cfg, "offload", why)


def _refuse_changed(cfg: HPConfig, group: str, why: str) -> None:
    settings, default = getattr(cfg, group), type(getattr(cfg, group))()
    for name in (field.name for field in dataclasses.fields(settings)):
        if getattr(settings, name) != getattr(default, name):
            raise ConfigError(f"{group}.{name}", getattr(settings, name), why)


def plan_for(cfg: HPConfig, layout: LayoutSettings, path: str) -> ActivationPlan:
    """The plan of the config's model under a layout, with the pipeline's exceptions for some stages."""
    layout = with_stage_layouts(layout, cfg.pipeline, cfg.model.num_layers)
    return build_plan(layout, fingerprint(cfg), path)


def fingerprint(cfg: HPConfig) -> ModelFingerprint:
    """The fingerprint of the config's model, in the engine it runs in."""
    if cfg.engine == "reference" and cfg.model.family != REFERENCE:
        raise ConfigError("engine", cfg.engine, f"can't run the family {cfg.model.family!r}", ("mindformers",))
    if cfg.engine == "mindformers":
        from hp_memory.mindformers.families import fingerprint as mindformers_fingerprint

        return mindformers_fingerprint(cfg.model, cfg.parallel)
    from hp_memory.models.fingerprint import fingerprint as reference_fingerprint

    return reference_fingerprint(cfg.model)


def prepare_run_dir(cfg: HPConfig, plan: ActivationPlan) -> Path:
    """Makes the run directory and leaves in it what the run is: config, plan as data and in words, environment."""
    run_dir = make_run_dir(cfg.run_dir, cfg.run_root, cfg.name)
    OmegaConf.save(OmegaConf.structured(cfg), run_dir / "config.yaml")
    (run_dir / "plan.json").write_text(json.dumps(plan.to_dict(), indent=1))
    (run_dir / "plan.txt").write_text(f"plan {plan.hash()}\n{plan.in_words()}\n")
    (run_dir / "environment.json").write_text(json.dumps(environment(), indent=1))
    return run_dir


def launch_settings(cfg: HPConfig) -> LaunchSettings:
    """The launch, with what MindSpore reads of HyperOffload in every worker's environment: it is read once, early."""
    return replace(cfg.launch, env=hyper_offload.environment(cfg.offload) | cfg.launch.env)


def check_text(cfg: HPConfig) -> None:
    """Refuses a text without one whole sequence; a text that must hold many isn't read for that.

    Raises:
        ConfigError: naming ``data.text``.
    """
    trained_on = cfg.data.text_path.stat().st_size * (1 - cfg.data.validation_fraction)
    if trained_on < _SURELY_ENOUGH * cfg.model.seq_length:
        try:
            corpus = load_corpus(cfg.data)
        except (OSError, ValueError, EOFError, LZMAError) as error:
            raise ConfigError("data.text", str(cfg.data.text_path), f"can't be read: {error}") from error
        Batches(corpus.train, cfg.model.seq_length, cfg.train, rank=0, world_size=1, seed=cfg.data.seed)


def check_launch(cfg: HPConfig) -> None:
    """Refuses what the launch's settings alone show to be wrong, before anything is printed or written.

    Raises:
        ConfigError: naming the setting.
    """
    checked(launch_settings(cfg), _task_for(cfg, "", Path()), Path(cfg.run_root), os.environ, _sizes(cfg))


def launch_workers(cfg: HPConfig, module: str, run_dir: Path) -> int:
    """Starts ``python -m module --run-dir DIR`` on every rank and watches it to its end; returns the exit code."""
    try:
        return launch(launch_settings(cfg), _task_for(cfg, module, run_dir), run_dir, os.environ, _sizes(cfg))
    except ConfigError:
        # Nothing ran: the corrected command may use the same directory, unless it is another node's.
        if cfg.launch.node_rank <= 0:
            (run_dir / "config.yaml").unlink(missing_ok=True)
        raise


def _task_for(cfg: HPConfig, module: str, run_dir: Path) -> TaskFor:
    def task_for(world_size: int) -> tuple[str, ...]:
        if world_size != cfg.parallel.world_size:
            why = f"starts {world_size} workers; data x tensor x context x pipeline need {cfg.parallel.world_size}"
            raise ConfigError("launch.workers_per_node", cfg.launch.workers_per_node, why)
        return ("python", "-m", module, "--run-dir", str(run_dir))

    return task_for


def _sizes(cfg: HPConfig) -> dict[str, int]:
    return {name: getattr(cfg.parallel, name) for name in ("data", "tensor", "context", "pipeline")}
