"""Settings on their way from a launch into MindSpore, checked where the real MindSpore reads them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import yaml

from hp_memory.errors import ConfigError
from hp_memory.offload import OffloadSettings
from hp_memory.offload.apply import (
    SETTINGS_VARIABLE,
    refuse_out_of_force,
    settings_for_worker,
    settings_from,
    worker_environment,
    worker_task,
)
from hp_memory.offload.places import PLACES, compile_config_of, environment_of

# Every setting that a strategy reads, at a value of its own.
BOTH = {
    "auto_offload": "all", "prefetch_distance": 3, "release_distance": 4, "stages": [0, 2], "sliding_window": True,
    "d2h_bandwidth_gbps": 11.0, "h2d_bandwidth_gbps": 12.0, "kernel_time_us": 13.0,
    "dynamic_shape_placeholder_bytes": 99,
}  # fmt: skip
BY_DISTANCE = OffloadSettings(**BOTH, select_distance=201, select_num=7, filter_percentage=60)
UNUSUAL = OffloadSettings(
    **BOTH, strategy="peak", max_device_memory=10**9, headroom=5, score_weights=[0.5, 2.0, 0.25, 3.0],
    adaptive_release=True, adaptive_prefetch=True, memory_block_path="blocks.csv",
)  # fmt: skip
DOCS = Path(__file__).parents[3] / "docs"


def python(code: str, tmp_path: Path, settings: OffloadSettings | None) -> str:
    """Run a program as a launch would start it; what it prints, its errors included."""
    script = tmp_path / "my.py"
    script.write_text(code)
    clean = {name: value for name, value in os.environ.items() if "OFFLOAD" not in name}
    env = clean if settings is None else clean | worker_environment(settings, {}, "launch.env")
    task = [str(script)] if settings is None else worker_task(settings, [str(script)], "launch.task")
    command = [sys.executable, *task[1:]] if task[0] == "python" else [sys.executable, *task]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=env).stdout.strip()


READS = """
from mindspore import nn
class Model(nn.Cell):
    pass
Model()
import json, os
from hp_memory.mindspore.compile_config import in_force
print(json.dumps([in_force(), {k: v for k, v in os.environ.items() if "HYPER_OFFLOAD" in k}]))
"""


def test_every_setting_has_one_place():
    assert len({place.name for place in PLACES}) == len(PLACES)
    assert {place.setting for place in PLACES} == {field.name for field in fields(OffloadSettings)}


def test_every_setting_reaches_mindspore(tmp_path):
    default, seen = compile_config_of(OffloadSettings()), set()
    for settings in (UNUSUAL, BY_DISTANCE):
        read, environment = json.loads(python(READS, tmp_path, settings))
        assert {name: read[name] for name in default} == compile_config_of(settings)
        assert environment == {name: value for name, value in environment_of(settings).items() if value is not None}
        seen |= {name for name in default if read[name] != default[name]} | environment.keys()
    # Each was something else than MindSpore has by itself, so that a setting that is dropped shows.
    assert seen == {place.name for place in PLACES}


def test_mindspores_own_defaults_are_ours(mindspore):
    from mindspore.graph._parse import compile_config

    names = compile_config_of(OffloadSettings())
    assert {name: str(getattr(compile_config, name)) for name in names} == names


CALLBACK = """
import json, sys
import mindspore as ms
from mindspore import nn
from hp_memory.mindformers import hyper_offload
from hp_memory.offload.apply import settings_from
network = nn.Dense(2, 2)
ms.get_context = lambda name: "Ascend"
try:
    hyper_offload.configure(network, settings_from(json.loads({text!r}), "callbacks.HPMemoryGraphCallback.offload"))
    print("in force", network.jit_config_dict["options"])
except Exception as error:
    print(error)
"""


def test_the_yaml_of_the_docs_is_taken_after_a_launch_with_the_same_settings_and_refused_otherwise(tmp_path):
    (block,) = re.findall(
        r"```yaml\n(callbacks:\n  - type: HPMemoryGraphCallback.*?)```", (DOCS / "mindformers.md").read_text(), re.S
    )
    offload = yaml.safe_load(block)["callbacks"][0]["offload"]
    code = CALLBACK.format(text=json.dumps(offload))
    assert python(code, tmp_path, settings_from(offload, "x")).startswith('in force {"auto_offload": "activation"}')
    other = settings_from(offload | {"select_distance": 300}, "x")
    assert "MindSpore reads HYPER_OFFLOAD_SELECT_DISTANCE=300, not 200" in python(code, tmp_path, other)
    assert "MindSpore reads MS_DEV_HYPER_OFFLOAD=None from the environment" in python(code, tmp_path, None)


TOO_LATE = """
from mindspore import nn
from hp_memory.offload import OffloadSettings
from hp_memory.offload.apply import apply, compile_config_module, refuse_out_of_force
import os
os.environ["MS_DEV_HYPER_OFFLOAD"] = "1"
nn.ReLU()
settings = OffloadSettings("activation", select_distance=200)
compile_config_module().HYPER_OFFLOAD_SELECT_DISTANCE = "200"
for attempt in (lambda: apply(settings), lambda: refuse_out_of_force(settings, "offload")):
    try:
        attempt()
    except Exception as error:
        print(error)
"""


def test_settings_after_the_first_cell_are_refused_however_they_look_from_python(tmp_path):
    first, second = python(TOO_LATE, tmp_path, None).splitlines()
    assert "reads its settings when the first nn.Cell is made, and one was" in first
    assert "MindSpore reads HYPER_OFFLOAD_SELECT_DISTANCE=100, not 200" in second


@pytest.mark.parametrize(
    ("task", "started"),
    [
        (["my.py", "--x"], ["my.py", "--x"]),
        (["python", "my.py"], ["my.py"]),
        (["python3", "-m", "my.module", "a"], ["-m", "my.module", "a"]),
    ],
)
def test_a_python_task_is_started_with_the_settings(task, started):
    assert worker_task(UNUSUAL, task, "launch.task") == ["python", "-m", "hp_memory.offload.start", *started]
    assert worker_task(OffloadSettings(), task, "launch.task") == task


@pytest.mark.parametrize("task", [["bash", "run.sh"], ["pytest"], ["python", "-c", "pass"]])
def test_a_task_that_the_settings_can_not_reach_is_refused(task):
    with pytest.raises(ConfigError, match=r"launch\.task=.*reach `python SCRIPT`"):
        worker_task(UNUSUAL, task, "launch.task")


def test_settings_without_effect_or_against_the_launch_are_refused():
    with pytest.raises(
        ConfigError, match=r"offload\.select_distance=200: has no effect with offload\.auto_offload=none"
    ):
        worker_environment(OffloadSettings(select_distance=200), {}, "launch.env")
    with pytest.raises(ConfigError, match=r"launch\.env\.MS_DEV_HYPER_OFFLOAD='0': contradicts"):
        worker_environment(UNUSUAL, {"MS_DEV_HYPER_OFFLOAD": "0"}, "launch.env")
    assert worker_environment(OffloadSettings(), {"A": "b"}, "launch.env") == {"A": "b"}


def test_a_worker_reads_what_the_launch_wrote():
    assert settings_for_worker(worker_environment(UNUSUAL, {}, "launch.env")) == UNUSUAL
    assert settings_for_worker({}) is None
    with pytest.raises(ConfigError, match="is no JSON"):
        settings_for_worker({SETTINGS_VARIABLE: "{"})
    with pytest.raises(ConfigError, match="did you mean 'select_num'"):
        settings_for_worker({SETTINGS_VARIABLE: '{"selectnum": 3}'})


def test_nothing_is_in_force_that_was_not_set(mindspore, monkeypatch):
    monkeypatch.delenv("MS_DEV_HYPER_OFFLOAD", raising=False)
    with pytest.raises(ConfigError, match="start the worker with `hp-memory launch`"):
        refuse_out_of_force(replace(OffloadSettings(), auto_offload="activation"), "offload")
