"""One quiet, deterministic MindSpore for all tests, and hypothesis profiles."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

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


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _msrun_job(folder: Path, workers: int, cases: list[dict], timeout: int) -> list[dict]:
    script = Path(__file__).parent / "integration" / "mindformers" / "job.py"
    (folder / "cases.json").write_text(json.dumps(cases))
    binaries = Path(sys.executable).parent
    env = {name: value for name, value in os.environ.items() if not name.startswith("MS_")}
    env |= {"PATH": f"{binaries}:{env['PATH']}", "PYTHONPATH": str(script.parent)}
    options = [f"--worker_num={workers}", f"--local_worker_num={workers}", f"--master_port={_free_port()}"]
    options += ["--cluster_time_out=60", "--join=True", "--tail_worker_log=0", f"--log_dir={folder / 'logs'}"]
    command = [shutil.which("msrun", path=env["PATH"]), *options, str(script), str(folder)]
    subprocess.run(command, env=env, capture_output=True, timeout=timeout)
    logs = "\n".join(log.read_text()[-4000:] for log in sorted((folder / "logs").glob("worker_*.log")))
    files = [folder / f"rank_{rank}.json" for rank in range(workers)]
    assert all(file.exists() for file in files), logs
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="session")
def msrun_job(tmp_path_factory):
    """``msrun_job(workers, cases)``: what each rank found (see ``integration/mindformers/job.py``), and the folder."""

    def run(workers: int, cases: list[dict], timeout: int = 580) -> tuple[list[dict], Path]:
        folder = tmp_path_factory.mktemp("job")
        return _msrun_job(folder, workers, cases, timeout), folder

    return run
