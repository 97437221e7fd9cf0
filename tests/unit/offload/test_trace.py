from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from hp_memory.offload import HyperOffloadInput, OffloadSettings, graph_from_dict, run
from hp_memory.offload.graph_json import GRAPH_KEYS
from hp_memory.offload.ids import std_hash
from hp_memory.offload.trace import Trace, TraceFormatError, differences, parse_traces, planned_trace

DATA = Path(__file__).parents[2] / "data" / "offload"
PREFIX = "[INFO] HYPER_OFFLOAD(7,python):2026-01-01 [hyper_offload_operation.cc:179] operator()] "


@pytest.fixture(scope="module")
def case():
    lines = lzma.decompress((DATA / "golden" / "peak.jsonl.xz").read_bytes()).splitlines()
    return next(case for case in map(json.loads, lines) if case["id"] == "g-peak-0006")


@pytest.fixture(scope="module")
def planned(case):
    config = case["config"]
    names = ("strategy", "prefetch_distance", "release_distance", "max_device_memory", "headroom", "score_weights")
    settings = OffloadSettings(auto_offload="activation", **{name: config[name] for name in names})
    return run(HyperOffloadInput(graph_from_dict({key: case[key] for key in GRAPH_KEYS}), settings))


@pytest.fixture(scope="module")
def lines():
    """What MindSpore's optimizer printed for this graph."""
    return (DATA / "peak_0006.trace.log").read_text().splitlines()


def test_the_optimizers_own_trace_agrees_with_the_plan(planned, lines):
    (trace,) = parse_traces(lines)
    assert differences(planned, trace) == []


def test_a_lost_and_a_moved_operation_are_reported(planned, lines):
    lost = [line for line in lines if "CopyToHost" not in line or "CNode_28," not in line]
    assert len(lost) == len(lines) - 1
    (text,) = differences(planned, parse_traces(lost)[0])
    assert text.startswith("after kernel 5 (n5), n5: send stream 0, recv stream 1, copy_to_host")
    moved = [*lines]
    k = next(i for i, line in enumerate(lines) if "CopyToDevice" in line)
    origin = next(i for i in range(k, len(lines)) if "[Origin]" in lines[i])
    moved.insert(origin + 1, moved.pop(k))
    assert len(differences(planned, parse_traces(moved)[0])) == 2


def test_another_graph_is_told_from_another_plan(planned, lines):
    (text,) = differences(planned, Trace(planned_trace(planned).kernels[:-1]))
    assert text.startswith("18 kernels planned, 17 run; not run: n17")
    other = planned_trace(planned)
    other.kernels[3] = std_hash("other")
    (text,) = differences(planned, other)
    assert text.startswith("kernel 3 is n3 in the plan")


def test_operations_before_the_first_kernel_and_write_backs_are_read():
    text = [
        "noise of another submodule",
        PREFIX + "========== HyperOffloadOperations Trace Start ==========",
        PREFIX + "[Pre-Operations]:",
        PREFIX + "    [Added] @g:CNode_9{[0]: ValueNode<Primitive> PrimFunc_CopyToDevice, [1]: param_w} OffloadId: 5",
        PREFIX + "[0] [Origin] @g:CNode_2{[0]: ValueNode<Primitive> Op, [1]: CNode_9} OffloadId: 8",
        PREFIX + "    [Added] @g:CNode_3{[0]: ValueNode<Primitive> PrimFunc_CopyToHostExt, [1]: CNode_9} OffloadId: 5",
        PREFIX + "========== HyperOffloadOperations Trace End ==========",
    ]
    (trace,) = parse_traces(text)
    assert {slot: [op.op for op in ops] for slot, ops in trace.slots.items()} == {
        -1: ["copy_to_device"],
        0: ["copy_to_host_inplace"],
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [line for line in lines if "Start" not in line], "no 'HyperOffloadOperations"),
        (lambda lines: lines[:-1], "doesn't end"),
        (lambda lines: [lines[0], *lines[2:]], "kernel 1 where 0 was due"),
        (lambda lines: [line.replace("FreeData", "Strange") for line in lines], "not an operation"),
        (lambda lines: [*lines[:5], PREFIX + "[Odd] line", *lines[5:]], "log:6: not understood"),
    ],
)
def test_a_log_that_is_not_understood_is_an_error(lines, change, words):
    with pytest.raises(TraceFormatError, match=words):
        parse_traces(change(lines))
