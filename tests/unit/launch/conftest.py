"""A stand-in for msrun with its habits (own sessions, slow way out, workers left behind) but without MindSpore."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hp_memory.launch.launcher import supervise
from hp_memory.launch.node import processes
from hp_memory.launch.plan import LaunchPlan, plan_launch
from hp_memory.launch.settings import LaunchSettings

HERE = Path(__file__).parent
WORKER = str(HERE.parents[1] / "integration" / "launch" / "worker.py")


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter beside which ``msrun`` is the stand-in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, words in (("python", [sys.executable]), ("msrun", [sys.executable, str(HERE / "fake_msrun.py")])):
        (folder / name).write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
        (folder / name).chmod(0o755)
    return str(folder / "python")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def planned(python: str, run_dir: Path):
    """Plans a launch of the test worker on the stand-in, and makes sure that nothing of it is left afterwards."""
    plans: list[LaunchPlan] = []

    def plan(*args: str, **settings) -> LaunchPlan:
        settings = {"python": python, "heartbeat": 0.2, "lost_after": 2.0} | settings
        plans.append(plan_launch(LaunchSettings(**settings), (WORKER, "--alone", *args), run_dir, {}))
        return plans[-1]

    yield plan
    for made in plans:
        assert processes.end(made.run_id) == []


@pytest.fixture
def outcome_of(planned) -> Callable[..., supervise.Outcome]:
    return lambda *args, **settings: supervise.run(planned(*args, **settings))
