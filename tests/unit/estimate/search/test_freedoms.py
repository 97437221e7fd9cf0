"""The search over stages and micro-batches beside everything that could be chosen, on a model of four layers."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from hp_memory.config.app import compose, to_object
from hp_memory.config.estimate import SearchSettings
from hp_memory.errors import ConfigError

MIB = 2**20
WORDS = (
    "recipe=tiny_moe", "estimate=cpu", "budget=1GiB", "model.num_layers=4", "model.seq_length=64",
    "parallel.pipeline=2", "pipeline.stages=2", "pipeline.microbatches=4", "train.micro_batch_size=2",
    "pipeline.layers_per_stage=[3,1]",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(mindspore):
    from hp_memory.estimate.search.freedoms import Search
    from hp_memory.experiment.workload import pipeline_of, workload

    cfg = to_object(compose("search", list(WORDS)))
    over = SearchSettings(over=["layout", "stages", "micro_batch"], seconds=20)
    return Search(workload(cfg, cfg.estimate), pipeline_of(cfg), cfg.estimate, over)


def every(search, budget):
    """The best layouts of every cut and micro-batch."""
    from hp_memory.estimate.search.step import best_layouts

    for sequences, first in itertools.product((1, 2, 4, 8), (1, 2, 3)):
        planner = search.planner(sequences)
        answer = best_layouts(planner.cut(replace(planner.pipeline, layers_per_stage=[first, 4 - first])), budget)
        if answer is not None:
            yield answer


@pytest.mark.parametrize("budget", [17 * MIB, 40 * MIB])
def test_the_fastest_of_all_is_found(made, budget):
    found = made.run(budget)
    seconds = [answer.step.seconds for answer in every(made, budget)]
    assert found.best.step.seconds == pytest.approx(min(seconds))
    assert found.bound <= min(seconds) * (1 + 1e-9)
    assert found.best.peak <= budget
    # What a freedom is worth: without it the best is no faster.
    assert found.without("stages").step.seconds >= found.best.step.seconds
    assert found.without("micro_batch").step.seconds >= found.best.step.seconds


def test_an_interrupt_gives_the_best_so_far(made):
    looked = []

    def interrupt(words):
        looked.append(words)
        raise KeyboardInterrupt

    made.say = interrupt
    found = made.run(40 * MIB)
    assert len(looked) == 1
    assert not found.proven
    assert found.best is found.cases[0].answer


def test_the_recipe_of_an_answer_is_one(made, tmp_path):
    from hp_memory.estimate.search import answers

    made.say = lambda words: None
    found = made.run(40 * MIB)
    planner = made.planner(found.best.sequences).cut(found.best.pipeline)
    text = answers.recipe(to_object(compose("search", list(WORDS))), planner, found.best.layout)
    assert "# @package _global_" in text
    assert f"layers_per_stage:\n  - {found.best.pipeline.layers_per_stage[0]}" in text


@pytest.mark.parametrize(
    ("over", "says"),
    [
        (["layout", "stage"], "not a choice"),
        (["stages"], "layouts are always chosen"),
    ],
)
def test_other_freedoms_are_refused(over, says):
    with pytest.raises(ConfigError, match=says):
        SearchSettings(over=over).validate()


def test_stages_of_one_stage_are_no_freedom(made):
    from hp_memory.estimate.search.freedoms import refuse

    with pytest.raises(ConfigError, match="has no effect with"):
        refuse(replace(made.pipeline, stages=1, layers_per_stage=[]), SearchSettings(over=["layout", "stages"]))
