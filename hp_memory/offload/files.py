"""The files the commands read: a graph in either form, kernel times, and which parameters are remote."""

from __future__ import annotations

import csv
import json
from fnmatch import fnmatchcase

from hp_memory.errors import ConfigError
from hp_memory.offload.actor_set import read_actor_set
from hp_memory.offload.graph import Graph
from hp_memory.offload.graph_json import GraphFormatError, graph_from_dict


def read_graph(path: str) -> Graph:
    """A dump (``.ir``) or JSON (``.json``).

    Raises:
        ConfigError: another ending.
        GraphFormatError: naming the file and line.
    """
    if path.endswith(".ir"):
        return read_actor_set(path)
    if not path.endswith(".json"):
        raise ConfigError("graph", path, "is read as a dump or as JSON", [".ir", ".json"])
    with open(path, encoding="utf-8") as file:
        try:
            data = json.load(file)
        except json.JSONDecodeError as error:
            raise GraphFormatError(f"{path}:{error.lineno}: {error.msg}") from error
    return graph_from_dict(data, path)


def mark_remote(graph: Graph, patterns: list[str]) -> None:
    """Mark parameters whose names match as living on the host.

    Raises:
        ConfigError: a pattern that matches no parameter.
    """
    for k, pattern in enumerate(patterns):
        matched = [parameter for name, parameter in graph.parameters.items() if fnmatchcase(name, pattern)]
        if not matched:
            raise ConfigError(f"remote[{k}]", pattern, "matches no parameter of the graph", graph.parameters)
        for parameter in matched:
            parameter.remote = True


def read_kernel_times(path: str, graph: Graph) -> dict[str, float]:
    """Microseconds by kernel name from a CSV with the columns ``name,us``.

    Raises:
        ConfigError: a column is missing, a time is no number, or a name is no kernel of the graph.
    """
    names = {node.name for node in graph.nodes}
    found: dict[str, float] = {}
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                name, time = row["name"], float(row["us"])
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError("kernel_times", path, f"needs the columns name and us: {row}") from error
            if name not in names:
                raise ConfigError("kernel_times", name, "is no kernel of the graph", names)
            if not time >= 0:
                raise ConfigError("kernel_times", row["us"], f"is no time for {name}")
            found[name] = time
    return found
