"""What one node says about itself before a job starts. Reads only; imports neither MindSpore nor anything large."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import sys
import time
from pathlib import Path

import psutil

import hp_memory
from hp_memory.kernels.ascend import machine
from hp_memory.launch import environment, hosts
from hp_memory.launch.node import processes
from hp_memory.runs import hyper_parallel, variables
from hp_memory.runs.environment import version
from hp_memory.runs.hyper_parallel import State

GIB = 2**30
PACKAGES = ("mindspore", "mindformers")
# What the run directory holds before the start; equal on all nodes, or they would run different plans.
SHARED_FILES = ("config.yaml", "plan.json")


def probe(order: dict) -> dict:
    """Answers the launcher's questions.

    Args:
        order: ``run_dir``, ``env`` (what the node's workers get on top), ``port`` (None where no
            scheduler starts here), ``master_addr``, ``python``, ``token_file`` (below the run directory).
    """
    env = os.environ | order["env"]
    path = f"{Path(order['python']).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = machine.devices()
    return {
        "host": socket.gethostname(),
        "python": ".".join(map(str, sys.version_info[:3])),
        **{name: version(name) for name in PACKAGES},
        "hyper-parallel": _hyper_parallel(),
        "cann": machine.cann_version(env),
        "driver": machine.driver_version(),
        "package": package_digest(),
        "msrun": shutil.which("msrun", path=path),
        "devices": machine.visible(found, env),
        "inherited": {k: v for k, v in environment.inherited_job(os.environ).items() if k != "SLURM_LOCALID"},
        "leftovers": leftovers(),
        "port_free": None if order["port"] is None else port_is_free(order["port"]),
        "master_address": hosts.address_of(order["master_addr"]),
        **run_dir_facts(Path(order["run_dir"]), order["token_file"]),
        "memory_gib": psutil.virtual_memory().available / GIB,
        "time": time.time(),
    }


def _hyper_parallel() -> str | None:
    """Its version, or what is wrong with it; None where there is none. Where it lies may differ between nodes."""
    found = hyper_parallel.look()
    if found.state is State.ABSENT:
        return None
    known = version("hyper-parallel") or "of no stated version"
    return known if found.usable else f"{known}, {found.state.value}"


def package_digest() -> str:
    """A digest of this package's own source as installed on this node."""
    root, digest = Path(hp_memory.__file__).parent, hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def leftovers() -> list[dict]:
    """Workers and schedulers of any MindSpore job on this node, with the run they belong to where they are ours."""
    found = []
    for pid in processes.all_pids():
        env = processes.environment_of(pid)
        if (env.get("MS_ROLE") or variables.RUN_ID in env) and processes.is_alive(pid):
            run = {"run_id": env.get(variables.RUN_ID, ""), "node": env.get(variables.NODE, "")}
            found.append({"pid": pid, "role": env.get("MS_ROLE", "")} | run)
    return found


def port_is_free(port: int) -> bool:
    """Whether a scheduler could listen on it, and no other launch on this node is about to."""
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as lock:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen()
            lock.bind(processes.port_lock(port))
        except OSError:
            return False
    return True


def run_dir_facts(run_dir: Path, token_file: str) -> dict:
    """Whether the run directory is the launcher's, can be written, and has room."""
    facts: dict = {"token": _text(run_dir / token_file), "files": {}, "writable": False, "disk_gib": 0.0}
    for name in SHARED_FILES:
        text = _text(run_dir / name)
        facts["files"][name] = hashlib.sha256(text.encode()).hexdigest()[:12] if text else None
    if run_dir.is_dir():
        facts["disk_gib"] = shutil.disk_usage(run_dir).free / GIB
        facts["writable"] = _can_write(run_dir)
    return facts


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


def _can_write(folder: Path) -> bool:
    # Trying is the only test that quotas, read-only mounts and full disks all obey.
    trial = folder / f".writable_{socket.gethostname()}_{os.getpid()}"
    try:
        trial.write_bytes(b"x" * 4096)
        trial.unlink()
    except OSError:
        trial.unlink(missing_ok=True)
        return False
    return True
