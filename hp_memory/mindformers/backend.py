"""Whose wrappers apply a plan under MindFormers: this package's, or HyperParallel's where it is installed."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from types import ModuleType
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.mindformers import standin

CHOICES = ("auto", "native", "hyper_parallel")
_MODULES = ("hyper_parallel.core.activation_checkpoint", "hyper_parallel.core.activation_memory")


@dataclass(frozen=True)
class Capabilities:
    """What the installed HyperParallel can do; probed, since releases differ without saying so.

    Attributes:
        installed: the real package can be imported.
        exclude: it has regions that are saved inside a checkpoint.
        save_output: it can drop the output of a saved region that no replay reads.
        reentrant: it has the re-entrant checkpoint.
        sessions: dx and dw of a split backward can share one replay.
    """

    installed: bool = False
    exclude: bool = False
    save_output: bool = False
    reentrant: bool = False
    sessions: bool = False

    def in_words(self) -> str:
        """One line for a log or for ``doctor``."""
        if not self.installed:
            return "hyper_parallel: not installed"
        found = asdict(self)
        found.pop("installed")
        words = ", ".join(f"{'has' if there else 'no'} {name}" for name, there in found.items())
        return f"hyper_parallel: installed, {words}"


def probe() -> Capabilities:
    """Looks at the installed HyperParallel without calling any of it."""
    module = _module()
    if module is None:
        return Capabilities()
    exclude = getattr(module, "checkpoint_exclude_wrapper", None)
    return Capabilities(
        installed=True,
        exclude=exclude is not None,
        save_output=_takes(exclude, "save_output"),
        reentrant=hasattr(module, "reentrant_checkpoint_wrapper"),
        sessions=_takes(getattr(module, "recompute_session_ctx", None), "retain_on_unpack"),
    )


def choose(choice: str, found: Capabilities, path: str = "callbacks.HPMemoryCallback.backend") -> str:
    """``native`` or ``hyper_parallel``.

    ``auto`` takes HyperParallel's own wrappers only if they can do all that a plan may ask for.

    Raises:
        ConfigError: for a choice that doesn't exist or can't be had.
    """
    if choice not in CHOICES:
        raise ConfigError(path, choice, "no such backend", CHOICES)
    if choice == "hyper_parallel" and not found.exclude:
        raise ConfigError(path, choice, f"can't save a region: {found.in_words()}", ("auto", "native"))
    if choice == "auto":
        return "hyper_parallel" if found.exclude and found.save_output and found.sessions else "native"
    return choice


def wrappers(choice: str) -> Any:
    """The wrappers for ``install``; under a boundary MindFormers' counters see that they are in a replay."""
    from mindformers.pynative.distributed.activation_checkpoint import recompute_context_fn

    from hp_memory.activation import checkpoint_wrapper, region
    from hp_memory.install import Wrappers

    if choice == "native":
        return Wrappers(boundary=partial(checkpoint_wrapper, context_fn=recompute_context_fn))
    module = _module()

    def boundary(target: Any, name: str) -> Any:
        return module.checkpoint_wrapper(target, context_fn=recompute_context_fn)

    def saved(target: Any, name: str, save_output: bool | None) -> Any:
        # It doesn't find out by itself who reads an output, so every output is kept.
        return module.checkpoint_exclude_wrapper(region(target, name=name))

    return Wrappers(boundary, saved, region)


def _module() -> ModuleType | None:
    if not standin.installed():
        return None
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return None


def _takes(function: Callable[..., Any] | None, parameter: str) -> bool:
    return function is not None and parameter in inspect.signature(function).parameters
