"""Importing this module registers both callbacks with MindFormers; a plain MindFormers script needs no more of us."""

from __future__ import annotations

from mindformers.tools.register import MindFormerModuleType, MindFormerRegister

from hp_memory.mindformers.callback import HPMemoryCallback
from hp_memory.mindformers.graph_callback import HPMemoryGraphCallback

MindFormerRegister.register_cls(HPMemoryGraphCallback, MindFormerModuleType.CALLBACK)

__all__ = ["HPMemoryCallback", "HPMemoryGraphCallback"]
