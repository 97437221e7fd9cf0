"""Random programs train under a checkpoint with saved regions as the plain block does, or are refused by name."""

from __future__ import annotations

import gc
import json
import os

import pytest

from tests.fuzz.program import program
from tests.fuzz.verdict import judge, shrink

PROGRAMS = int(os.environ.get("HP_MEMORY_FUZZ", "300"))
CHUNK = 25


@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_programs_train_alike(mindspore, first):
    gc.collect()
    kinds = []
    for seed in range(first, min(first + CHUNK, PROGRAMS)):
        verdict = judge(program(seed))
        kinds.append(verdict.kind)
        if verdict.kind == "failed":
            small = shrink(program(seed))
            pytest.fail(f"program {seed}: {verdict.why}\nsmallest: {json.dumps(small)}\n{judge(small).why}")
    assert kinds.count("equal") > len(kinds) // 2
