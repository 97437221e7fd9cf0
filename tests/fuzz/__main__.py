"""Counts what becomes of many random programs. Exits with 1 where one failed."""

from __future__ import annotations

import argparse
import collections
import gc
import json
import sys

import mindspore as ms

from tests.fuzz.program import program
from tests.fuzz.verdict import judge, shrink


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--shrink", type=int, default=5, help="failures to make smaller")
    asked = parser.parse_args()
    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    ms.set_context(runtime_num_threads=1)
    ms.device_context.cpu.op_tuning.threads_num(1)
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    for seed in range(asked.first, asked.first + asked.programs):
        if seed % 50 == 0:
            gc.collect()
        verdict = judge(program(seed))
        counts[verdict.kind] += 1
        if verdict.kind != "equal":
            reasons[f"{verdict.kind}: {verdict.why[:140]}"] += 1
        if verdict.kind == "failed":
            print(f"program {seed}: {verdict.why}", flush=True)
            if counts["failed"] <= asked.shrink:
                small = shrink(program(seed))
                print(f"  {json.dumps(small)}\n  {judge(small).why}", flush=True)
    print(dict(counts))
    for reason, count in reasons.most_common(30):
        print(f"{count:6}  {reason}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
