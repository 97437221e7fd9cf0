"""``hp-memory doctor``: what this machine has, and what will therefore work."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from hp_memory.config import own_files
from hp_memory.config.schema import HPConfig, validate
from hp_memory.kernels.ascend import machine
from hp_memory.launch.environment import inherited_job
from hp_memory.mindspore import probes
from hp_memory.offload.apply import capability
from hp_memory.report.table import Table, console
from hp_memory.runs.environment import version
from hp_memory.runs.hyper_parallel import State

MEASURED_ON = "2.10.0"
Finding = tuple[str, str, str]


def run(cfg: HPConfig) -> int:
    """Prints the findings; returns 1 if training can't work here at all."""
    validate(cfg)
    findings = [finding for look in LOOKS for finding in _safely(look)]
    console().print(Table("This machine", ["what", "found", "so"], findings).rich())
    return 1 if any(so.startswith("NOT") for _, _, so in findings) else 0


def _safely(look: Callable[[], list[Finding]]) -> list[Finding]:
    """Reports a failing probe instead of raising."""
    try:
        return look()
    except Exception as error:
        return [(look.__name__.strip("_"), f"{type(error).__name__}: {error}".split("\n")[0], "NOT usable")]


def _machine() -> list[Finding]:
    memory = psutil.virtual_memory()
    python = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    supported = (3, 10) <= sys.version_info[:2] < (3, 13)
    return [
        ("Python", python, "supported" if supported else "NOT supported: 3.10, 3.11 or 3.12"),
        ("cores", str(len(os.sched_getaffinity(0))), "one worker per core is best on a CPU"),
        ("host memory", f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free", ""),
    ]


def _devices() -> list[Finding]:
    found = machine.devices()
    cann = machine.cann_version(os.environ)
    so = "device=Ascend can run" if found else "device=CPU only; memory on Ascend is estimated by `hp-memory dryrun`"
    return [("Ascend devices", str(len(found)), so), ("CANN", cann or "none", "")]


def _mindspore() -> list[Finding]:
    found = version("mindspore")
    if found is None:
        return [("MindSpore", "none", "NOT installed")]
    rows = [("MindSpore", found, "measured on this version" if found == MEASURED_ON else f"measured on {MEASURED_ON}")]
    missing = probes.missing()
    names = sum(len(probe.attributes) for probe in probes.PROBES)
    rows.append(("private names of MindSpore", f"{names - sum(map(len, missing.values()))} of {names}", ""))
    rows += [(", ".join(lost), "missing", f"NOT usable: {breaks}") for breaks, lost in missing.items()]
    return rows


def _msrun() -> list[Finding]:
    beside = Path(sys.executable).parent / "msrun"
    found = str(beside) if beside.exists() else shutil.which("msrun")
    rows = [("msrun", found or "none", "launch=one_node, cluster" if found else "NOT found: no launch with workers")]
    inherited = inherited_job(os.environ)
    if inherited:
        rows.append(("another job's variables", ", ".join(inherited), "a launch is refused: unset them"))
    return rows


def _mindformers() -> list[Finding]:
    found = version("mindformers")
    if found is None:
        return [("MindFormers", "none", "engine=reference only; to add it, see docs/install.md")]
    from hp_memory.mindformers.backend import probe

    capabilities = probe()
    so = {
        State.USABLE: "engine=mindformers can run",
        State.ABSENT: "engine=mindformers on CPUs, with a stand-in; on Ascend on one process",
    }.get(capabilities.found.state, "NOT usable: engine=mindformers can't run beside it")
    return [("MindFormers", found, ""), ("HyperParallel", capabilities.in_words().partition(": ")[2], so)]


def _hyper_offload() -> list[Finding]:
    can, why = capability()
    return [("HyperOffload", "can run" if can else "can't run here", why)]


def _own_configs() -> list[Finding]:
    found = [str(folder) for folder in own_files.folders()]
    so = f"recipes and layouts of your own: there, in ./configs, ~/.config/hp-memory or {own_files.VARIABLE}"
    return [("own configs", ", ".join(found) or "none", so)]


LOOKS = (_machine, _devices, _mindspore, _msrun, _mindformers, _hyper_offload, _own_configs)
