"""MindFormers: callbacks that install a plan, config export, a single-process stand-in for HyperParallel."""
