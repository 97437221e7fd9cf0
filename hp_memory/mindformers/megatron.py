"""Megatron-format data (``.bin`` and ``.idx``) for MindFormers' own loader: what is asked of it, and its section.

MindFormers cuts, shuffles and shards it itself (``dataset/blended_datasets``). Its order hangs on the seed and on how
many sequences a training takes in all: one that is continued keeps its order as long as ``train.steps`` stays.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hp_memory.errors import ConfigError

if TYPE_CHECKING:
    from hp_memory.config.schema import HPConfig

_PATH = "data.megatron"
_MAGIC = b"MMIDIDX\x00\x00"
# Version, code of the tokens' type, sequences, entries of the document index.
_HEADER = struct.Struct("<QBQQ")
_TYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}
_LOOKED_AT = 1 << 20  # tokens of a file that are compared with the vocabulary
_COLUMNS = ("input_ids", "labels", "loss_mask", "position_ids")


@dataclass(frozen=True)
class Index:
    """What an ``.idx`` file says of its ``.bin``."""

    dtype: type
    tokens: int


def read_index(prefix: str) -> Index:
    """Reads the header and the sequences' lengths.

    Raises:
        ValueError: for a file of another format or version, or of types that hold no tokens.
    """
    data = Path(f"{prefix}.idx").read_bytes()
    start = len(_MAGIC) + _HEADER.size
    if len(data) < start or not data.startswith(_MAGIC):
        raise ValueError("isn't in Megatron's format")
    version, code, sequences, _ = _HEADER.unpack(data[len(_MAGIC) : start])
    dtype = _TYPES.get(code)
    if version != 1 or dtype is None or not np.issubdtype(dtype, np.integer):
        raise ValueError(f"has version {version} and type {code}; version 1 and integers can be read")
    if len(data) < start + 4 * sequences:
        raise ValueError("ends before its last sequence")
    return Index(dtype, int(np.frombuffer(data, np.int32, sequences, start).sum(dtype=np.int64)))


def section(cfg: HPConfig, cache: Path) -> dict[str, Any]:
    """MindFormers' ``train_dataset`` for all sequences of a training; ``cache`` receives the order it draws."""
    train = cfg.train
    batch = train.micro_batch_size * train.micro_batches * cfg.parallel.data
    config: dict[str, Any] = {
        "seed": cfg.data.seed,
        "seq_length": cfg.model.seq_length,
        "data_path": ["1", str(Path(str(cfg.data.megatron)).resolve())],
        "split": "1,0,0",
        "create_attention_mask": False,
        "create_compressed_eod_mask": False,
        "mmap_bin_files": True,
        "path_to_cache": str(cache.resolve()),
    }
    loader: dict[str, Any] = {
        "type": "BlendedMegatronDatasetDataLoader",
        "datasets_type": "GPTDataset",
        "config": config,
    }
    loader |= {"sizes": [train.steps * batch, 0, 0], "column_names": list(_COLUMNS), "shuffle": False}
    return {"dataloader": loader, "num_parallel_workers": 1}


def check(cfg: HPConfig) -> None:
    """Reads the index, the size of the tokens' file and its beginning.

    Raises:
        ConfigError: for files that can't be read or don't belong together, tokens that the model has no row for, or
            fewer tokens than one global batch.
    """
    prefix = str(cfg.data.megatron)
    try:
        index = read_index(prefix)
    except ValueError as error:
        raise ConfigError(_PATH, prefix, f"{prefix}.idx {error}") from error
    wanted = index.tokens * np.dtype(index.dtype).itemsize
    there = Path(f"{prefix}.bin").stat().st_size
    if there != wanted:
        raise ConfigError(_PATH, prefix, f"its .bin holds {there} bytes, its .idx describes {wanted}")
    batch = cfg.train.micro_batch_size * cfg.train.micro_batches * cfg.parallel.data
    # Each sequence has one token more, which the next one shares.
    sequences = (index.tokens - 1) // cfg.model.seq_length
    if sequences < batch:
        raise ConfigError(_PATH, prefix, f"has {max(sequences, 0)} sequences, one global batch needs {batch}")
    first: np.ndarray = np.fromfile(f"{prefix}.bin", index.dtype, min(index.tokens, _LOOKED_AT))
    if first.max() >= cfg.model.vocab_size:
        raise ConfigError(_PATH, prefix, f"has token {first.max()}, model.vocab_size is {cfg.model.vocab_size}")
