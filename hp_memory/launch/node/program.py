"""What runs on a node: ``python -m hp_memory.launch.node.program``, told what to do by one line on stdin.

It lives as long as its launcher: when stdin ends or falls silent, everything it started is ended.
"""

from __future__ import annotations

import os
import sys

from hp_memory.launch import wire
from hp_memory.launch.node import probe, processes
from hp_memory.launch.node.runner import Runner


def main() -> int:
    """Reads the order and carries it out; the exit code is 0 if that went well."""
    order = wire.parse(sys.stdin.readline())
    if order is None:
        print("hp_memory.launch.node.program is started by `hp-memory launch`, not by hand", file=sys.stderr)
        return 2
    if order["do"] == "probe":
        return 0 if wire.send(sys.stdout, probe.probe(order)) else 1
    if order["do"] == "sweep":
        left = processes.end(order["run_id"], order["node"])
        wire.send(sys.stdout, {"event": "ended", "left": left})
        return 1 if left else 0
    os.chdir(order["cwd"])
    return Runner(order).run()


if __name__ == "__main__":
    sys.exit(main())
