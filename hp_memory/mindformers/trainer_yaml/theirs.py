"""A plan put into someone's own YAML: as our callback, or as MindFormers' own settings."""

from __future__ import annotations

from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.host.settings import HostSettings
from hp_memory.layout import ActivationPlan, LayoutSettings, expand, refuse_offload
from hp_memory.layout.regions import ALWAYS_SAVED
from hp_memory.mindformers import conflicts, names
from hp_memory.mindformers.trainer_yaml import graph_settings, native_settings
from hp_memory.mindformers.trainer_yaml.callbacks import OURS
from hp_memory.mindformers.trainer_yaml.insert import with_sections
from hp_memory.mindformers.trainer_yaml.reading import Reading
from hp_memory.mindformers.trainer_yaml.train_config import stanza

CALLBACK_TARGET, GRAPH_TARGET = "mindformers-callback", "mindformers-graph"
_OFF = {
    "recompute": {"mode": "None"},
    "recompute_comm": {"enable": False},
    "swap": {"enable": False},
}


def with_plan(
    reading: Reading, layout: LayoutSettings, plan: ActivationPlan, to: str, host: HostSettings | None = None
) -> str:
    """The file's text with the plan in it, every other line as it was.

    Args:
        reading: the file.
        layout: what the callback is given.
        plan: the same for this model.
        to: which form, see ``hp-memory export``.
        host: what the callback is given for the plan's offloaded regions; None for the defaults.

    Raises:
        ConfigError: for a form that isn't the Trainer's, or that can't say the plan.
    """
    document = reading.document
    if document.trainer == "graph":
        return _graph(reading, layout, plan, to)
    if to == GRAPH_TARGET:
        raise ConfigError("to", to, f"{document.file} is the PyNative Trainer's", (CALLBACK_TARGET, "mindformers-2.0"))
    sections: dict[str, Any]
    if to == CALLBACK_TARGET:
        sections = {name: off if name in document.data else None for name, off in _OFF.items()}
        conflicts.refuse({**document.data, **{n: s for n, s in sections.items() if s}}, with_plan=True)
        return with_sections(document, sections, stanza(layout, host or HostSettings()))
    sections = native_settings.sections(plan, to.removeprefix("mindformers-"))
    for name in ("recompute_comm", "swap"):
        if name not in document.data:
            sections[name] = None
    conflicts.refuse({**document.data, **sections}, with_plan=False)
    return with_sections(document, sections, None)


def _graph(reading: Reading, layout: LayoutSettings, plan: ActivationPlan, to: str) -> str:
    refuse_offload(plan, "a compiled graph moves data by HyperOffload's settings only")
    document, pipeline = reading.document, reading.spread.pipeline
    before = document.get("recompute_config", {})
    if to == CALLBACK_TARGET:
        _refuse_inside_experts(plan)
        off = {**{k: v for k, v in before.items() if "select" not in k}, "recompute": False}
        return with_sections(document, {"recompute_config": off}, stanza(layout, HostSettings(), OURS["graph"]))
    if to != GRAPH_TARGET:
        raise ConfigError("to", to, f"{document.file} is the graph Trainer's", (GRAPH_TARGET, CALLBACK_TARGET))
    chunks = (
        pipeline.layers_of_chunks(reading.model.model.num_layers)
        if pipeline.stages > 1
        else (tuple(range(reading.model.model.num_layers)),)
    )
    section = graph_settings.recompute_config(plan, chunks, pipeline.stages, before)
    return with_sections(document, {"recompute_config": section}, None)


def _refuse_inside_experts(plan: ActivationPlan) -> None:
    """What is inside a graph model's experts is no cell of its own, and can't be saved or replayed by itself."""
    cells = {region for name in names.CELLS for region in expand(name, "layout.save")}
    for layer in plan.layers:
        regions = plan.regions(layer.layer)
        if not layer.layout.replays(regions):
            continue
        for region in regions:
            if layer.layout.action(region) == "save" and region not in cells | set(ALWAYS_SAVED):
                why = f"is no cell of a graph model: layer {layer.layer} can't save it while it is replayed"
                raise ConfigError("layout.save", region, why, sorted(cells))
