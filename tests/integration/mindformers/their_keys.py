"""Prints every key that the installed MindFormers' own config classes know, and their defaults, as one JSON object."""

from __future__ import annotations

import dataclasses
import importlib
import json
import typing

from hp_memory.config.app import compose, to_object
from hp_memory.estimate.engines import mindformers as engine
from hp_memory.mindformers.families import FAMILIES, SIZES


def pynative() -> dict[str, list[str]]:
    """Keys by section of the PyNative Trainer, nested sections beside those that hold them."""
    config = importlib.import_module("mindformers.pynative.config.config")
    found: dict[str, list[str]] = {}

    def note(path: str, cls: type) -> None:
        found[path] = [f.name for f in dataclasses.fields(cls)]
        for f in dataclasses.fields(cls):
            inner = [f.type, *typing.get_args(f.type)]
            for kind in inner:
                if dataclasses.is_dataclass(kind) and typing.get_origin(f.type) is not list:
                    note(f"{path}.{f.name}".lstrip("."), kind)

    note("", config.TrainConfig)
    return found


def graph() -> dict[str, list[str]]:
    """Keys by section of the graph Trainer."""
    template = importlib.import_module("mindformers.tools.register.template")
    return {name: list(cls.keys()) for name, cls in template.CONFIG_NAME_TO_CLASS.items()}


def model() -> dict[str, str]:
    """Every key of the model section, and what it is called in a TransformerConfig."""
    utils = importlib.import_module("mindformers.parallel_core.transformer_config_utils")
    configs = importlib.import_module("mindformers.parallel_core.transformer_config")
    named = utils.scatter_multi_mapping_keys_to_mapping(utils.COMMON_CONFIG_MAPPING)
    found = {key: built if isinstance(built, str) else built[0] for key, built in named.items()}
    for cls in (configs.TransformerConfig, configs.MLATransformerConfig):
        found |= {f.name: f.name for f in dataclasses.fields(cls)}
    for key in utils.DEFAULT_WHITE_KEY:
        found.setdefault(key, "")
    for family in FAMILIES.values():
        for key in _config(family.model_type, family.config_class)().to_dict():
            found.setdefault(key, "")
    return found


def _config(model_type: str, name: str):
    folder = {"deepseek_v3": "deepseek3"}.get(model_type, model_type)
    module = importlib.import_module(f"mindformers.models.{folder}.configuration_{model_type}")
    return getattr(module, name)


def defaults() -> dict[str, dict]:
    """Each family's config class, converted: sizes by our names, and what the model is built with."""
    found = {}
    for name, family in FAMILIES.items():
        config = _config(family.model_type, family.config_class)(mtp_loss_scaling_factor=0.3)
        built = config.convert_to_transformer_config(is_mla_model="mla" in family.parts)
        stated = config.to_dict()
        sizes = {s.ours: getattr(built, s.built) for s in SIZES if any(n in stated for n in s.names)}
        found[name] = {"sizes": sizes, "built": {k: getattr(built, k) for k in family.built_with}}
    return found


def callbacks() -> list[str]:
    """Names of the callbacks that a file may name."""
    register = importlib.import_module("mindformers.tools.register")
    importlib.import_module("mindformers.core.callback")
    importlib.import_module("mindformers.pynative.callback")
    return sorted(register.MindFormerRegister.registry[register.MindFormerModuleType.CALLBACK])


def cells() -> list[str]:
    """Paths of the cells below the blocks of tiny models, as ``select_module`` sees them."""
    found: set[str] = set()
    for recipe in ("tiny_deepseek_v3_mtp", "tiny_qwen3_moe"):
        settings = to_object(compose("train", [f"recipe={recipe}"])).model
        with engine.on_meta(None):
            model = engine.gpt_model(engine.build(settings, "bfloat16"))
        for block in model.decoder.layers._cells.values():
            names = [name for name, _ in block.cells_and_names() if name]
            found |= {name for name in names if not name.endswith((".norm", ".silu"))}
    return sorted(found)


def main() -> dict:
    engine.prepare()
    found = {"pynative": pynative(), "graph": graph(), "model": model(), "defaults": defaults()}
    return found | {"callbacks": callbacks(), "cells": cells()}


if __name__ == "__main__":
    print("RESULT " + json.dumps(main()))
