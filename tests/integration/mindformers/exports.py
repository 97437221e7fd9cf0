"""Loads what ``hp-memory export`` writes with the installed MindFormers' own classes; prints JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import driver
from exporting import RECIPES, exported


def load(text: str, path: Path) -> dict:
    """The file as MindFormers reads and validates it."""
    from mindformers.pynative.config import TrainConfig
    from mindformers.pynative.distributed.activation_checkpoint import _validate_recompute_config, _validate_swap_config

    path.write_text(text)
    config = TrainConfig.load_from_yaml(str(path))
    layers = config.model.num_hidden_layers + (config.model.get("num_nextn_predict_layers", 0) or 0)
    _validate_recompute_config(config.recompute, config.recompute_comm, layers)
    if config.swap.enable:
        _validate_swap_config(config.swap, layers)
    return config.to_dict()


def misspelt() -> list[str]:
    """MindFormers refuses what we refuse: the check above really validates."""
    errors = []
    for old, new in (("exclude_op:", "exclude_ops:"), ("- alltoall", "- ''"), ("- 0-61", "- 0-62")):
        text = exported("deepseek_v3_671b", "mindformers-2.0", "layout=op_exclude")
        assert old in text
        try:
            load(text.replace(old, new), Path(tempfile.mkdtemp()) / "bad.yaml")
        except (ValueError, TypeError) as error:
            errors.append(str(error))
    return errors


def main() -> dict:
    driver.prepare()
    folder, found = Path(tempfile.mkdtemp()), {}
    for recipe in RECIPES:
        for target in ("mindformers-2.0", "mindformers-callback"):
            text = exported(recipe, target)
            loaded = text.startswith("error:") or load(text, folder / f"{recipe}.yaml")
            found[f"{recipe} {target}"] = text if loaded is True else loaded
    return {"files": found, "misspelt": misspelt()}


if __name__ == "__main__":
    sys.stdout.write("RESULT " + json.dumps(main()) + "\n")
