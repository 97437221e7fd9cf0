"""The entry of a rank: an error ends the process at once, with its log."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading, time
from hp_memory.train.process import run_worker
def main(run_dir):
    threading.Thread(target=time.sleep, args=(60,)).start()   # as a hanging communicator would
    raise KeyboardInterrupt('what went wrong')
run_worker(main)
"""


def test_an_error_is_logged_and_ends_the_process_at_once(tmp_path):
    command = [sys.executable, "-c", SCRIPT, "--run-dir", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert result.returncode == 1
    assert "what went wrong" in result.stdout
    assert "Traceback" in result.stdout


def test_another_number_of_ranks_than_the_config_needs_is_an_error(mindspore, monkeypatch):
    from hp_memory.models.settings import ParallelSettings
    from hp_memory.train.process import start

    monkeypatch.delenv("MS_ROLE", raising=False)
    with pytest.raises(RuntimeError, match="1 ranks were started, the config needs 2"):
        start(ParallelSettings(data=2))


@pytest.mark.parametrize(
    ("asked", "found", "device"),
    [("Ascend", [], "Ascend"), ("CPU", [0], "CPU"), ("auto", [0, 1], "Ascend"), ("auto", [], "CPU")],
)
def test_the_launch_chooses_the_device_of_a_worker(mindspore, monkeypatch, asked, found, device):
    from hp_memory.kernels import devices
    from hp_memory.models.settings import ParallelSettings
    from hp_memory.runs import variables
    from hp_memory.train import process

    was_set: list[str] = []
    monkeypatch.delenv("MS_ROLE", raising=False)
    monkeypatch.setenv(variables.DEVICE, asked)
    monkeypatch.setattr(process.machine, "devices", lambda: found)
    monkeypatch.setattr(process.ms, "set_device", was_set.append)
    monkeypatch.setattr(process.ms, "get_context", lambda name: was_set[-1])
    process.start(ParallelSettings())
    assert was_set == [device]
    assert devices.kernels().__name__ == f"hp_memory.kernels.{device.lower()}.kernels"
    assert devices.collectives().__name__ == f"hp_memory.kernels.{device.lower()}.collectives"


def test_one_rank_agrees_with_itself(mindspore):
    from hp_memory.kernels.groups import ALONE
    from hp_memory.train.process import require_agreement

    require_agreement("0123456789abcdef", "plan", ALONE)
