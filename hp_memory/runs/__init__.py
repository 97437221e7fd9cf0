"""The run directory and what stands in it: names, progress, rank reports, checkpoints, what a run ran on."""
