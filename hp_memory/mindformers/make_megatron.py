"""Writes the shipped text in Megatron's format: ``python -m hp_memory.mindformers.make_megatron PREFIX``.

``PREFIX.bin`` holds the tokens as int32, ``PREFIX.idx`` the lengths of the documents. MindFormers' own writer is used.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from hp_memory.mindformers import environment
from hp_memory.train.data import load_corpus
from hp_memory.train.settings import DataSettings

_DOCUMENT = 4096  # tokens


def write(tokens: np.ndarray, prefix: Path) -> int:
    """Cuts ``tokens`` (N,) into documents and writes them; says how many."""
    # MindFormers writes its log below it.
    os.environ.setdefault("LOCAL_DEFAULT_PATH", str(prefix.parent / "mindformers"))
    environment.prepare(1)
    from mindformers.dataset.blended_datasets.indexed_dataset import IndexedDatasetBuilder

    prefix.parent.mkdir(parents=True, exist_ok=True)
    documents = [tokens[start : start + _DOCUMENT].astype(np.int32) for start in range(0, tokens.size, _DOCUMENT)]
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    for document in documents:
        builder.add_document(document, [document.size])
    builder.finalize(f"{prefix}.idx")
    return len(documents)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    print(f"wrote {write(load_corpus(DataSettings()).train, where)} documents to {where}.bin and .idx")
