"""Megatron-format files that can't be trained on are refused from their index and first tokens."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from hp_memory.config.app import compose, to_object
from hp_memory.errors import ConfigError
from hp_memory.experiment import experiment
from hp_memory.mindformers import megatron

MAGIC = b"MMIDIDX\x00\x00"


def write(prefix, tokens, lengths, dtype=np.uint16, version=1):
    code = {np.uint16: 8, np.int32: 4, np.float32: 7}[dtype]
    lengths = np.asarray(lengths, np.int32)
    pointers = (np.cumsum(lengths) - lengths).astype(np.int64) * np.dtype(dtype).itemsize
    documents = np.arange(lengths.size + 1, dtype=np.int64)
    header = MAGIC + struct.pack("<QBQQ", version, code, lengths.size, documents.size)
    prefix.with_suffix(".idx").write_bytes(header + lengths.tobytes() + pointers.tobytes() + documents.tobytes())
    prefix.with_suffix(".bin").write_bytes(np.asarray(tokens, dtype).tobytes())
    return prefix


def config(prefix, *more):
    return to_object(compose("train", ["recipe=tiny_deepseek_v3", f"data.megatron={prefix}", *more]))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_sound_files_pass_and_name_their_tokens(tmp_path, dtype):
    prefix = write(tmp_path / "text", np.arange(9000) % 50, [4000, 5000], dtype)
    assert megatron.read_index(str(prefix)) == megatron.Index(dtype, 9000)
    cfg = config(prefix)
    experiment.check_text(cfg)
    loader = megatron.section(cfg, tmp_path / "cache")["dataloader"]
    batch = cfg.train.micro_batch_size * cfg.train.micro_batches
    assert loader["sizes"] == [cfg.train.steps * batch, 0, 0]
    assert loader["config"]["data_path"] == ["1", str(prefix)]


def refused(prefix, *more):
    with pytest.raises(ConfigError) as error:
        experiment.check_text(config(prefix, *more))
    assert error.value.path == "data.megatron"
    return str(error.value)


def test_fewer_tokens_than_one_global_batch(tmp_path):
    cfg = config("none")
    batch = cfg.train.micro_batch_size * cfg.train.micro_batches
    short = cfg.model.seq_length * batch  # one token more would do
    prefix = write(tmp_path / "text", np.zeros(short), [short])
    assert f"has {batch - 1} sequences, one global batch needs {batch}" in refused(prefix)


def test_tokens_that_the_model_has_no_row_for(tmp_path):
    prefix = write(tmp_path / "text", np.full(9000, 60000), [9000])
    assert "has token 60000, model.vocab_size is" in refused(prefix)


def test_files_that_do_not_belong_together(tmp_path):
    prefix = write(tmp_path / "text", np.zeros(8999), [9000])
    assert "its .bin holds 17998 bytes, its .idx describes 18000" in refused(prefix)


def test_files_of_another_format(tmp_path):
    prefix = write(tmp_path / "text", np.zeros(9000), [9000], version=2)
    assert "has version 2 and type 8" in refused(prefix)
    prefix = write(tmp_path / "text", np.zeros(9000), [9000], np.float32)
    assert "type 7" in refused(prefix)
    index = prefix.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:36])
    assert "has version 1 and type 7" in refused(prefix)
    index.write_bytes(b"PK" * 40)
    assert "isn't in Megatron's format" in refused(prefix)


def test_an_index_that_is_cut_short(tmp_path):
    prefix = write(tmp_path / "text", np.zeros(9000), [3000] * 3)
    index = prefix.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[:36])
    assert "ends before its last sequence" in refused(prefix)


def test_a_missing_file_or_two_datasets_at_once(tmp_path):
    settings = config(tmp_path / "missing").data
    with pytest.raises(ConfigError, match=r"data\.megatron=.*there is no file '.*missing\.bin'"):
        settings.validate()
    settings.megatron = str(write(tmp_path / "text", np.zeros(9000), [9000]))
    settings.mindrecord = str(tmp_path / "m")
    for name in ("m", "m.db"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"data\.mindrecord is set too"):
        settings.validate()
