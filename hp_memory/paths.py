"""Where the shipped configs are, and where a run writes."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from hp_memory.errors import ConfigError


def config_dir() -> Path:
    """The folder of Hydra configs."""
    return Path(__file__).parent / "_configs"


def run_dir_path(run_dir: str | None, run_root: str, name: str) -> Path:
    """Where a run that starts now writes: ``run_dir`` where given, else ``run_root/name/<time>``."""
    path = Path(run_dir) if run_dir else Path(run_root) / name / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")[:-3]
    return path.resolve()


def make_run_dir(run_dir: str | None, run_root: str, name: str) -> Path:
    """Creates this run's directory, see ``run_dir_path``.

    Raises:
        ConfigError: if it can't be written, or holds another run's config already.
    """
    path = run_dir_path(run_dir, run_root, name)
    key, value = ("run_dir", run_dir) if run_dir else ("run_root", run_root)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(key, value, f"can't make the run directory: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise ConfigError(key, value, "the run directory is not writable")
    if (path / "config.yaml").exists():
        raise ConfigError(key, value, "holds a run already; choose another or leave it out")
    return path
