"""What is found in each kind of HyperParallel, and what is chosen for it. The packages are fakes."""

from __future__ import annotations

import itertools
import sys
from types import ModuleType

import pytest

from hp_memory.errors import ConfigError
from hp_memory.mindformers import backend

ABILITIES = ("exclude", "save_output", "reentrant", "sessions")
COMBINATIONS = [
    dict(zip(ABILITIES, there, strict=True))
    for there in itertools.product((False, True), repeat=4)
    if there[0] or not there[1]  # without the wrapper it has no parameter either
]


def fake(monkeypatch: pytest.MonkeyPatch, has: dict[str, bool]) -> None:
    """A ``hyper_parallel`` with these abilities and no others."""
    module = ModuleType("hyper_parallel.core.activation_checkpoint")
    module.checkpoint_wrapper = lambda cell, context_fn=None: ("boundary", cell)
    if has["exclude"]:
        with_parameter = lambda target, *, save_output=True: ("saved", target)  # noqa: E731
        module.checkpoint_exclude_wrapper = with_parameter if has["save_output"] else lambda target: ("saved", target)
    if has["reentrant"]:
        module.reentrant_checkpoint_wrapper = lambda cell: cell
    if has["sessions"]:
        module.recompute_session_ctx = lambda session_id, retain_on_unpack=False: None
    for name in ("hyper_parallel", "hyper_parallel.core", module.__name__):
        monkeypatch.setitem(sys.modules, name, module if name == module.__name__ else ModuleType(name))


@pytest.mark.parametrize("has", COMBINATIONS, ids=lambda has: "+".join(n for n in ABILITIES if has[n]) or "nothing")
def test_every_combination_is_probed_and_chosen_for(monkeypatch, has):
    fake(monkeypatch, has)
    found = backend.probe()
    assert found == backend.Capabilities(installed=True, **has)
    complete = has["exclude"] and has["save_output"] and has["sessions"]
    assert backend.choose("auto", found) == ("hyper_parallel" if complete else "native")
    assert backend.choose("native", found) == "native"
    if has["exclude"]:
        assert backend.choose("hyper_parallel", found) == "hyper_parallel"
    else:
        with pytest.raises(ConfigError, match="no exclude"):
            backend.choose("hyper_parallel", found)
    for ability in ABILITIES:
        assert f"{'has' if has[ability] else 'no'} {ability}" in found.in_words()


def test_without_the_package():
    found = backend.probe()
    assert found == backend.Capabilities()
    assert backend.choose("auto", found) == "native"
    with pytest.raises(ConfigError, match="not installed"):
        backend.choose("hyper_parallel", found)
    with pytest.raises(ConfigError, match="did you mean 'native'"):
        backend.choose("natve", found)


def test_its_wrappers_get_our_names_and_mindformers_context(monkeypatch, mindspore):
    fake(monkeypatch, dict.fromkeys(ABILITIES, True))
    context = object()
    name = "mindformers.pynative.distributed.activation_checkpoint"
    rules = ModuleType(name)
    rules.recompute_context_fn = context
    for i in range(1, 4):
        package = ".".join(name.split(".")[:i])
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, name, rules)
    core = sys.modules["hyper_parallel.core.activation_checkpoint"]
    core.checkpoint_wrapper = lambda cell, context_fn=None: (cell, context_fn)
    wrappers = backend.wrappers("hyper_parallel")
    assert wrappers.boundary("block", name="layers.0") == ("block", context)
    kind, inner = wrappers.saved(lambda: 5, name="layers.0/gmm.up", save_output=None)
    assert kind == "saved"
    assert inner() == 5
