"""What a command doesn't read can't be set on its command line, and every key of that table exists."""

from __future__ import annotations

import typing

import pytest

from hp_memory.config import schema as config
from hp_memory.config import unread
from hp_memory.config.app import checked
from hp_memory.errors import ConfigError


def has(schema, key):
    """Whether a dataclass has a field at this path."""
    first, _, rest = key.partition(".")
    kinds = typing.get_type_hints(schema)
    return first in kinds and (not rest or has(kinds[first], rest))


def test_every_unread_key_is_one_of_its_commands_config():
    for entry in unread.UNREAD:
        assert all(has(config.SCHEMAS[entry.command], key) for key in entry.keys), entry


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        ("compare", ["train.save_every=5"], "no checkpoints"),
        ("compare", ["train.steps=5"], "timed_steps"),
        ("calibrate", ["train.steps=5"], "trains nothing"),
        ("calibrate", ["layout=full"], "every region is timed"),
        ("pipeline", ["train.steps=5"], "trains nothing"),
        ("pipeline", ["seed=5"], "matrix.seed"),
        ("pipeline", ["picture=x.png"], "show=true"),
        ("pipeline", ["show=true", "matrix.micro_batch_size=2"], "only draws"),
        ("export", ["to=mindformers-callback", "launch=cluster"], "launch settings aren't exported"),
        ("export", ["to=mindformers-callback", "launch/hccl=large"], "launch settings aren't exported"),
        ("search", ["budget=1GiB", "layout=full"], "chooses the layout"),
        ("dryrun", ["launch.workers_per_node=1"], "no workers"),
        ("offload", ["model.top_k=1"], "whatever its model"),
        ("train", ["engine=mindformers", "train.decay_steps=9"], "ends at train.steps"),
        ("launch", ["launch.task=[x.py]", "layout=full"], "a config of its own"),
    ],
)
def test_refused_with_what_reads_it_instead(command, words, says):
    with pytest.raises(ConfigError, match="has no effect here") as error:
        checked(command, words)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("compare", ["recipe=tiny_moe", "train.decay_steps=9", "steps=2"]),
        ("pipeline", ["show=true", "pipeline=zb_h1", "picture=x.png"]),
        ("train", ["engine=reference", "train.decay_steps=9"]),
        ("launch", ["launch.task=[x.py]", "launch.env.A=b", "offload=peak"]),
        ("doctor", []),
    ],
)
def test_what_is_read_is_taken(command, words):
    checked(command, words)
