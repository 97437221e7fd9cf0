"""From a config to a running job: its plan, its run directory, and the launch of its workers."""

from __future__ import annotations

import json
import os
from pathlib import Path

from omegaconf import OmegaConf

from hp_memory.config import HPConfig, validate
from hp_memory.errors import ConfigError
from hp_memory.launch.job import launch
from hp_memory.layout import ActivationPlan, LayoutSettings, ModelFingerprint, build_plan
from hp_memory.paths import make_run_dir
from hp_memory.report.environment import environment
from hp_memory.train.data import check_vocabulary


def checked_plan(cfg: HPConfig) -> ActivationPlan:
    """Checks the whole config and returns the activation plan it means.

    Raises:
        ConfigError: for whatever can't work, before anything is written or started.
    """
    validate(cfg)
    if cfg.engine == "reference":
        check_vocabulary(cfg.data, cfg.model.vocab_size)
    return build_plan(cfg.layout, fingerprint(cfg))


def plan_for(cfg: HPConfig, layout: LayoutSettings, path: str) -> ActivationPlan:
    """The plan of the config's model under another layout."""
    return build_plan(layout, fingerprint(cfg), path)


def fingerprint(cfg: HPConfig) -> ModelFingerprint:
    """The fingerprint of the config's model, in the engine it runs in."""
    if cfg.engine == "mindformers":
        from hp_memory.models.mindformers_settings import fingerprint as mindformers_fingerprint

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


def launch_workers(cfg: HPConfig, module: str, run_dir: Path) -> int:
    """Starts ``python -m module --run-dir DIR`` on every rank and watches it to its end; returns the exit code."""

    def task_for(world_size: int) -> tuple[str, ...]:
        if world_size != cfg.parallel.world_size:
            why = f"starts {world_size} workers; data x tensor x context x pipeline need {cfg.parallel.world_size}"
            raise ConfigError("launch.workers_per_node", cfg.launch.workers_per_node, why)
        return ("python", "-m", module, "--run-dir", str(run_dir))

    sizes = {name: getattr(cfg.parallel, name) for name in ("data", "tensor", "context", "pipeline")}
    return launch(cfg.launch, task_for, run_dir, os.environ, sizes)
