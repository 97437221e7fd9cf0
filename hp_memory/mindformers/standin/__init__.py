"""A stand-in for HyperParallel, which MindFormers imports everywhere and which isn't on PyPI.

It never hides the real package: its finder is asked last, and ``activate`` refuses where the real one is importable.
It spreads a model over the processes of an msrun job on CPUs, well enough to train tiny models exactly as a cluster
would, and on nothing else. What it can't do raises ``NeedsHyperParallel`` with the name of the call. Each module says
what in it models HyperParallel, with the place in MindFormers where that is used, and what is ours.
"""

from hp_memory.mindformers.standin.finder import activate, installed, is_active, refuse_ranks

__all__ = ["activate", "installed", "is_active", "refuse_ranks"]
