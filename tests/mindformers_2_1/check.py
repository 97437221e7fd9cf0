"""Reads exported files with MindFormers 2.1's own config classes. Runs in an environment that has only those.

``check.py FILE ...`` prints one JSON object. MindFormers 2.1 as a whole needs MindSpore 2.11 and HyperParallel; its
config classes and their validation need neither, once the packages around them aren't run.
"""

from __future__ import annotations

import json
import logging
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

CHECKPOINT = "hyper_parallel.core.activation_checkpoint"


def stand_in(name: str, **attributes: object) -> None:
    sys.modules[name] = module = ModuleType(name)
    vars(module).update(attributes)


def prepare() -> None:
    root = find_spec("mindformers").submodule_search_locations[0]
    for name in ("mindformers", "mindformers.tools", "mindformers.pynative", "mindformers.pynative.distributed"):
        module = ModuleType(name)
        module.__path__ = [str(Path(root, *name.split(".")[1:]))]
        sys.modules[name] = module
    stand_in("mindformers.tools.check_rules", check_yaml_depth_before_loading=lambda file: None)
    stand_in("mindformers.tools.logger", logger=logging.getLogger("mindformers"))
    cell = type("Cell", (), {})
    stand_in("mindspore.nn", Cell=cell)
    stand_in("mindspore", nn=sys.modules["mindspore.nn"], Tensor=type("Tensor", (), {}))
    wrappers = ("checkpoint_exclude_wrapper", "checkpoint_wrapper", "swap_wrapper")
    for name in ("hyper_parallel", "hyper_parallel.core"):
        stand_in(name)
    stand_in(
        CHECKPOINT,
        CheckpointPolicy=cell,
        SwapManager=cell,
        **dict.fromkeys(wrappers, lambda target: target),
    )


def load(file: str) -> dict:
    from mindformers.pynative.config.config import TrainConfig
    from mindformers.pynative.distributed import activation_checkpoint as rules

    config = TrainConfig.load_from_yaml(file)
    layers = config.model.num_hidden_layers + (config.model.get("num_nextn_predict_layers", 0) or 0)
    rules._validate_recompute_config(config.recompute, config.recompute_comm, layers)
    return {"recompute": config.recompute.to_dict(), "parallelism": config.parallelism.to_dict()}


def main(files: list[str]) -> dict:
    prepare()
    found = {}
    for file in files:
        try:
            found[Path(file).stem] = load(file)
        except (TypeError, ValueError) as error:
            found[Path(file).stem] = {"error": str(error)}
    return found


if __name__ == "__main__":
    print("RESULT " + json.dumps(main(sys.argv[1:])))
