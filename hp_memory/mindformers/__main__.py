"""``python -m hp_memory.mindformers train.yaml``: runs a plain MindFormers config of the PyNative Trainer.

The file may name our callback; MindFormers' own entry points don't import it. Restarted by our launcher, it goes on
from the checkpoint it is told: one is found where the file saves into ``<run directory>/checkpoints``.
"""

from __future__ import annotations

import os
import sys

from hp_memory.errors import ConfigError, HPMemoryError
from hp_memory.mindformers import environment
from hp_memory.mindformers.trainer_yaml import running
from hp_memory.runs import ranks
from hp_memory.runs.variables import RESUME


def main(arguments: list[str]) -> int:
    """Trains as the file says; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m hp_memory.mindformers train.yaml", file=sys.stderr)
        return 2
    try:
        running.check(arguments[0])
        import mindspore as ms

        ms.set_context(mode=ms.PYNATIVE_MODE)
        for line in environment.prepare(ranks.world_size()):
            print(line, flush=True)
        from mindformers.pynative.trainer.trainer import Trainer

        Trainer(config=arguments[0]).train(os.environ.get(RESUME) or None)
    except HPMemoryError as error:
        print(f"hp-memory: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
