"""An environment with MindFormers 2.1 and nothing that it needs MindSpore 2.11 for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What the config classes import; MindFormers itself without its dependencies.
PACKAGES = ("mindformers==2.1.0", "pyyaml", "regex")


def run(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """An interpreter with MindFormers 2.1's files and without MindSpore."""
    uv = shutil.which("uv", path=f"{ROOT / '.uv/bin'}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv is missing: run this by `make test-mindformers-2.1`")
    folder = tmp_path_factory.mktemp("mindformers_2_1")
    made = run(uv, "venv", "--python", "3.11", folder)
    installed = run(uv, "pip", "install", "--python", folder / "bin/python", "--no-deps", *PACKAGES)
    if made.returncode or installed.returncode:
        pytest.skip(f"mindformers 2.1.0 can't be installed: {installed.stderr.strip().splitlines()[-1:]}")
    return folder / "bin" / "python"
