"""Runs this folder's scripts in processes of their own: a meta run and MindFormers change MindSpore process-wide."""

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


@pytest.fixture(scope="session")
def found(tmp_path_factory) -> dict:
    """What ``on_meta.py`` found; its whole output where it fails."""
    folder = tmp_path_factory.mktemp("estimate")
    done = subprocess.run(
        [sys.executable, str(HERE / "on_meta.py"), str(folder)],
        capture_output=True,
        text=True,
        timeout=280,
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOG_v": "3"},
        cwd=folder,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stdout[-3000:] + done.stderr[-6000:]
    return json.loads(lines[-1].removeprefix("RESULT "))
