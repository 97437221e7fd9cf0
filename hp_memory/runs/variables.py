"""The environment variables by which a launcher tells a job's processes whose they are and where they write."""

RUN_ID = "HP_MEMORY_RUN_ID"
NODE = "HP_MEMORY_NODE"
RUN_DIR = "HP_MEMORY_RUN_DIR"
DEVICE = "HP_MEMORY_DEVICE"
"""What workers compute on: ``CPU``, ``Ascend``, or ``auto`` for what each one's machine has."""
RESUME = "HP_MEMORY_RESUME"
"""The checkpoint that a restarted job continues from."""
