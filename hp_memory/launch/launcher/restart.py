"""Starting a failed job again from its last complete checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

from hp_memory.launch.launcher.supervise import Outcome
from hp_memory.runs import mindformers_checkpoints as checkpoints
from hp_memory.runs.checkpoint import Say, newest

# Another attempt would end the same way.
FINAL = ("config", "missing package", "disk full", "interrupted")


def last_complete(run_dir: str | Path, say: Say = print) -> Path | None:
    """The run's newest whole checkpoint, or None; one that was being written when the job died isn't complete.

    Either trainer's: each names its folders in its own way.

    Args:
        say: gets a line for each damaged one that is passed over.
    """
    return newest(Path(run_dir), say) or checkpoints.newest(Path(run_dir) / checkpoints.FOLDER, say)


def is_worth_it(outcome: Outcome) -> bool:
    """Whether the same job may end differently when it is started again."""
    return outcome.exit_code != 0 and outcome.kind not in FINAL and not outcome.leftovers


def keep_logs(run_dir: str | Path, attempt: int) -> None:
    """Moves an attempt's logs aside: msrun empties a log file it opens."""
    logs = Path(run_dir) / "logs"
    if logs.exists():
        logs.rename(Path(run_dir) / f"logs_attempt_{attempt}")


def main(run_dir: str) -> None:
    """Prints the checkpoint to continue from, or nothing; scripts run this module with the run directory."""
    print(last_complete(run_dir, lambda line: print(line, file=sys.stderr)) or "")


if __name__ == "__main__":
    main(sys.argv[1])
