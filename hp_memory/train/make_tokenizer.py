"""Trains the shipped byte-pair tokenizer: ``python -m hp_memory.train.make_tokenizer [OUTPUT]``."""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hp_memory.train.text import TEXT, TOKENIZER, read_text

VOCAB_SIZE = 1024


def train_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """A byte-level byte-pair tokenizer: every text can be encoded, and decoding gives the text back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


if __name__ == "__main__":
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else TOKENIZER
    train_tokenizer(read_text(TEXT), VOCAB_SIZE).save(str(output))
    print(f"wrote {output}")
