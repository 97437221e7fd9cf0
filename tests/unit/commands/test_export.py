"""An export says all of the config or refuses."""

from __future__ import annotations

import pytest
import yaml

from hp_memory.commands import export
from hp_memory.config.app import compose, to_object
from hp_memory.errors import ConfigError
from hp_memory.experiment.experiment import Experiment
from hp_memory.mindformers.families import fingerprint
from hp_memory.mindformers.plan_request import resolve

STAGES = "pipeline.layouts=[{stages:'1',save:[gmm]}]"


def config(*overrides, recipe="qwen3_30b_a3b", to="mindformers-callback"):
    return to_object(compose("export", [f"recipe={recipe}", f"to={to}", *overrides]))


def test_layouts_of_stages_reach_the_callback_as_layouts_of_layers():
    cfg = config(STAGES)
    written = yaml.safe_load(export.render(cfg))
    plan = resolve(written["callbacks"][0]["plan"], fingerprint(cfg.model, cfg.parallel))
    assert plan == Experiment(cfg).plan
    assert plan.layers[23].layout.action("gmm.up") == "recompute"
    assert plan.layers[24].layout.action("gmm.up") == "save"
    assert written["parallelism"]["pipeline_parallel_layers_per_stage"] == ["0-23", "24-47"]


def test_the_split_is_left_to_mindformers_where_no_layout_depends_on_it():
    written = yaml.safe_load(export.render(config()))
    assert written["parallelism"]["pipeline_parallel_layers_per_stage"] == "auto"


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["offload=peak"], "offload.auto_offload"),
        (["offload.select_num=3"], "offload.select_num"),
        (["pipeline.microbatches=3"], "pipeline.microbatches"),
        (["pipeline.layouts=[{stages:'1',save:[gm]}]"], "pipeline.layouts[0].save[0]"),
        (["pipeline.stages=1", "parallel.pipeline=1", STAGES], "pipeline.layouts"),
    ],
)
def test_what_would_be_dropped_is_refused(overrides, path):
    with pytest.raises(ConfigError) as error:
        export.render(config(*overrides))
    assert error.value.path == path


def test_where_it_writes_is_looked_at_first(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder") as error:
        export.run(config(f"output={tmp_path}/none/x.yaml", "offload=peak"))
    assert error.value.path == "output"
    assert export.run(config(f"output={tmp_path}/x.yaml")) == 0
    assert yaml.safe_load((tmp_path / "x.yaml").read_text())["callbacks"]
