"""Checkpoints: a folder per step with a file per rank, valid once its ``complete.json`` is there. No MindSpore here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from hp_memory.errors import ConfigError

FOLDER = "checkpoints"
_MARKER = "complete.json"


@dataclass(frozen=True)
class CheckpointInfo:
    """What a complete checkpoint says about itself.

    Attributes:
        step: steps done when it was written.
        digest: the model's fingerprint digest.
        world_size: the number of ranks, and so of files.
        expert_parallel: over how many ranks a set of experts is spread; fixes what each file holds.
    """

    step: int
    digest: str
    world_size: int
    expert_parallel: int


def folder_of(run_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step belongs."""
    return run_dir / FOLDER / f"step_{step:08d}"


def save_rank(folder: Path, rank: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes one rank's arrays; a reader never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    target = _rank_file(folder, rank)
    partial = target.with_suffix(".partial")
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, str(partial))
    _publish(partial, target)


def mark_complete(folder: Path, info: CheckpointInfo) -> None:
    """Makes the checkpoint valid; to be called by one rank when every rank has saved."""
    partial = folder / f"{_MARKER}.partial"
    partial.write_text(json.dumps(asdict(info)))
    _publish(partial, folder / _MARKER)


def load_rank(folder: Path, rank: int) -> dict[str, np.ndarray]:
    """One rank's arrays by name."""
    return load_file(str(_rank_file(folder, rank)))


def read_info(folder: Path) -> CheckpointInfo:
    """What the checkpoint in this folder says about itself."""
    return CheckpointInfo(**json.loads((folder / _MARKER).read_text()))


def newest(where: Path) -> Path | None:
    """The newest complete checkpoint of a run directory, or the folder itself where it is one."""
    if (where / _MARKER).is_file():
        return where
    complete = sorted(marker.parent for marker in where.glob(f"{FOLDER}/step_*/{_MARKER}"))
    return complete[-1] if complete else None


def find_checkpoint(
    resume_from: str,
    digest: str,
    world_size: int,
    expert_parallel: int,
    steps: int | None = None,
    path: str = "train.resume_from",
) -> Path:
    """The checkpoint to continue from, after checking that this model and job can read it.

    Args:
        resume_from: a run directory or one checkpoint.
        digest: of the model that is to read it.
        world_size: ranks of this job; ``expert_parallel`` likewise.
        steps: where training is to end; None if any checkpoint will do.

    Raises:
        ConfigError: if there is none, if it is another model's, if it was written by another number of ranks, or if
            training would end before it.
    """
    folder = newest(Path(resume_from))
    if folder is None:
        raise ConfigError(path, resume_from, "there is no complete checkpoint")
    try:
        info = read_info(folder)
    except (ValueError, TypeError) as error:
        raise ConfigError(path, str(folder), f"{_MARKER} is damaged") from error
    if info.digest != digest:
        raise ConfigError(path, str(folder), f"is a checkpoint of another model ({info.digest}, this one is {digest})")
    if (info.world_size, info.expert_parallel) != (world_size, expert_parallel):
        written = f"{info.world_size} ranks with expert parallel {info.expert_parallel}"
        raise ConfigError(path, str(folder), f"was written by {written}, this job has {world_size}, {expert_parallel}")
    if steps is not None and info.step >= steps:
        raise ConfigError(
            path, str(folder), f"is of step {info.step}, where train.steps={steps} has nothing left to do"
        )
    files = {rank: _rank_file(folder, rank) for rank in range(world_size)}
    missing = [rank for rank, file in files.items() if not (file.is_file() and file.stat().st_size)]
    if missing:
        raise ConfigError(path, str(folder), f"the files of ranks {missing} are missing or empty")
    return folder


def _rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.safetensors"


def _publish(partial: Path, target: Path) -> None:
    """Renames a written file into place after its bytes have reached the disk."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(target)
