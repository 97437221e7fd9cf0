"""``python -m hp_memory.offload.start SCRIPT|-m MODULE ...``: sets HyperOffload's settings, then runs the program.

The settings come from the variable that ``hp-memory launch`` sets. MindSpore reads them when the program makes its
first ``nn.Cell``, so they are set before its first line.
"""

from __future__ import annotations

import os
import runpy
import sys

from hp_memory.errors import HPMemoryError
from hp_memory.offload.apply import SETTINGS_VARIABLE, apply, settings_for_worker


def main(arguments: list[str]) -> int:
    """Runs the program as ``python`` would; returns 2 where its settings can't be set."""
    if not arguments or arguments == ["-m"]:
        print("usage: python -m hp_memory.offload.start SCRIPT|-m MODULE ...", file=sys.stderr)
        return 2
    try:
        settings = settings_for_worker(os.environ)
        if settings is None:
            raise HPMemoryError(f"{SETTINGS_VARIABLE} isn't set: start this with `hp-memory launch offload=...`")
        apply(settings)
    except HPMemoryError as error:
        print(f"hp-memory: {error}", file=sys.stderr)
        return 2
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
