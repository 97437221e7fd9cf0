"""Initial values that depend on the seed and a parameter's name only, not on how the model is cut up."""

from __future__ import annotations

import zlib

import numpy as np
from mindspore import Parameter, Tensor, nn

from hp_memory.kernels.groups import Group
from hp_memory.models.settings import ModelSettings

EXPERT_WEIGHTS = ("moe.up_weight", "moe.down_weight")


def is_expert(name: str) -> bool:
    """Whether a parameter holds this rank's own experts."""
    return name.endswith(EXPERT_WEIGHTS)


def initialise(model: nn.Cell, settings: ModelSettings, group: Group, seed: int) -> None:
    """Draws every matrix from a normal distribution with ``settings.init_std``; norms stay at 1."""
    for parameter in model.trainable_params():
        if len(parameter.shape) > 1:
            parameter.set_data(Tensor(_draw(parameter, settings, group, seed)))


def _draw(parameter: Parameter, settings: ModelSettings, group: Group, seed: int) -> np.ndarray:
    if not is_expert(parameter.name):
        return _normal(parameter.name, parameter.shape, settings.init_std, seed)
    first = group.index * parameter.shape[0]
    names = [f"{parameter.name}.{first + i}" for i in range(parameter.shape[0])]
    return np.stack([_normal(name, parameter.shape[1:], settings.init_std, seed) for name in names])


def _normal(name: str, shape: tuple[int, ...], std: float, seed: int) -> np.ndarray:
    generator = np.random.default_rng((seed, zlib.crc32(name.encode())))
    return (generator.standard_normal(shape) * std).astype(np.float32)
