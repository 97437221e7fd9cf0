"""A MindRecord dataset for MindFormers' own loader: what is asked of it, and its section of a training config.

MindFormers shards it over the data parallel ranks and continues it after a resume itself
(``pynative/trainer/utils.py: _build_dataset``, ``pynative/trainer/trainer.py: Trainer._load_checkpoint``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hp_memory.errors import ConfigError
from hp_memory.train.data import COLUMNS

if TYPE_CHECKING:
    from hp_memory.config.schema import HPConfig

_PATH = "data.mindrecord"


def section(file: str) -> dict[str, Any]:
    """MindFormers' ``train_dataset`` for this file, rows in the file's order."""
    loader = {"type": "MindDataset", "dataset_files": str(Path(file).resolve()), "column_names": list(COLUMNS)}
    return {"dataloader": loader | {"shuffle": False}, "num_parallel_workers": 1}


def check(cfg: HPConfig) -> None:
    """Reads the file's size and first row.

    Raises:
        ConfigError: for a file that can't be read, lacks a column, holds sequences of another length or tokens that the
            model has no row for, or has fewer sequences than one global batch.
    """
    file = cfg.data.mindrecord
    assert file is not None, "asked only where a file is given"
    try:
        rows, first = _open(file)
    except RuntimeError as error:
        raise ConfigError(_PATH, file, f"can't be read as MindRecord: {str(error).splitlines()[0]}") from error
    missing = [name for name in COLUMNS if name not in first]
    if missing:
        raise ConfigError(_PATH, file, f"has no column {missing[0]!r}, only {', '.join(first)}")
    length = first[COLUMNS[0]].size
    if length != cfg.model.seq_length:
        raise ConfigError(_PATH, file, f"has sequences of {length} tokens, model.seq_length is {cfg.model.seq_length}")
    highest = max(int(first[name].max()) for name in COLUMNS)
    if highest >= cfg.model.vocab_size:
        raise ConfigError(_PATH, file, f"has token {highest}, model.vocab_size is {cfg.model.vocab_size}")
    batch = cfg.train.micro_batch_size * cfg.train.micro_batches * cfg.parallel.data
    if rows < batch:
        raise ConfigError(_PATH, file, f"has {rows} sequences, one global batch needs {batch}")


def _open(file: str) -> tuple[int, dict[str, Any]]:
    import mindspore.dataset as ds

    dataset = ds.MindDataset(file, shuffle=False, num_parallel_workers=1)
    return dataset.get_dataset_size(), next(dataset.create_dict_iterator(num_epochs=1, output_numpy=True))
