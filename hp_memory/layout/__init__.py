"""Regions, actions, layouts and plans: plain data, without MindSpore."""

from hp_memory.layout.layout import Layout, make_layout
from hp_memory.layout.plan import ActivationPlan, LayerPlan, ModelFingerprint, build_plan, from_dict, refuse_offload
from hp_memory.layout.regions import ACTIONS, ALWAYS_SAVED, GROUPS, REGIONS, REGIONS_OF_KIND, expand
from hp_memory.layout.settings import LayerOverride, LayoutSettings

__all__ = [
    "ACTIONS",
    "ALWAYS_SAVED",
    "GROUPS",
    "REGIONS",
    "REGIONS_OF_KIND",
    "ActivationPlan",
    "LayerOverride",
    "LayerPlan",
    "Layout",
    "LayoutSettings",
    "ModelFingerprint",
    "build_plan",
    "expand",
    "from_dict",
    "make_layout",
    "refuse_offload",
]
