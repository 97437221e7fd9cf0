"""Writes the shipped text as MindRecord: ``python -m hp_memory.train.make_dataset OUTPUT SEQ_LENGTH``.

One row is a sequence: ``input_ids`` and the ``labels`` that follow them, both (SEQ_LENGTH,) int32, as MindFormers'
MindDataset loader reads them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from mindspore.mindrecord import FileWriter

from hp_memory.train.data import COLUMNS, load_corpus
from hp_memory.train.settings import DataSettings


def write(tokens: np.ndarray, seq_length: int, output: Path) -> int:
    """Cuts ``tokens`` (N,) into sequences, writes them to ``output`` and ``output.db`` (its index); says how many."""
    starts = range(0, tokens.size - seq_length, seq_length)
    rows = [{"input_ids": tokens[i : i + seq_length], "labels": tokens[i + 1 : i + 1 + seq_length]} for i in starts]
    output.parent.mkdir(parents=True, exist_ok=True)
    writer = FileWriter(str(output), 1, overwrite=True)
    writer.add_schema({name: {"type": "int32", "shape": [seq_length]} for name in COLUMNS})
    writer.write_raw_data(rows)
    writer.commit()
    return len(rows)


if __name__ == "__main__":
    file, length = Path(sys.argv[1]), int(sys.argv[2])
    print(f"wrote {write(load_corpus(DataSettings()).train, length, file)} sequences of {length} tokens to {file}")
