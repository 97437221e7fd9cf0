"""Starting a failed job again from its last complete checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hp_memory.launch import failure
from hp_memory.launch.launcher.supervise import Outcome
from hp_memory.runs import mindformers_checkpoints as checkpoints
from hp_memory.runs.checkpoint import Say, newest
from hp_memory.runs.files import read_text

# Another attempt would end the same way.
FINAL = ("config", "missing package", "disk full", "interrupted", failure.NOT_FINITE)


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


def attempts(run_dir: str | Path) -> int:
    """How many attempts of this run were started so far, by this command and by earlier ones."""
    numbers = [file.stem.split("_")[1] for file in (Path(run_dir) / "launch").glob("plan_*.json")]
    return max((int(number) + 1 for number in numbers if number.isdigit()), default=0)


def has_ended_well(run_dir: Path) -> bool:
    """Whether the last attempt's outcome says so."""
    try:
        file = run_dir / "launch" / f"outcome_{attempts(run_dir) - 1}.json"
        return json.loads(read_text(file))["exit_code"] == 0
    except (OSError, ValueError, KeyError, TypeError):
        return False


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
