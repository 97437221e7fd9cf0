"""Numbers that mean no training, or have no effect on it, are refused."""

from __future__ import annotations

import pytest

from hp_memory.errors import ConfigError
from hp_memory.train.settings import TrainSettings

SIZES = {"steps": 100, "micro_batch_size": 1}


@pytest.mark.parametrize(
    ("settings", "path", "why"),
    [
        ({"steps": 0}, "train.steps", "at least 1"),
        ({"warmup_steps": 101}, "train.warmup_steps", "not end before train.steps=100"),
        ({"steps": 3}, "train.warmup_steps", "set it lower"),
        ({"warmup_steps": 60, "decay_steps": 50}, "train.warmup_steps", "not end before train.decay_steps=50"),
        ({"decay_steps": 50, "min_learning_rate": 0.0}, "train.decay_steps", "would change nothing"),
        ({"save_every": 101, "save_last": False}, "train.save_every", "would save nothing"),
        ({"min_learning_rate": 1.0}, "train.min_learning_rate", "must not be above"),
    ],
)
def test_refused(settings, path, why):
    with pytest.raises(ConfigError, match=why) as error:
        TrainSettings(**SIZES | settings).validate()
    assert error.value.path == path


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"warmup_steps": 100},
        {"steps": 3, "decay_steps": 100},
        {"decay_steps": 50},
        {"save_every": 101},
        {"save_every": 100, "save_last": False},
        {"save_last": False},
    ],
)
def test_accepted(settings):
    TrainSettings(**SIZES | settings).validate()
