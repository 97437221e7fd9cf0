"""Time and memory of the offload planner on synthetic training steps: ``python benchmarks/offload_planner.py``.

Each size runs in a process of its own, pinned to one core where that is possible. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time

from hp_memory.offload import Graph, HyperOffloadInput, Node, OffloadSettings, Output, Parameter, ParameterRef, run
from hp_memory.offload.draft import Draft
from hp_memory.offload.profile import memory_profile
from hp_memory.offload.users import collect_all_node_users

SHARE = 0.8  # of the peak: the "share" case moves as much as it takes to get there
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)


def training_step(kernels: int) -> Graph:
    """A forward chain and a backward chain that reads each forward result once more, in reverse."""
    forward = kernels // 2
    weight = ParameterRef("w")
    refs = [Output(k) for k in range(kernels)]
    sizes = [((k * 7919) % 4096 + 1) * 1024 for k in range(4096)]
    nodes = [Node("n0", "Op", (weight,), (sizes[0],))]
    for k in range(1, kernels):
        inputs = (refs[k - 1], weight) if k < forward else (refs[k - 1], refs[max(0, 2 * forward - 1 - k)])
        nodes.append(Node(f"n{k}", "Op", inputs, (sizes[k % 4096],)))
    return Graph(nodes, {"w": Parameter("w", 4096)}, (refs[-1],))


def settings_for(case: str, kernels: int, graph: Graph) -> OffloadSettings:
    settings = OffloadSettings(auto_offload="activation")
    if case == "all":
        settings.select_num = kernels
    if case == "peak":
        # About 200 of the largest data cover the peak of a step of this size.
        settings.strategy, settings.headroom = "peak", 0
        settings.max_device_memory = kernels // 2 * 2049 * 1024 - 200 * 4096 * 1024
    if case == "share":
        settings.strategy, settings.headroom = "peak", 0
        settings.max_device_memory = int(
            SHARE * memory_profile(Draft(graph), collect_all_node_users(Draft(graph), True)).values.max()
        )
    return settings


def measure(case: str, kernels: int) -> dict[str, float]:
    """Wall seconds of building and planning, peak resident bytes of the process, and what was planned."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    started = time.perf_counter()
    graph = training_step(kernels)
    settings = settings_for(case, kernels, graph)
    built = time.perf_counter()
    cpu = time.process_time()
    plan = run(HyperOffloadInput(graph, settings))
    planned, cpu = time.perf_counter(), time.process_time() - cpu
    return {
        "case": case,
        "kernels": kernels,
        "build_s": round(built - started, 3),
        "plan_s": round(planned - built, 3),
        "plan_cpu_s": round(cpu, 3),
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "offloaded": len(plan.offload_infos),
        "operations": len(plan.operations),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--cases", nargs="*", default=["default", "all", "peak", "share"])
    parser.add_argument("--one", nargs=2, metavar=("CASE", "KERNELS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]))))
        return
    rows = []
    for case in args.cases:
        for size in args.sizes:
            command = [sys.executable, __file__, "--one", case, str(size)]
            rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            print(rows[-1], file=sys.stderr)
    print(json.dumps({"benchmark": "offload_planner", "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
