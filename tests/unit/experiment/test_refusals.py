"""Every row names settings that exist, and a config that runs into it is refused by each of its commands."""

from __future__ import annotations

import functools

import pytest

from hp_memory.config.app import compose, to_object
from hp_memory.config.schema import SCHEMAS, HPConfig
from hp_memory.errors import ConfigError
from hp_memory.experiment import experiment, refusals
from hp_memory.runs.hyper_parallel import Found, State

NEEDED = {"export": ["to=mindformers-callback"], "search": ["budget=1GiB"]}
# The setting that is named, what is said of it, and a config that runs into the row; one for each row, in order.
PIPELINE = ("parallel.pipeline=2", "pipeline.stages=2", "pipeline.microbatches=4", "train.micro_batches=4")
CASES = [
    ("launch.task", "starts other programs", ["launch.task=[x.py]"]),
    ("engine", "compared on the reference model", ["recipe=tiny_deepseek_v3"]),
    ("engine", "timed on the reference model", ["recipe=tiny_deepseek_v3"]),
    ("engine", "regression runs the reference model", ["recipe=tiny_deepseek_v3"]),
    ("engine", "'deepseek_v3'", ["recipe=tiny_deepseek_v3", "engine=reference"]),
    ("engine", "'reference'", ["recipe=tiny_moe", "engine=mindformers"]),
    ("engine", "it can't be imported", ["recipe=tiny_deepseek_v3"]),
    ("pipeline.stages", "`hp-memory pipeline`", ["recipe=tiny_moe", "pipeline=1f1b"]),
    ("data.mindrecord", "MindFormers", ["recipe=tiny_moe", "data.mindrecord=some.mindrecord"]),
    ("data.megatron", "MindFormers", ["recipe=tiny_moe", "data.megatron=some"]),
    ("parallel.pipeline", "`hp-memory pipeline`", ["recipe=tiny_moe", "parallel.pipeline=2"]),
    ("pipeline.stages", "from matrix", ["recipe=tiny_moe", "pipeline=1f1b"]),
    ("offload.auto_offload", "compiled graphs", ["recipe=tiny_moe", "offload.auto_offload=activation"]),
    ("pipeline.layouts", "search chooses", ["recipe=tiny_moe", *PIPELINE, "pipeline.layouts=[{stages:'0'}]"]),
    ("pipeline.stages", "parallel.pipeline is 1", ["recipe=tiny_moe", "pipeline=1f1b"]),
    ("pipeline.overlap_b_f", "working sets", ["recipe=tiny_moe", *PIPELINE, "pipeline.overlap_b_f=true"]),
]


def config(command, overrides):
    own = [word for word in overrides if command != "pipeline" or not word.startswith("recipe=")]
    return to_object(compose(command, [*NEEDED.get(command, ()), *(own if command == "pipeline" else overrides)]))


def test_there_is_a_case_for_each_row():
    assert [path for path, *_ in CASES] == [_path_of(row.path) for row in refusals.REFUSALS]


def _path_of(path):
    """Of a group the first changed setting is named."""
    return {"pipeline": "pipeline.stages", "offload": "offload.auto_offload"}.get(path, path)


@pytest.mark.parametrize(("row", "case"), zip(refusals.REFUSALS, CASES, strict=True), ids=range(len(CASES)))
def test_a_row_refuses(row, case, monkeypatch):
    monkeypatch.setattr(refusals.hyper_parallel, "probe", lambda: Found(State.BROKEN, "it can't be imported"))
    path, says, overrides = case
    command = row.commands[0]
    with pytest.raises(ConfigError, match=says) as error:
        refusals._refuse_row(row, config(command, overrides))
    assert error.value.path == path


@pytest.mark.parametrize("row", refusals.REFUSALS, ids=range(len(refusals.REFUSALS)))
def test_a_row_names_a_setting_and_commands_that_exist(row):
    functools.reduce(getattr, row.path.split("."), HPConfig())
    assert set(row.commands) <= set(SCHEMAS)


@pytest.mark.parametrize("command", ["dryrun", "search", "export", "train"])
def test_offload_of_compiled_graphs_is_refused_by_all(command):
    with pytest.raises(ConfigError, match="compiled graphs"):
        experiment.of(command, config(command, ["recipe=tiny_deepseek_v3", "offload=activation"]))
