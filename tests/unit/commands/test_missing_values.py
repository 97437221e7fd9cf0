"""A mandatory value that is missing says what it takes."""

from __future__ import annotations

import pytest

from hp_memory.cli import main
from hp_memory.commands import export
from hp_memory.config import app
from hp_memory.mindformers.trainer_yaml.theirs import GRAPH_TARGET


@pytest.mark.parametrize(("command", "says"), [("export", "mindformers-callback"), ("search", "budget=58GiB")])
def test_a_missing_value_lists_what_it_takes(capsys, command, says):
    with pytest.raises(SystemExit) as ended:
        main([command, "recipe=deepseek_v3_671b"])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_the_targets_said_are_the_targets_there_are():
    assert app.ACCEPTED["to"] == (*export.TARGETS, GRAPH_TARGET)
