"""MindFormers' checkpoints as files: which one to continue from. Neither MindSpore nor MindFormers here."""

from __future__ import annotations

import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open

from hp_memory.runs.variables import RESUME

FOLDER = "checkpoints"
TRACKER = "latest_checkpointed_iteration.txt"
_PREFIX = "iteration_"


def newest(root: Path) -> Path | None:
    """The newest complete checkpoint in ``root``, or None.

    MindFormers writes its tracker file when every rank has saved: a folder with a higher number is half written.
    """
    last = _last_complete_step(root)
    folders = {int(path.name.removeprefix(_PREFIX)): path for path in root.glob(f"{_PREFIX}[0-9]*") if path.is_dir()}
    return next(
        (folders[step] for step in sorted(folders, reverse=True) if step <= last and _whole(folders[step])), None
    )


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


def _whole(folder: Path) -> bool:
    """Whether its files can be read to their ends: a machine that lost power may have lost what it had written."""
    files = list(folder.glob("*.safetensors"))
    try:
        json.loads((folder / "common.json").read_text())
        for file in files:
            with safe_open(str(file), "np"):
                pass
    except (OSError, ValueError, SafetensorError):
        return False
    return bool(files)
