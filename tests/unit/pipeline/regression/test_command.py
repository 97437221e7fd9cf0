"""What `hp-memory pipeline` refuses before a worker starts."""

from __future__ import annotations

import pytest

from hp_memory.commands import pipeline as command
from hp_memory.config.app import compose, to_object
from hp_memory.errors import ConfigError


def config(*overrides):
    return to_object(compose("pipeline", [*overrides]))


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["matrix.layout=[ful]"], r"matrix.layout\[0\]='ful'"),
        (["matrix.stages=[4]", "matrix.schedule=[zb_v]", "model.num_layers=9"], "9 layers don't divide into 8 chunks"),
        (["parallel.pipeline=4", "launch=one_node", "launch.workers_per_node=4"], "the workers form .* stages"),
        (["parallel.pipeline=3"], "starts 1 workers|starts one process"),
        (["pipeline=1f1b"], "takes its pipelines from matrix"),
        (
            ["matrix.schedule=[interleaved_1f1b]", "matrix.microbatches=[4]"],
            "no schedule takes these with these stages",
        ),
        (["matrix.rowss=2"], "rowss"),
    ],
)
def test_a_matrix_that_cannot_run(tmp_path, overrides, why):
    with pytest.raises(ConfigError, match=why):
        command.run(config("recipe=pp_regression/quick", f"run_dir={tmp_path / 'run'}", *overrides))


def test_show_prints_the_timeline_and_the_figures(tmp_path, capsys):
    picture = tmp_path / "timeline.png"
    assert command.run(config("show=true", "pipeline=zb_v", f"picture={picture}")) == 0
    assert "rank 1 |" in capsys.readouterr().out
    assert picture.exists()
