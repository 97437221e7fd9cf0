"""Serves ``hyper_parallel.*`` from this package's own parts, where the real package is missing."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from hp_memory.errors import NeedsHyperParallel, UnusableHyperParallel
from hp_memory.mindformers.standin.names import MODULES, ROOT
from hp_memory.runs import hyper_parallel
from hp_memory.runs.hyper_parallel import Found, State

_PARTS = (
    "autograd",
    "checkpoint",
    "distributed_checkpoint",
    "dtensor",
    "fully_shard",
    "mesh",
    "overlap",
    "parallel",
    "placements",
    "schedules",
    "stages",
)


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != ROOT and not name.startswith(ROOT + "."):
            return None
        short = name[len(ROOT) :]
        if short not in MODULES:
            return None
        return ModuleSpec(name, self, is_package=any(m.startswith(short + ".") for m in MODULES))

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__stub__"] = True
        parts = [importlib.import_module(f"hp_memory.mindformers.standin.{part}") for part in _PARTS]
        for name in MODULES[module.__name__[len(ROOT) :]]:
            setattr(module, name, next(getattr(part, name) for part in parts if hasattr(part, name)))


_FINDER = _Finder()


def is_active() -> bool:
    """True if ``import hyper_parallel`` gives the stand-in in this process."""
    return _FINDER in sys.meta_path


def installed() -> bool:
    """True if something is installed under HyperParallel's name, usable or not."""
    return not is_active() and hyper_parallel.look().state is not State.ABSENT


def activate() -> str:
    """Lets MindFormers import without HyperParallel; does nothing where the real package is installed.

    Returns:
        One line that says what ``hyper_parallel`` is in this process.

    Raises:
        UnusableHyperParallel: if what is installed can't serve MindFormers. A stand-in would hide that.
    """
    found = Found(State.ABSENT, "") if is_active() else hyper_parallel.probe()
    if found.usable:
        return "hyper_parallel: the installed package"
    if found.state is not State.ABSENT:
        raise UnusableHyperParallel(found.sentence)
    if not is_active():
        # Last in the list: whatever else can find the real package finds it first.
        sys.meta_path.append(_FINDER)
    return "hyper_parallel: not installed, hp_memory's stand-in serves the imports"


def refuse_ranks(world_size: int) -> None:
    """Raises NeedsHyperParallel for several processes on accelerators: the stand-in's communicators are CPU ones."""
    import mindspore as ms

    if world_size > 1 and not installed() and ms.get_context("device_target") != "CPU":
        raise NeedsHyperParallel(f"MindFormers' Trainer on {world_size} processes", "its stand-in runs on CPUs only")
