"""Plans against those of MindSpore 2.10.0's own optimizer, per slot and per tensor."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest

from hp_memory.offload import plan_to_dict
from tests.unit.offload.cases import differences, plan_of

GOLDEN = Path(__file__).parents[2] / "data" / "offload" / "golden"
COUNTS = {"distance": 204, "parameter": 55, "mixed": 53, "peak": 43, "large": 13, "tuple": 9}


@pytest.mark.parametrize("name", COUNTS)
def test_agrees_with_mindspores_optimizer(name):
    checked = 0
    for line in lzma.decompress((GOLDEN / f"{name}.jsonl.xz").read_bytes()).splitlines():
        case = json.loads(line)
        assert differences(case, case["expected"], plan_to_dict(plan_of(case))) == [], case["id"]
        checked += 1
    assert checked == COUNTS[name]
