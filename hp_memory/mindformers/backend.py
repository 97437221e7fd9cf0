"""Whose wrappers apply a plan under MindFormers: this package's, or HyperParallel's where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.layout import ALWAYS_SAVED, ActivationPlan, Layout, refuse_offload
from hp_memory.runs import hyper_parallel
from hp_memory.runs.hyper_parallel import Found

CHOICES = ("auto", "native", "hyper_parallel")
CHECKPOINTS = "hyper_parallel.core.activation_checkpoint"
REENTRANT = "hyper_parallel.platform.mindspore.activation_checkpoint.reentrant_checkpoint"


@dataclass(frozen=True)
class Capabilities:
    """What the installed HyperParallel can do; probed, since releases differ without saying so.

    Attributes:
        found: the package as such.
        exclude: it has regions that are saved inside a checkpoint.
        save_output: it can drop the output of a saved region that no replay reads.
        reentrant: it has the re-entrant checkpoint.
        sessions: dx and dw of a split backward can share one replay.
    """

    found: Found
    exclude: bool = False
    save_output: bool = False
    reentrant: bool = False
    sessions: bool = False

    def in_words(self) -> str:
        """One line for a log or for ``doctor``."""
        if not self.found.usable:
            return f"hyper_parallel: {self.found.sentence}"
        abilities = asdict(self)
        abilities.pop("found")
        words = ", ".join(f"{'has' if there else 'no'} {name}" for name, there in abilities.items())
        return f"hyper_parallel: {self.found.sentence}, {words}"


def probe() -> Capabilities:
    """Looks for each ability where the MindSpore line exports it, without calling any."""
    found = hyper_parallel.probe()
    if not found.usable:
        return Capabilities(found)
    exclude = getattr(importlib.import_module(CHECKPOINTS), "checkpoint_exclude_wrapper", None)
    return Capabilities(
        found,
        exclude=exclude is not None,
        save_output=_takes(exclude, "save_output"),
        reentrant=_exists(REENTRANT),
        sessions=_takes(getattr(_platform(), "recompute_session_ctx", None), "retain_on_unpack"),
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
    module = importlib.import_module(CHECKPOINTS)

    def boundary(target: Any, name: str, early_stop: bool) -> Any:
        return module.checkpoint_wrapper(target, context_fn=recompute_context_fn)

    def saved(target: Any, name: str, save_output: bool | None) -> Any:
        # It doesn't find out by itself who reads an output, so every output is kept.
        return module.checkpoint_exclude_wrapper(region(target, name=name))

    return Wrappers(boundary, saved, region)


def refuse_plan(choice: str, plan: ActivationPlan, path: str = "callbacks.HPMemoryCallback.backend") -> None:
    """Raises ConfigError for a plan that HyperParallel's wrappers can't hold.

    They keep each output of a saved region: a plan that saves neighbours one by one is made for dropping what lies
    between them, and would hold more than it says. They swap whole Cells, not regions.
    """
    if choice != "hyper_parallel":
        return
    refuse_offload(plan, "HyperParallel's swap takes whole Cells inside no checkpoint: use backend: native")
    for layer in plan.layers:
        pair = _neighbours(layer.layout, plan.regions(layer.layer))
        if pair:
            why = (
                f"keeps every output of a saved region, and layer {layer.layer} ({layer.layout.name}) saves {pair[0]} "
                f"and {pair[1]} one by one so that what lies between them is dropped: use native, save them as_one, "
                "or say keep_outputs"
            )
            raise ConfigError(path, choice, why, ("auto", "native"))


def limits(choice: str) -> dict[str, str]:
    """What the chosen wrappers can't do, for a receipt."""
    if choice == "native":
        return {}
    return {
        "elision": "HyperParallel's wrappers keep every output of a saved region",
        "early_stop": "HyperParallel's replays end by a rule of its own",
    }


def _neighbours(layout: Layout, regions: Sequence[str]) -> tuple[str, str] | None:
    if layout.keep_outputs or not layout.replays(regions):
        return None
    inside = {region: span for span in layout.spans for region in span}
    for first, second in itertools.pairwise(regions):
        own = layout.action(first) == layout.action(second) == "save" and not {first, second} & set(ALWAYS_SAVED)
        if own and (inside.get(first) is None or inside.get(first) != inside.get(second)):
            return first, second
    return None


def _platform() -> Any:
    return importlib.import_module("hyper_parallel.platform").get_platform()


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # a package above it isn't there
        return False


def _takes(function: Callable[..., Any] | None, parameter: str) -> bool:
    return function is not None and parameter in inspect.signature(function).parameters
