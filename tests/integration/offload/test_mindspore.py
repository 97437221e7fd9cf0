"""Against the real MindSpore on a CPU: its settings, and the graph of a compiled training step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hp_memory.offload import OffloadSettings
from hp_memory.offload.apply import capability, compile_config_module
from hp_memory.offload.places import compile_config_of


def test_mindspore_has_every_setting(mindspore):
    assert all(hasattr(compile_config_module(), name) for name in compile_config_of(OffloadSettings()))


def test_without_a_device_it_is_said_that_nothing_is_moved(mindspore):
    can, why = capability()
    assert can or "ignores it" in why


def test_a_misspelt_option_is_refused_by_jit(mindspore):
    with pytest.raises(ValueError, match="auto_offload"):
        mindspore.jit(lambda x: x, auto_offload="activaction")(mindspore.Tensor([1.0]))


def test_the_graph_of_a_users_training_step_is_dumped_and_read(tmp_path):
    script = Path(__file__).with_name("dump_step.py")
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.rpartition("RESULT ")[2])
    assert {"MatMul", "Adam"} <= set(found["ops"])
    assert found["weights"] == {"0.weight": [16, 8], "0.bias": [16]}
    assert found["outputs"] == 1
