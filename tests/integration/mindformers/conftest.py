"""Runs this folder's scripts in processes of their own: they change MindFormers and MindSpore process-wide."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    if importlib.util.find_spec("mindformers") is None:
        for item in items:
            if HERE in Path(item.fspath).parents:
                item.add_marker(pytest.mark.skip(reason="mindformers isn't installed (uv sync)"))


def run(script: str, *args: str, timeout: int = 600, **env: str) -> dict:
    """The JSON that ``script`` prints after ``RESULT``; its whole output where it fails."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[2]}"} | env,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


@pytest.fixture(scope="session")
def script():
    """``script("name.py", *args)`` runs one and returns what it found."""
    return run
