"""MindFormers' checkpoints as files: which one to continue from. Neither MindSpore nor MindFormers here."""

from __future__ import annotations

import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open

from hp_memory.errors import ConfigError
from hp_memory.runs.checkpoint import Say
from hp_memory.runs.variables import RESUME

FOLDER = "checkpoints"
TRACKER = "latest_checkpointed_iteration.txt"
_PREFIX = "iteration_"


def newest(root: Path, say: Say = print) -> Path | None:
    """The newest complete checkpoint in ``root`` whose files can be read to their ends, or None.

    MindFormers writes its tracker file when every rank has saved: a folder with a higher number is half written. Its
    format has no checksum: a changed byte isn't seen.

    Args:
        say: gets a line for each damaged one that is passed over.
    """
    last = _last_complete_step(root)
    folders = {int(path.name.removeprefix(_PREFIX)): path for path in root.glob(f"{_PREFIX}[0-9]*") if path.is_dir()}
    for step in sorted((step for step in folders if step <= last), reverse=True):
        why = _damage(folders[step])
        if why is None:
            return folders[step]
        say(f"passed over: {folders[step]}: {why}")
    return None


def refuse_damaged(wanted: str, path: str) -> None:
    """Raises ConfigError unless there is something to load, as far as that can be told without MindFormers."""
    folder = Path(wanted)
    if not folder.is_dir():
        raise ConfigError(path, wanted, "there is no such folder")
    if folder.name.startswith(_PREFIX) and (why := _damage(folder)):
        raise ConfigError(path, wanted, f"is damaged: {why}")
    holds = any(folder.glob(f"{_PREFIX}*")) or any((folder / FOLDER).glob(f"{_PREFIX}*"))
    if holds and not (newest(folder / FOLDER) or newest(folder)):
        raise ConfigError(path, wanted, "there is no complete checkpoint whose files are whole")


def to_load(resume_from: str | None) -> str:
    """What MindFormers is to load: what a restart asks for, else ``train.resume_from``; empty for a new training.

    Args:
        resume_from: a run directory, a folder of checkpoints, a checkpoint, or weights in Hugging Face's format.
    """
    wanted = os.environ.get(RESUME) or resume_from or ""
    found = (newest(Path(wanted) / FOLDER) or newest(Path(wanted))) if wanted else None
    return str(found or wanted)


def _last_complete_step(root: Path) -> float:
    try:
        return int((root / TRACKER).read_text())
    except OSError:
        return -1
    except ValueError:
        # It was being written when the job died. That is the last thing done to a checkpoint: the newest is complete.
        return float("inf")


def _damage(folder: Path) -> str | None:
    """What is wrong with it, or None: a machine that lost power may have lost what it had written."""
    files = list(folder.glob("*.safetensors"))
    try:
        json.loads((folder / "common.json").read_text())
        for file in files:
            with safe_open(str(file), "np"):
                pass
    except (OSError, ValueError, SafetensorError) as error:
        return f"not all of its files can be read: {error}"
    return None if files else "it has no weights"
