"""One quiet, deterministic MindSpore for all tests, and hypothesis profiles."""

from __future__ import annotations

import contextlib
import os

# MindSpore's dispatch threads spin against each other on few cores: set before it is imported anywhere.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GLOG_v", "3")

import pytest
from hypothesis import HealthCheck, settings

# The same examples each time where a result decides about a change; the nightly profile goes looking for new ones.
for _name, _examples in (("default", 200), ("nightly", 2000), ("quick", 25)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=_name != "nightly",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def mindspore():
    """MindSpore with blocking launches and one runtime thread, on the CPU."""
    import mindspore as ms

    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    ms.set_context(runtime_num_threads=1)
    # Without this two kernel threads spin beside the caller: a training step takes three times as long.
    with contextlib.suppress(RuntimeError):  # it can be set once per process only
        ms.device_context.cpu.op_tuning.threads_num(1)
    return ms
