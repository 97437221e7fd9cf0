"""HyperOffload: a planner that agrees with MindSpore 2.10.0's optimizer, and what is built on it."""

from __future__ import annotations

from hp_memory.offload.graph import Graph, Node, Output, Parameter, ParameterRef
from hp_memory.offload.graph_json import GraphFormatError, graph_from_dict, plan_to_dict
from hp_memory.offload.operations import HyperOffloadOperations, Operation
from hp_memory.offload.optimizer import HyperOffloadInput, HyperOffloadPlan, ReloadWithoutUserError, run
from hp_memory.offload.settings import OffloadCommandSettings, OffloadSettings

__all__ = [
    "Graph",
    "GraphFormatError",
    "HyperOffloadInput",
    "HyperOffloadOperations",
    "HyperOffloadPlan",
    "Node",
    "OffloadCommandSettings",
    "OffloadSettings",
    "Operation",
    "Output",
    "Parameter",
    "ParameterRef",
    "ReloadWithoutUserError",
    "graph_from_dict",
    "plan_to_dict",
    "run",
]
