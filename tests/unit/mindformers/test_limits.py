"""Every row of the table is run into by a config of its own, and all commands read the table."""

from __future__ import annotations

import functools

import pytest

from hp_memory.commands import export
from hp_memory.config import app as hydra_app
from hp_memory.errors import ConfigError
from hp_memory.experiment import experiment
from hp_memory.mindformers import limits

PIPELINE = ("parallel.pipeline=2", "pipeline.stages=2", "pipeline.microbatches=4", "train.micro_batches=4")
CHUNKS = ("model.num_layers=9", "pipeline.layers_per_stage=[3,2,2,2]")
INTERLEAVED = (*PIPELINE, *CHUNKS, "pipeline.schedule=interleaved_1f1b", "pipeline.interleave=2")
OVERLAP = (*INTERLEAVED, "pipeline.overlap_b_f=true", "parallel.data=2", "parallel.fsdp=2", "parallel.expert=2")
# The setting that is named, what is said of it, and a config.
CASES = [
    ("parallel.expert", "share one copy of the parameters", ("parallel.data=2", "parallel.expert=2")),
    ("pipeline.overlap_b_f", "have something to overlap", (*INTERLEAVED, "pipeline.overlap_b_f=true")),
    ("pipeline.overlap_b_f", "pairs backwards", (*PIPELINE, *OVERLAP[-4:])),
    ("pipeline.overlap_p2p", "defers messages", (*PIPELINE, "pipeline.overlap_p2p=true")),
    ("pipeline.split_backward", "switches the dx/dw split off", (*INTERLEAVED, "pipeline.split_backward=true")),
]
COMMANDS = {
    "train": functools.partial(experiment.of, "train"),
    "export": export.render,
    "dryrun": functools.partial(experiment.of, "dryrun"),
    "search": functools.partial(experiment.of, "search"),
}

NEEDED = {"export": ["to=mindformers-callback"], "search": ["budget=1GiB"]}


def config(command, *overrides):
    overrides = [*NEEDED.get(command, ()), *overrides]
    return hydra_app.to_object(hydra_app.compose(command, ["recipe=tiny_deepseek_v3", *overrides]))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("path", "why", "overrides"), CASES)
def test_every_command_refuses_it(command, path, why, overrides):
    with pytest.raises(ConfigError, match=why) as error:
        COMMANDS[command](config(command, *overrides))
    assert error.value.path == path


def test_every_row_has_a_case():
    found = [[limit.holds(config("train", *overrides)) for limit in limits.LIMITS] for *_, overrides in CASES]
    assert [sum(row) for row in zip(*found, strict=True)] == [1] * len(limits.LIMITS)


def test_a_sound_overlap_passes():
    limits.refuse(config("train", *OVERLAP, "pipeline.split_backward=true", "pipeline.overlap_p2p=false"))
    assert "HPMemoryCallback" in export.render(config("export", *OVERLAP))


def test_the_reference_model_has_no_rows():
    cfg = hydra_app.to_object(hydra_app.compose("train", ["recipe=tiny_moe"]))
    cfg.pipeline.split_backward = True
    limits.refuse(cfg)


HERE = [
    ("parallel.tensor", ("parallel.tensor=2",)),
    ("parallel.context", ("parallel.context=2",)),
    ("pipeline.overlap_p2p", (*INTERLEAVED, "pipeline.overlap_p2p=true")),
]


@pytest.mark.parametrize(("path", "overrides"), HERE)
def test_what_needs_the_package_isnt_started_on_this_machine_without_it(path, overrides):
    with pytest.raises(ConfigError, match="stand-in for hyper_parallel") as error:
        COMMANDS["train"](config("train", *overrides))
    assert error.value.path == path
    assert [limit.path for limit in limits.NEED_THE_PACKAGE] == [path for path, _ in HERE]


@pytest.mark.parametrize("command", ["export", "dryrun"])
def test_what_needs_the_package_can_be_planned_for_a_cluster(command):
    COMMANDS[command](config(command, "parallel.tensor=2"))


def test_other_nodes_have_packages_of_their_own():
    COMMANDS["train"](config("train", "parallel.tensor=2", "launch=cluster", "launch.nodes=[a,b]"))


def test_with_the_package_it_is_started(monkeypatch):
    monkeypatch.setattr("hp_memory.mindformers.standin.installed", lambda: True)
    COMMANDS["train"](config("train", "parallel.tensor=2"))
