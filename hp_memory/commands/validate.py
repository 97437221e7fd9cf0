"""``hp-memory validate FILE``: whether a recipe of ours or a MindFormers YAML would be taken, all of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from hp_memory.config.app import checked, to_object
from hp_memory.config.own_files import GROUPS
from hp_memory.errors import ConfigError
from hp_memory.experiment import experiment
from hp_memory.layout import ActivationPlan
from hp_memory.mindformers.trainer_yaml.applied import applied_with_assumptions
from hp_memory.runs.files import read_text

# What only MindFormers' files have at their top level.
_THEIRS = {"trainer", "runner_config", "train_dataset", "parallelism", "parallel_config", "training", "context"}


def run(words: Sequence[str]) -> int:
    """Checks a file as ``dryrun`` would, without tracing anything; returns 0 if it is sound.

    Raises:
        ConfigError: saying what is wrong with it.
    """
    if len(words) != 1:
        raise ConfigError("validate", " ".join(words), "names one file: hp-memory validate my_recipe.yaml")
    kind = _kind(Path(words[0]))
    word = f"yaml={words[0]}" if kind == "MindFormers YAML" else f"{kind}=@{words[0]}"
    plan = _plan("dryrun", [word])
    print(f"{words[0]}: a sound {kind}; plan {plan.hash()}\n{plan.in_words()}\nnext: hp-memory dryrun {word}")
    return 0


def _plan(command: str, words: list[str]) -> ActivationPlan:
    cfg = applied_with_assumptions(to_object(checked(command, words))).cfg
    return experiment.of(command, cfg).plan


def _kind(file: Path) -> str:
    if not file.is_file():
        raise ConfigError("validate", str(file), "there is no such file")
    try:
        data = yaml.safe_load(read_text(file))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("validate", str(file), f"is no YAML: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(data, dict):
        raise ConfigError("validate", str(file), "holds no mapping", GROUPS)
    if _THEIRS & data.keys():
        return "MindFormers YAML"
    return "recipe" if data.keys() & {"defaults", *GROUPS} else "layout"
