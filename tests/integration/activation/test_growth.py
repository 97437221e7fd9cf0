"""Over a thousand steps the process grows no faster than with the plain block."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

STEPS = """
import json, os, sys
os.environ.update(OMP_NUM_THREADS="1", GLOG_v="3")
import mindspore as ms
import numpy as np
from mindspore import mint, ops
from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper
from hp_memory.activation.probe import resident_bytes

ms.runtime.launch_blocking()
mode, steps = sys.argv[1], int(sys.argv[2])
weight = ms.Parameter(ms.Tensor(np.eye(64, dtype=np.float32)), name="w")
project = lambda x: mint.matmul(x, weight)
if mode == "exclude":
    project = checkpoint_exclude_wrapper(project)
block = lambda x: ops.tanh(project(ops.tanh(x))).sum()
if mode != "plain":
    block = checkpoint_wrapper(block)
grad = ms.value_and_grad(block, 0, [weight])
x = ms.Tensor(np.ones((256, 64), np.float32))

def run(count):
    for _ in range(count):
        grad(x)[0].asnumpy()

run(300)
before = resident_bytes()
run(steps)
print(json.dumps((resident_bytes() - before) / steps))
"""


@pytest.mark.timeout(300)
def test_a_thousand_steps_grow_no_faster_than_the_plain_block():
    """A kept 64 KiB activation per step would show as 65,536 bytes a step; MindSpore alone grows by about 9,000."""
    growth = {}
    for mode in ("plain", "exclude"):
        done = subprocess.run([sys.executable, "-c", STEPS, mode, "1000"], capture_output=True, text=True, check=True)
        growth[mode] = json.loads(done.stdout.splitlines()[-1])
    assert growth["exclude"] <= growth["plain"] + 6_000
