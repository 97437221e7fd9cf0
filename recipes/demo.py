"""The main job, as `make demo` runs it: train, resume and compare, each by the command a user would type.

Writes ``runs/demo/<time>/{train,resume,compare}`` and, above them, one ``report.html`` and ``report.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from hp_memory.report.page import Picture, Text, write_page
from hp_memory.report.table import Table, console
from hp_memory.runs.progress import read_progress

STEPS, SAVED_AT, RESUMED_TO = 120, 100, 110
CONSOLE = console()


def main() -> int:
    """Returns 0 if all three jobs ended well and their numbers are what they must be."""
    root = Path("runs/demo") / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    saved = root / "train" / "checkpoints" / f"step_{SAVED_AT:08d}"
    jobs = {
        "train": ["train", f"train.steps={STEPS}", f"train.save_every={SAVED_AT}"],
        # Under another layout than the one that wrote the checkpoint.
        "resume": ["train", "layout=full", f"train.resume_from={saved}", f"train.steps={RESUMED_TO}",
                   f"train.decay_steps={STEPS}", "train.save_last=false", "train.eval_batches=0"],
        "compare": ["compare"],
    }  # fmt: skip
    for name, (command, *overrides) in jobs.items():
        argv = ["hp-memory", command, "recipe=tiny_moe", *overrides, f"run_dir={root / name}"]
        CONSOLE.rule(" ".join(argv))
        code = subprocess.run([str(Path(sys.executable).parent / argv[0]), *argv[1:]]).returncode
        if code:
            return code
    return report(root)


def report(root: Path) -> int:
    """The findings of the three jobs, on the screen and as one page."""
    trained = json.loads((root / "train" / "report.json").read_text())["result"]
    first, second = (losses(root / name) for name in ("train", "resume"))
    same = all(first[step] == loss for step, loss in second.items())
    learned = trained["mean_of_last_10"] < trained["unigram_entropy"] - 0.5
    layouts = json.loads((root / "compare" / "report.json").read_text())
    equal = not any(layouts["differences"].values())
    rows = [
        [f"loss {trained['mean_of_last_10']:.3f} is 0.5 below the unigram entropy {trained['unigram_entropy']:.3f}",
         "yes" if learned else "NO"],
        [f"steps {SAVED_AT + 1}-{RESUMED_TO} resumed under layout `full` repeat the losses bit for bit",
         "yes" if same else "NO"],
        [f"losses, gradients, parameters equal bit for bit under {', '.join(layouts['differences'])}",
         "yes" if equal else "NO"],
    ]  # fmt: skip
    table = Table("Demo", ["what must hold", "holds"], rows)
    CONSOLE.print(table.rich())
    data = {"learned": learned, "resumed_exactly": same, "layouts_equal": equal, "train": trained}
    (root / "report.json").write_text(json.dumps(data, indent=1))
    pictures = [
        Picture(root / "train" / "loss.png", "Loss by step, and the entropy of single tokens"),
        Picture(root / "compare" / "layouts.png", "Activations held per MoE layer, by layout and region"),
    ]
    pages = Text("More", "train/report.html\nresume/report.html\ncompare/report.html")
    write_page(root / "report.html", "hp-memory demo", [table, *pictures, pages])
    CONSOLE.print(f"report {root / 'report.html'}", soft_wrap=True)
    return 0 if learned and same and equal and second else 1


def losses(run_dir: Path) -> dict[int, float]:
    """Loss by step."""
    return {record["step"]: record["loss"] for record in read_progress(run_dir) if "loss" in record}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        # The command that was running has ended its workers by itself.
        sys.exit(130)
