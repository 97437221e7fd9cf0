"""Where the shipped configs are, and where a run writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from hp_memory.errors import ConfigError
from hp_memory.runs import owner


def config_dir() -> Path:
    """The folder of Hydra configs."""
    return Path(__file__).parents[1] / "_configs"


def run_dir_path(run_dir: str | None, run_root: str, name: str) -> Path:
    """Where a run that starts now writes: ``run_dir`` where given, else ``run_root/name/<time>``."""
    path = (
        Path(run_dir)
        if run_dir is not None
        else Path(run_root) / name / datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")[:-3]
    )
    return path.resolve()


def make_run_dir(run_dir: str | None, run_root: str, name: str) -> Path:
    """Creates this run's directory, see ``run_dir_path``, and holds it until this process ends.

    It may hold an earlier run of ours: whoever can't go on with that refuses it.

    Raises:
        ConfigError: if it can't be written, or isn't ours alone, see ``owner.claim``.
    """
    if Path(name).name != name:
        raise ConfigError("name", name, "is a name, not a path")
    path = run_dir_path(run_dir, run_root, name)
    key, value = ("run_dir", run_dir) if run_dir is not None else ("run_root", run_root)
    make_folder(key, value, path)
    owner.claim(path, key, value)
    return path


def make_new_run_dir(run_dir: str | None, run_root: str, name: str) -> Path:
    """As ``make_run_dir``, and refuses one that holds a run already."""
    path = make_run_dir(run_dir, run_root, name)
    refuse_used(str(path))
    return path


def refuse_used(run_dir: str | None) -> None:
    """Raises ConfigError for a folder that holds a run already: for commands that compute before they write."""
    if run_dir is not None and (Path(run_dir) / "config.yaml").exists():
        raise ConfigError("run_dir", run_dir, "holds a run already; choose another or leave it out")


def make_folder(key: str, value: str, path: Path | None = None) -> None:
    """Creates the folder that a setting names, or ``path`` below it.

    Raises:
        ConfigError: if it is no path, can't be made or can't be written.
    """
    if not value:
        raise ConfigError(key, value, "is empty: name a folder")
    path = path or Path(value)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise ConfigError(key, value, f"can't make this folder: {getattr(error, 'strerror', error)}") from error
    if not os.access(path, os.W_OK):
        raise ConfigError(key, value, "this folder is not writable")


def check_output(key: str, value: str, suffixes: Sequence[str] = ()) -> Path:
    """The file that a setting names and a command will write.

    Args:
        key: the setting, for the error.
        value: the path.
        suffixes: the file formats that can be written, e.g. ``(".png", ".svg")``; empty for any.

    Raises:
        ConfigError: if no file can be written there: no folder, no right to, a folder itself, another format.
    """
    path = Path(value)
    if not value or os.path.isdir(path):
        raise ConfigError(key, value, "name a file, not a folder")
    if suffixes and path.suffix.lower() not in suffixes:
        raise ConfigError(key, value, "this suffix is of no format that can be written", suffixes)
    if not os.path.isdir(path.parent):
        raise ConfigError(key, value, f"can't be written: there is no folder {path.parent}")
    there = os.path.exists(path)
    try:
        path.open("ab").close()  # rights alone don't tell: the file system may be read-only, or no ordinary one
    except OSError as error:
        raise ConfigError(key, value, f"can't be written: {error.strerror}") from error
    if not there:
        path.unlink()
    return path
