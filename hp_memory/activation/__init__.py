"""Saving and replaying activations, region by region, on MindSpore PyNative.

    block = checkpoint_wrapper(block)                        # drop and replay
    block.gmm = checkpoint_exclude_wrapper(block.gmm)        # except this part, which is saved

docs/activation.md says what is guaranteed, how, and what isn't.
"""

from hp_memory.activation.capture import Finding
from hp_memory.activation.frames import is_recomputing
from hp_memory.activation.observing import Held, Observation, Runs, observe
from hp_memory.activation.report import Report, report
from hp_memory.activation.wrappers import (
    checkpoint,
    checkpoint_exclude_wrapper,
    checkpoint_wrapper,
    findings,
    offload_wrapper,
    region,
)

__all__ = [
    "Finding",
    "Held",
    "Observation",
    "Report",
    "Runs",
    "checkpoint",
    "checkpoint_exclude_wrapper",
    "checkpoint_wrapper",
    "findings",
    "is_recomputing",
    "observe",
    "offload_wrapper",
    "region",
    "report",
]
