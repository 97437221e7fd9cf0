"""``hp-memory export``: the plan as MindFormers YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from hp_memory.errors import ConfigError
from hp_memory.experiment import experiment
from hp_memory.mindformers.trainer_yaml.applied import applied
from hp_memory.mindformers.trainer_yaml.theirs import CALLBACK_TARGET, GRAPH_TARGET, with_plan
from hp_memory.mindformers.trainer_yaml.train_config import train_config, with_callback, with_native_settings
from hp_memory.runs.paths import check_output

if TYPE_CHECKING:
    from hp_memory.config.schema import ExportConfig

TARGETS = ("mindformers-2.0", "mindformers-2.1", CALLBACK_TARGET)


def run(cfg: ExportConfig) -> int:
    """Writes the file, or prints it where ``output`` is null.

    Raises:
        ConfigError: for a target that doesn't exist, or a plan that it can't express.
    """
    file = None if cfg.output is None else check_output("output", cfg.output)
    text = render(cfg)
    if file is None:
        print(text, end="")
        return 0
    file.write_text(text)
    print(f"wrote {cfg.output}")
    return 0


def render(cfg: ExportConfig) -> str:
    """The YAML, below a comment with the plan in words."""
    if cfg.yaml is not None:
        return _theirs(cfg)
    if cfg.to == GRAPH_TARGET:
        raise ConfigError("to", cfg.to, "is put into a graph Trainer's file: give yaml=FILE", TARGETS)
    if cfg.to not in TARGETS:
        raise ConfigError("to", cfg.to, "no such target", TARGETS)
    applied(cfg)  # refuses what only counts with yaml
    asked = experiment.of("export", cfg)
    config, layout, plan = train_config(cfg), asked.layout, asked.plan
    if cfg.to == "mindformers-callback":
        config = with_callback(config, layout, cfg.host)
    else:
        config = with_native_settings(config, plan, cfg.to.removeprefix("mindformers-"))
    words = "".join(f"#   {line}\n" for line in plan.in_words().splitlines())
    head = f"# {cfg.name}, for {cfg.to}; train_dataset is yours to fill in. Plan {plan.hash()}:\n{words}"
    return head + yaml.safe_dump(config, sort_keys=False)


def _theirs(cfg: ExportConfig) -> str:
    """The file of ``yaml`` with the plan in it."""
    if cfg.to not in (*TARGETS, GRAPH_TARGET):
        raise ConfigError("to", cfg.to, "no such target", (*TARGETS, GRAPH_TARGET))
    from_yaml = applied(cfg)
    asked = experiment.of("export", from_yaml.cfg)
    assert from_yaml.reading is not None
    return with_plan(from_yaml.reading, asked.layout, asked.plan, cfg.to, cfg.host)
