"""Plans against those of MindSpore 2.10.0's own optimizer, per slot and per datum."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from hp_memory.offload import HyperOffloadInput, OffloadSettings, graph_from_dict, plan_to_dict, run

GOLDEN = Path(__file__).parents[2] / "data" / "offload" / "golden"
COUNTS = {"distance": 204, "parameter": 55, "mixed": 53, "peak": 43, "large": 13, "tuple": 9}


def settings_of(config):
    enabled = (config["enable_parameter"], config["enable_activation"])
    names = ("strategy", "select_distance", "select_num", "prefetch_distance", "release_distance")
    settings = OffloadSettings(
        auto_offload={(True, False): "weight", (False, True): "activation", (True, True): "all"}[enabled],
        **{name: config[name] for name in names},
    )
    if config["strategy"] == "peak":
        settings.max_device_memory, settings.headroom = config["max_device_memory"], config["headroom"]
        settings.score_weights = config["score_weights"]
    return settings


def key(ref):
    return json.dumps(ref)


def by_datum(operations):
    """The slot's operations for each datum: MindSpore orders different data by address."""
    found = {}
    for operation in operations:
        rest = tuple(operation.get(name) for name in ("op", "stream", "event", "side", "copy"))
        found.setdefault(key(operation["data"]), []).append(rest)
    return found


def differences(case, result):
    want = case["expected"]
    if want["error"] or result["error"]:
        return [] if want["error"] == result["error"] else [(want["error"], result["error"])]
    slots = zip([want["pre"], *want["after"]], [result["pre"], *result["after"]], strict=True)
    wrong = [(k - 1, a, b) for k, (a, b) in enumerate(slots) if by_datum(a) != by_datum(b)]
    for node in case["nodes"]:
        a, b = (side["inputs"].get(node["name"], node["inputs"]) for side in (want, result))
        if a != b:
            wrong.append((node["name"], a, b))
    if want["graph_outputs"] != result["graph_outputs"]:
        wrong.append(("outputs", want["graph_outputs"], result["graph_outputs"]))
    return wrong


@pytest.mark.parametrize("name", COUNTS)
def test_agrees_with_mindspores_optimizer(name):
    checked = 0
    for line in lzma.decompress((GOLDEN / f"{name}.jsonl.xz").read_bytes()).splitlines():
        case = json.loads(line)
        plan = run(HyperOffloadInput(graph_from_dict(case), settings_of(case["config"])))
        assert differences(case, plan_to_dict(plan)) == [], case["id"]
        checked += 1
    assert checked == COUNTS[name]
