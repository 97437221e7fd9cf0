"""The text, its tokens and the order of batches."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from hp_memory.errors import ConfigError
from hp_memory.train.data import Batches, check_vocabulary, load_corpus, unigram_entropy
from hp_memory.train.make_tokenizer import train_tokenizer
from hp_memory.train.settings import DataSettings, TrainSettings
from hp_memory.train.text import TEXT, TOKENIZER, read_text


def test_the_shipped_text_is_a_megabyte_and_credited():
    text = read_text(TEXT)
    assert len(text) > 1_000_000
    assert text.startswith("In the beginning God created")
    assert "public domain" in TEXT.with_name("CREDITS.md").read_text()


def test_the_shipped_tokenizer_gives_the_text_back():
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    sample = read_text(TEXT)[:2000] + " Zürich 😀"
    assert tokenizer.decode(tokenizer.encode(sample).ids) == sample


def test_the_tokenizer_script_is_deterministic():
    text = read_text(TEXT)[:20_000]
    first, second = (train_tokenizer(text, 300).to_str() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("tokens", "entropy"), [([3, 3, 3], 0.0), ([0, 1, 2, 3], np.log(4)), ([0, 0, 0, 1], 0.5623)])
def test_unigram_entropy(tokens, entropy):
    assert unigram_entropy(np.array(tokens)) == pytest.approx(entropy, abs=1e-4)


def test_validation_text_is_never_trained_on(short_text):
    whole = load_corpus(DataSettings(text=str(short_text), validation_fraction=0.0))
    split = load_corpus(DataSettings(text=str(short_text), validation_fraction=0.25))
    assert whole.validation.size == 0
    np.testing.assert_array_equal(np.concatenate((split.train, split.validation)), whole.train)
    assert split.validation.size == whole.train.size // 4


def make_batches(rank=0, world_size=1, seed=0, micro_batches=2, tokens=None):
    tokens = np.arange(101, dtype=np.int32) if tokens is None else tokens
    sizes = TrainSettings(steps=1, micro_batch_size=2, micro_batches=micro_batches)
    return Batches(tokens, 10, sizes, rank, world_size, seed)


def test_labels_are_the_next_tokens():
    for micro in make_batches().step(0):
        assert micro.tokens.shape == micro.labels.shape == (2, 10)
        np.testing.assert_array_equal(micro.labels, micro.tokens + 1)


@pytest.mark.parametrize("world_size", [1, 5])
def test_an_epoch_visits_every_sequence_once_over_all_ranks(world_size):
    # 10 sequences; 2 per micro-batch.
    steps = 5 // world_size
    seen = [
        int(row[0])
        for rank in range(world_size)
        for step in range(steps)
        for micro in make_batches(rank, world_size, micro_batches=1).step(step)
        for row in micro.tokens
    ]
    assert sorted(seen) == list(range(0, 100, 10))


def test_order_depends_on_seed_and_step_only():
    once, again, other = make_batches(), make_batches(), make_batches(seed=1)
    once.step(0)
    np.testing.assert_array_equal(once.step(3)[0].tokens, again.step(3)[0].tokens)
    assert any(not np.array_equal(once.step(s)[0].tokens, other.step(s)[0].tokens) for s in range(3))


def test_a_text_shorter_than_a_sequence_is_refused():
    with pytest.raises(ConfigError, match="too few tokens"):
        make_batches(tokens=np.arange(10, dtype=np.int32))


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"text": "/no/such/file"}, "data.text"),
        ({"tokenizer": "/no/such/file"}, "data.tokenizer"),
        ({"validation_fraction": 1.0}, "data.validation_fraction"),
    ],
)
def test_data_settings_refuse_by_path(change, path):
    with pytest.raises(ConfigError) as caught:
        DataSettings(**change).validate()
    assert caught.value.path == path


@pytest.mark.parametrize("field", ["steps", "micro_batch_size", "micro_batches"])
def test_train_settings_refuse_no_work(field):
    with pytest.raises(ConfigError, match=f"train.{field}=0"):
        TrainSettings(**{"steps": 1, "micro_batch_size": 1} | {field: 0}).validate()


def test_a_tokenizer_with_more_ids_than_the_model_is_refused():
    check_vocabulary(DataSettings(), 1024)
    with pytest.raises(ConfigError, match=r"makes 1024 ids, model.vocab_size is 1000"):
        check_vocabulary(DataSettings(), 1000)


def test_an_epoch_is_shuffled_once_and_not_for_every_sequence(monkeypatch):
    made = []
    honest = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: made.append(seed) or honest(seed))
    batches = Batches(np.arange(41, dtype=np.int32), 4, TrainSettings(micro_batch_size=3), 0, 1, seed=5)
    dealt = [int(batch.tokens[row, 0]) // 4 for step in range(10) for batch in batches.step(step) for row in range(3)]
    assert made == [(5, 0), (5, 1), (5, 2)]
    assert [sorted(dealt[i : i + 10]) for i in (0, 10, 20)] == [list(range(10))] * 3
