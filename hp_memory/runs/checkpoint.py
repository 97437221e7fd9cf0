"""Checkpoints: a folder per step with a file per rank, valid once ``complete.json`` says what each file must be.

No MindSpore here. ``complete.json`` has each file's length and SHA-256, each file its own rank and step, so that a
damaged, swapped or foreign one is recognised before anything is trained on it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from hp_memory.errors import ConfigError, HPMemoryError, NotFinite
from hp_memory.runs.files import FileSum, publish, read_text, sum_of, write_whole

FOLDER = "checkpoints"
_MARKER = "complete.json"
# One machine reads that much before a start. Of larger checkpoints it looks at lengths and headers only, and each rank
# reads its own file when it loads it.
READ_BEFORE_START = 64 * 2**30
Say = Callable[[str], None]


class DamagedCheckpoint(HPMemoryError):
    """A checkpoint's file isn't what its ``complete.json`` says."""


@dataclass(frozen=True)
class CheckpointInfo:
    """What a complete checkpoint says about itself.

    Attributes:
        step: steps done when it was written.
        digest: the model's fingerprint digest.
        world_size: the number of ranks, and so of files.
        expert_parallel: over how many ranks a set of experts is spread; fixes what each file holds.
        sums: each rank's file.
    """

    step: int
    digest: str
    world_size: int
    expert_parallel: int
    sums: tuple[FileSum, ...]


def folder_of(run_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step belongs."""
    return run_dir / FOLDER / f"step_{step:08d}"


def save_rank(folder: Path, rank: int, step: int, arrays: Mapping[str, np.ndarray]) -> FileSum:
    """Writes one rank's arrays; a reader never sees half a file.

    Raises:
        NotFinite: for an array that isn't: nothing could be continued from it.
    """
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise NotFinite(f"{name} isn't finite on rank {rank} after step {step}; no checkpoint is written")
    folder.mkdir(parents=True, exist_ok=True)
    target = _rank_file(folder, rank)
    partial = target.with_suffix(".partial")
    said = {"rank": str(rank), "step": str(step)}
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, str(partial), said)
    publish(partial, target)
    return sum_of(target)


def mark_complete(folder: Path, info: CheckpointInfo) -> None:
    """Makes the checkpoint valid; to be called by one rank when every rank has saved."""
    write_whole(folder / _MARKER, json.dumps(asdict(info)))


def load_rank(folder: Path, rank: int) -> dict[str, np.ndarray]:
    """One rank's arrays by name.

    Raises:
        DamagedCheckpoint: if the file isn't the one that was saved, or is another rank's.
    """
    why = _damage_of(folder, read_info(folder), rank, whole=True)
    if why is not None:
        raise DamagedCheckpoint(f"{folder}: {why}")
    return load_file(str(_rank_file(folder, rank)))


def read_info(folder: Path) -> CheckpointInfo:
    """What the checkpoint in this folder says about itself.

    Raises:
        DamagedCheckpoint: if that can't be read.
    """
    try:
        data = json.loads(read_text(folder / _MARKER))
        return CheckpointInfo(**data | {"sums": tuple(FileSum(**found) for found in data["sums"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = "can't be read, or is of a version without checksums"
        raise DamagedCheckpoint(f"{folder}: {_MARKER} {why}") from error


def damage(folder: Path) -> str | None:
    """What is wrong with the bytes of a complete checkpoint, or None."""
    try:
        info = read_info(folder)
    except DamagedCheckpoint as error:
        return str(error).removeprefix(f"{folder}: ")
    if len(info.sums) != info.world_size:
        return f"{_MARKER} lists {len(info.sums)} files for {info.world_size} ranks"
    whole = sum(found.size for found in info.sums) <= READ_BEFORE_START
    found = (_damage_of(folder, info, rank, whole) for rank in range(info.world_size))
    return next((why for why in found if why), None)


def newest(where: Path, say: Say = print) -> Path | None:
    """The newest checkpoint of a run directory whose bytes are whole, or None.

    Args:
        say: gets a line for each damaged one that is passed over.
    """
    for folder in reversed(complete(where)):
        why = damage(folder)
        if why is None:
            return folder
        say(f"passed over: {folder}: {why}")
    return None


def complete(run_dir: Path) -> list[Path]:
    """The run directory's checkpoints that were finished, oldest first; their bytes aren't looked at."""
    return sorted(marker.parent for marker in run_dir.glob(f"{FOLDER}/step_*/{_MARKER}"))


def keep_last(run_dir: Path, number: int) -> None:
    """Deletes all but the newest complete checkpoints of a run; 0 keeps all."""
    for folder in complete(run_dir)[:-number] if number else []:
        # Without its marker it is no checkpoint any more, whatever happens next.
        (folder / _MARKER).unlink()
        shutil.rmtree(folder)


def find_checkpoint(
    resume_from: str,
    digest: str,
    world_size: int,
    expert_parallel: int,
    steps: int | None = None,
    path: str = "train.resume_from",
    say: Say = print,
) -> Path:
    """The checkpoint to continue from, after checking that it is whole and that this model and job can read it.

    Args:
        resume_from: a run directory, of which a damaged checkpoint is passed over for an older good one, or one
            checkpoint.
        digest: of the model that is to read it.
        world_size: ranks of this job; ``expert_parallel`` likewise.
        steps: where training is to end; None if any checkpoint will do.
        say: gets a line for each one that is passed over.

    Raises:
        ConfigError: if there is none, if it is damaged or another model's, if it was written by another number of
            ranks, or if training would end before it.
    """
    where = Path(resume_from)
    named = (where / _MARKER).exists()
    folder = where if named else newest(where, say)
    if folder is None:
        raise ConfigError(path, resume_from, "there is no complete checkpoint whose files are whole")
    why = damage(folder) if named else None
    if why is not None:
        raise ConfigError(path, str(folder), f"is damaged: {why}")
    refuse_misfit(read_info(folder), folder, digest, (world_size, expert_parallel), path)
    step = read_info(folder).step
    if steps is not None and step >= steps:
        raise ConfigError(path, str(folder), f"is of step {step}, where train.steps={steps} has nothing left to do")
    return folder


def refuse_misfit(
    info: CheckpointInfo, folder: Path, digest: str, sizes: Sequence[int], path: str = "train.resume_from"
) -> None:
    """Raises ConfigError unless the model with this digest, on so many ranks with experts over so many, can read it."""
    if info.digest != digest:
        raise ConfigError(path, str(folder), f"is a checkpoint of another model ({info.digest}, this one is {digest})")
    if (info.world_size, info.expert_parallel) != tuple(sizes):
        written = f"{info.world_size} ranks with expert parallel {info.expert_parallel}"
        raise ConfigError(path, str(folder), f"was written by {written}, this job has {sizes[0]}, {sizes[1]}")


def _damage_of(folder: Path, info: CheckpointInfo, rank: int, whole: bool) -> str | None:
    """What is wrong with one rank's file, or None; ``whole``: read it to its end."""
    file = _rank_file(folder, rank)
    try:
        size = file.stat().st_size
        if size != info.sums[rank].size:
            return f"{file.name} has {size} bytes, {info.sums[rank].size} were written"
        with safe_open(str(file), "np") as opened:
            said = opened.metadata() or {}
        if said.get("rank") != str(rank) or said.get("step") != str(info.step):
            return f"{file.name} is of rank {said.get('rank')} and step {said.get('step')}"
        if whole and sum_of(file) != info.sums[rank]:
            return f"{file.name} isn't what was written: its checksum differs"
    except (OSError, SafetensorError) as error:
        return f"{file.name} can't be read: {getattr(error, 'strerror', None) or error}"
    return None


def _rank_file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.safetensors"
