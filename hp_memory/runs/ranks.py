"""This process among those of its job, as msrun announces them; known before any communication is initialised."""

from __future__ import annotations

import os


def world_size() -> int:
    """Processes of this job; 1 where none was announced."""
    return int(os.environ.get("MS_WORKER_NUM", "1"))


def rank() -> int:
    """This process among them; 0 where none was announced."""
    return int(os.environ.get("RANK_ID", "0"))
