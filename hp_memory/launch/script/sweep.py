"""Ends the processes of a run on this machine; scripts run this module with the run's id and the node's number."""

from __future__ import annotations

import sys

from hp_memory.launch.node import processes


def main(argv: list[str]) -> int:
    """Ends them; 1 where one is left."""
    run_id, node = argv
    # The calling script carries the mark too and does the rest itself.
    return 1 if processes.end(run_id, int(node), spare=processes.ancestors()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
