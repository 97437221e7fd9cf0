"""One rank of ``engine=mindformers``: ``python -m hp_memory.mindformers.worker --run-dir DIR``.

Started by the launcher. Reads ``config.yaml`` and ``plan.json`` there; writes ``progress/``, MindFormers' logs and
checkpoints, the callback's report and, like the reference trainer's worker, ``result.json``. A restart's checkpoint is
loaded by MindFormers itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from omegaconf import OmegaConf

from hp_memory.config.schema import HPConfig
from hp_memory.layout import plan_file
from hp_memory.mindformers import standin, trainer
from hp_memory.runs import ranks
from hp_memory.train.process import run_worker, set_device
from hp_memory.train.run_files import read_config


def train(run_dir: Path) -> None:
    """Trains as the run directory's config says."""
    schema = OmegaConf.structured(HPConfig)
    cfg = cast(HPConfig, OmegaConf.to_object(OmegaConf.merge(schema, read_config(run_dir))))
    plan = plan_file.read(run_dir / plan_file.NAME)
    standin.refuse_ranks(ranks.world_size())
    set_device()
    result = trainer.run(cfg, plan, run_dir)
    if ranks.rank() == trainer.reporting_rank(cfg.parallel):
        (run_dir / "result.json").write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    run_worker(train)
