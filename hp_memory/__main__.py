"""``python -m hp_memory COMMAND``: the same as the console script."""

from hp_memory.cli import main

main()
