"""What a comparison is told to do, as a file in its run directory. No MindSpore here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hp_memory.layout import ActivationPlan, from_dict

JOB = "compare.json"


@dataclass(frozen=True)
class Job:
    """What to compare: a plan per layout, in order; the first is what the others are held against."""

    plans: Mapping[str, ActivationPlan]
    steps: int
    timed_steps: int


def read_job(run_dir: Path) -> Job:
    """What ``write_job`` wrote."""
    data = json.loads((run_dir / JOB).read_text())
    plans = {name: from_dict(plan) for name, plan in data["plans"].items()}
    return Job(plans, data["steps"], data["timed_steps"])


def write_job(run_dir: Path, job: Job) -> None:
    """Leaves the job for the workers."""
    data = {"plans": {name: plan.to_dict() for name, plan in job.plans.items()}}
    (run_dir / JOB).write_text(json.dumps(data | {"steps": job.steps, "timed_steps": job.timed_steps}))
