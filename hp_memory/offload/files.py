"""The files the commands read: a graph in either form, kernel times, a log, and which parameters are remote."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable
from fnmatch import fnmatchcase

from hp_memory.errors import ConfigError, nearest
from hp_memory.offload.actor_set import read_actor_set
from hp_memory.offload.graph import Graph
from hp_memory.offload.graph_json import GraphFormatError, graph_from_dict

MOST_MICROSECONDS = 1e12  # eleven days: no kernel takes longer


def read_graph(path: str) -> Graph:
    """A dump (``.ir``) or JSON (``.json``).

    Raises:
        ConfigError: another ending, no text, or what isn't understood, with the line or the place.
    """
    if not path.endswith((".ir", ".json")):
        raise ConfigError("graph", path, "is read as a dump or as JSON", [".ir", ".json"])
    try:
        graph = read_actor_set(path) if path.endswith(".ir") else read_json(path)
    except GraphFormatError as error:
        raise ConfigError("graph", path, str(error).removeprefix(path).lstrip(":").strip()) from error
    except UnicodeDecodeError as error:
        raise ConfigError("graph", path, f"is no text in UTF-8 (byte {error.start})") from error
    if not graph.nodes:
        raise ConfigError("graph", path, "has no kernels: nothing can be planned")
    return graph


def read_json(path: str) -> Graph:
    with open(path, encoding="utf-8-sig") as file:
        try:
            data = json.load(file)
        except (json.JSONDecodeError, RecursionError) as error:
            where = f"{error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise GraphFormatError(f"{path}:{where}") from error
    return graph_from_dict(data, path)


def mark_remote(graph: Graph, patterns: list[str]) -> None:
    """Mark parameters whose names match as living on the host.

    Raises:
        ConfigError: a pattern that matches no parameter.
    """
    for k, pattern in enumerate(patterns):
        matched = [parameter for name, parameter in graph.parameters.items() if fnmatchcase(name, pattern)]
        if not matched:
            raise ConfigError(f"remote[{k}]", pattern, "matches no parameter of the graph", some(graph.parameters))
        for parameter in matched:
            parameter.remote = True


def read_kernel_times(path: str, graph: Graph) -> dict[str, float]:
    """Microseconds by kernel name from a CSV with the columns ``name,us``.

    Raises:
        ConfigError: no text, no such columns, a time that is none, or a name that is no kernel or comes twice.
    """
    names = {node.name for node in graph.nodes}
    found: dict[str, float] = {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            missing = [column for column in ("name", "us") if column not in (rows.fieldnames or ())]
            if missing:
                raise ConfigError("kernel_times", path, f"has no column {missing[0]}: the first line must be name,us")
            for row in rows:
                name, time = row["name"], microseconds(path, rows.line_num, row["us"])
                if name not in names:
                    why = f"line {rows.line_num}: {name!r} is no kernel of the graph"
                    raise ConfigError("kernel_times", path, why + suggestion(name, names))
                if name in found:
                    raise ConfigError("kernel_times", path, f"line {rows.line_num}: {name!r} comes twice")
                found[name] = time
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError("kernel_times", path, f"is no CSV in UTF-8: {error}") from error
    if not found:
        raise ConfigError("kernel_times", path, "has no times")
    return found


def microseconds(path: str, line: int, text: str | None) -> float:
    try:
        time = float(text or "")
    except ValueError:
        time = math.nan
    if not 0 <= time <= MOST_MICROSECONDS:
        raise ConfigError("kernel_times", path, f"line {line}: us={text!r} is no time in microseconds")
    return time


def suggestion(name: str, names: set[str]) -> str:
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""


def some(names: Iterable[str]) -> list[str]:
    """A few names for an error: a graph may have thousands."""
    listed = sorted(names)
    return listed if len(listed) <= 10 else [*listed[:10], f"and {len(listed) - 10} more"]
