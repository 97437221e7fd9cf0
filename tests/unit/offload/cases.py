"""Cases in the form of the golden files: their settings, our plan for them, and how two results differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hp_memory.offload import HyperOffloadInput, HyperOffloadPlan, OffloadSettings, graph_from_dict, run

MOVES = {(True, False): "weight", (False, True): "activation", (True, True): "all"}


def settings_of(config: Mapping[str, Any]) -> OffloadSettings:
    names = OffloadSettings.__dataclass_fields__
    settings = OffloadSettings(
        auto_offload=MOVES[config["enable_parameter"], config["enable_activation"]],
        **{name: value for name, value in config.items() if name in names and name != "filter_percentage"},
    )
    if "filter_percentage" in config:
        settings.filter_percentage = int(config["filter_percentage"])
    return settings


def plan_of(case: Mapping[str, Any]) -> HyperOffloadPlan:
    graph = {key: case[key] for key in ("parameters", "nodes", "graph_outputs")}
    return run(HyperOffloadInput(graph_from_dict(graph), settings_of({"headroom": 0} | case["config"])))


def key(ref: Any) -> str:
    return json.dumps(ref, sort_keys=True)


def by_datum(operations: list[dict[str, Any]]) -> dict[str, list[tuple]]:
    """The slot's operations for each tensor: MindSpore orders different tensors by address."""
    found: dict[str, list[tuple]] = {}
    for operation in operations:
        rest = tuple(operation.get(name) for name in ("op", "stream", "event", "side", "copy"))
        found.setdefault(key(operation["data"]), []).append(rest)
    return found


def differences(case: Mapping[str, Any], want: Mapping[str, Any], result: Mapping[str, Any]) -> list[tuple]:
    if want["error"] or result["error"]:
        return [] if want["error"] == result["error"] else [(want["error"], result["error"])]
    slots = zip([want["pre"], *want["after"]], [result["pre"], *result["after"]], strict=True)
    wrong = [(k - 1, a, b) for k, (a, b) in enumerate(slots) if by_datum(a) != by_datum(b)]
    for node in case["nodes"]:
        a, b = (side["inputs"].get(node["name"], node["inputs"]) for side in (want, result))
        if key(a) != key(b):
            wrong.append((node["name"], a, b))
    if key(want["graph_outputs"]) != key(result["graph_outputs"]):
        wrong.append(("outputs", want["graph_outputs"], result["graph_outputs"]))
    return wrong
