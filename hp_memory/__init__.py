"""Decides what happens to every activation of a large MoE model: saved, replayed or moved to the host."""

__version__ = "0.1.0"
