"""Memory and time of the shipped layouts, side by side in one job: ratios to `none` and to `full`, as JSON.

    python benchmarks/layouts.py --steps 30 --out layouts.json

Layouts take turns step by step, so the ratios are of paired steps; absolute times say little about another machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import quantiles
from typing import Any

from rich import print_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30, help="timed steps per layout")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = [str(Path(sys.executable).parent / "hp-memory"), "compare", "recipe=tiny_moe"]
        subprocess.run([*command, f"timed_steps={args.steps}", f"run_dir={run_dir}"], check=True)
        report = json.loads((run_dir / "report.json").read_text())
    layouts = report["ranks"]["0"]["layouts"]
    held = {name: sum(by_region.values()) for name, by_region in report["held_per_moe_layer"].items()}
    result = {"steps": args.steps, "environment": report["environment"], "layouts": _ratios(layouts, held)}
    print_json(data=result)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


def _ratios(layouts: Mapping[str, Any], held: Mapping[str, float]) -> dict[str, Any]:
    return {
        name: {
            "bytes_per_moe_layer": held[name],
            "memory_to_none": held[name] / held["none"],
            "memory_to_full": held[name] / held["full"],
            "time_to_none": _paired(layouts[name], layouts["none"]),
            "time_to_full": _paired(layouts[name], layouts["full"]),
        }
        for name in layouts
    }


def _paired(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, float]:
    ratios = [a / b for a, b in zip(one["seconds"]["steps"], other["seconds"]["steps"], strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    return {"median": middle, "q25": low, "q75": high}


if __name__ == "__main__":
    main()
