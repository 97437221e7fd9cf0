"""A single-process stand-in for HyperParallel, which MindFormers imports everywhere and which isn't on PyPI.

It never hides the real package: its finder is asked last, and ``activate`` refuses where the real one is importable.
Whatever has no meaning in one process (sharding, pipelines, swap) raises ``NeedsHyperParallel`` when it's called.
"""

from hp_memory.mindformers.standin.finder import activate, installed, is_active

__all__ = ["activate", "installed", "is_active"]
