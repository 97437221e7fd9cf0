"""Text to batches of token ids, in an order that depends on the seed and the step only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from hp_memory.errors import ConfigError
from hp_memory.train.settings import DataSettings, TrainSettings
from hp_memory.train.text import read_text

# Of a dataset of tokens, as MindFormers reads it: ids, and the ids that follow them.
COLUMNS = ("input_ids", "labels")


@dataclass(frozen=True)
class Corpus:
    """Token ids (N,) int32 to train on and to validate with."""

    train: np.ndarray
    validation: np.ndarray

    @property
    def unigram_entropy(self) -> float:
        """Nats per token of the training text: the loss of the best guess that ignores all context."""
        return unigram_entropy(self.train)


def unigram_entropy(tokens: np.ndarray) -> float:
    """-sum p ln p over the tokens' frequencies p."""
    counts = np.bincount(tokens)
    shares = counts[counts > 0] / tokens.size
    return float(-(shares * np.log(shares)).sum())


def load_corpus(settings: DataSettings) -> Corpus:
    """Reads and encodes the text. Raises OSError where a file can't be read."""
    tokenizer = Tokenizer.from_file(str(settings.tokenizer_path))
    lines = read_text(settings.text_path).splitlines(keepends=True)
    pieces = [np.asarray(encoding.ids, np.int32) for encoding in tokenizer.encode_batch(lines)]
    tokens = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
    split = tokens.size - int(tokens.size * settings.validation_fraction)
    return Corpus(tokens[:split], tokens[split:])


def check_vocabulary(settings: DataSettings, vocab_size: int) -> None:
    """Raises ConfigError for a tokenizer that makes ids the model has no row for."""
    path = "data.tokenizer"
    try:
        made = Tokenizer.from_file(str(settings.tokenizer_path)).get_vocab_size()
    except Exception as error:  # the library raises no narrower class
        raise ConfigError(path, str(settings.tokenizer_path), f"is no tokenizer file: {error}") from error
    if made > vocab_size:
        raise ConfigError(path, str(settings.tokenizer_path), f"makes {made} ids, model.vocab_size is {vocab_size}")


@dataclass(frozen=True)
class MicroBatch:
    """Token ids and the ids that follow them, both (B, S) int32."""

    tokens: np.ndarray
    labels: np.ndarray


class Batches:
    """The micro-batches of each step, as one rank of ``world_size`` sees them.

    Every epoch visits every sequence once, in a new order. No state is carried between steps; resuming needs only the
    step number.
    """

    def __init__(
        self, tokens: np.ndarray, seq_length: int, settings: TrainSettings, rank: int, world_size: int, seed: int
    ) -> None:
        self.tokens, self.seq_length, self.settings = tokens, seq_length, settings
        self.rank, self.world_size, self.seed = rank, world_size, seed
        self.count = (tokens.size - 1) // seq_length
        self._orders: dict[int, np.ndarray] = {}
        if self.count < 1:
            raise ConfigError("data.text", tokens.size, f"has too few tokens for one sequence of {seq_length}")

    def require_global_batch(self) -> None:
        """Raises ConfigError unless one step's sequences are different ones."""
        batch = self.settings.micro_batch_size * self.settings.micro_batches * self.world_size
        if self.count < batch:
            raise ConfigError("data.text", self.count, f"sequences of {self.seq_length} tokens; a step needs {batch}")

    def step(self, step: int) -> list[MicroBatch]:
        """This rank's micro-batches of a step."""
        return [self._micro_batch(step, micro) for micro in range(self.settings.micro_batches)]

    def first(self, number: int) -> Iterator[MicroBatch]:
        """The first micro-batches in the text's own order, for validation."""
        size = self.settings.micro_batch_size
        for micro in range(number):
            start = (micro * self.world_size + self.rank) * size
            yield self._cut([(start + i) % self.count for i in range(size)])

    def _micro_batch(self, step: int, micro: int) -> MicroBatch:
        size = self.settings.micro_batch_size
        place = (step * self.settings.micro_batches + micro) * self.world_size + self.rank
        return self._cut([self._sequence(place * size + i) for i in range(size)])

    def _sequence(self, place: int) -> int:
        epoch, within = divmod(place, self.count)
        return int(self._order(epoch)[within])

    def _order(self, epoch: int) -> np.ndarray:
        """An epoch's sequences, kept as long as steps may need it: permuting millions of them takes seconds."""
        if epoch not in self._orders:
            # A step lies in two epochs at most, or in many that are so short that they cost nothing.
            while len(self._orders) > 1:
                self._orders.pop(min(self._orders))
            self._orders[epoch] = np.random.default_rng((self.seed, epoch)).permutation(self.count)
        return self._orders[epoch]

    def _cut(self, sequences: list[int]) -> MicroBatch:
        starts = [sequence * self.seq_length for sequence in sequences]
        windows = np.stack([self.tokens[start : start + self.seq_length + 1] for start in starts])
        return MicroBatch(windows[:, :-1].copy(), windows[:, 1:].copy())
