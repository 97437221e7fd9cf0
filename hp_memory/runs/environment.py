"""What a run ran on: versions, commit and machine. Saved with every run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("hp-memory", "mindspore", "mindformers", "hyper-parallel", "numpy", "hydra-core", "omegaconf")


def environment() -> dict[str, Any]:
    """Versions of what matters (None where a package is missing) and the commit of this checkout, if it is one."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": commit(),
    }


def version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit this package runs from, with ``+changes`` if the tree differs from it; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "--short", "HEAD")
        return head + ("+changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *args: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *args], capture_output=True, text=True, check=True, timeout=20
    ).stdout.strip()
