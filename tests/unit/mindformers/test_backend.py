"""What is found in each kind of HyperParallel, and what is chosen for it. The packages are files, fakes inside."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hp_memory.errors import ConfigError, UnusableHyperParallel
from hp_memory.layout import LayoutSettings, ModelFingerprint, build_plan
from hp_memory.layout.regions import REGIONS_OF_KIND
from hp_memory.mindformers import backend
from hp_memory.runs import hyper_parallel
from hp_memory.runs.hyper_parallel import Found, State

ABILITIES = ("exclude", "save_output", "reentrant", "sessions")
COMBINATIONS = [
    dict(zip(ABILITIES, there, strict=True))
    for there in itertools.product((False, True), repeat=4)
    if there[0] or not there[1]  # without the wrapper it has no parameter either
]


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """``fake(has)``: a ``hyper_parallel`` with these abilities and no others can be imported."""
    packages = load_packages()

    def make(has: dict[str, bool], **options: object) -> None:
        packages.write(tmp_path, has, **options)
        monkeypatch.syspath_prepend(str(tmp_path))

    yield make
    for name in [name for name in sys.modules if name.split(".")[0] == "hyper_parallel"]:
        del sys.modules[name]


def load_packages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packages", Path(__file__).with_name("packages.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("has", COMBINATIONS, ids=lambda has: "+".join(n for n in ABILITIES if has[n]) or "nothing")
def test_every_combination_is_probed_and_chosen_for(fake, has):
    fake(has)
    found = backend.probe()
    assert found == backend.Capabilities(found.found, **has)
    assert found.found.usable
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
    assert found == backend.Capabilities(Found(State.ABSENT, "not installed"))
    assert backend.choose("auto", found) == "native"
    with pytest.raises(ConfigError, match="not installed"):
        backend.choose("hyper_parallel", found)
    with pytest.raises(ConfigError, match="did you mean 'native'"):
        backend.choose("natve", found)


def test_its_wrappers_get_our_names_and_mindformers_context(fake, monkeypatch, mindspore):
    fake(dict.fromkeys(ABILITIES, True))
    context = object()
    name = "mindformers.pynative.distributed.activation_checkpoint"
    rules = ModuleType(name)
    rules.recompute_context_fn = context
    for i in range(1, 4):
        package = ".".join(name.split(".")[:i])
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, name, rules)
    wrappers = backend.wrappers("hyper_parallel")
    assert wrappers.boundary("block", name="layers.0", early_stop=True) == ("block", context)
    kind, inner = wrappers.saved(lambda: 5, name="layers.0/gmm.up", save_output=None)
    assert kind == "saved"
    assert inner() == 5


SENTENCES = [
    ({"without": ("platform.mindspore",)}, State.TORCH_ONLY, "a release for PyTorch only, without hyper_parallel.plat"),
    ({"without": ("core.dtensor.dtensor",)}, State.OLD_LAYOUT, "it has no hyper_parallel.core.dtensor.dtensor"),
    ({"without": ("core.activation_checkpoint",)}, State.OLD_LAYOUT, "it has no hyper_parallel.core.activation_checkp"),
    (
        {"text": "import torch_that_is_not_here"},
        State.BROKEN,
        "importing hyper_parallel fails: ModuleNotFoundError: N",
    ),
    ({"text": "raise RuntimeError('no driver')"}, State.BROKEN, "importing hyper_parallel fails: RuntimeError: no dri"),
    ({"text": "raise ImportError"}, State.BROKEN, "importing hyper_parallel fails: ImportError"),
]


@pytest.mark.parametrize(("package", "state", "sentence"), SENTENCES)
def test_each_unusable_package_has_its_own_sentence(fake, tmp_path, package, state, sentence):
    fake({}, **package)
    found = backend.probe()
    assert found.found.state is state
    assert f"installed at {tmp_path}" in found.in_words()
    assert sentence in found.in_words()
    assert "not installed" not in found.in_words()
    with pytest.raises(ConfigError, match="can't save a region: hyper_parallel: installed at"):
        backend.choose("hyper_parallel", found)


def test_an_unusable_package_is_not_hidden_by_the_stand_in(fake, mindspore):
    fake({}, text="import torch_that_is_not_here")
    from hp_memory.mindformers import standin

    with pytest.raises(UnusableHyperParallel, match=r"hyper_parallel is installed at .*, but importing"):
        standin.activate()
    assert not standin.is_active()


def test_looking_imports_nothing(fake):
    fake({}, text="raise RuntimeError('imported')")
    assert hyper_parallel.look().usable
    assert "hyper_parallel" not in sys.modules


def plan(**layout: object) -> object:
    mark = ModelFingerprint("qwen3_moe", ("moe",), REGIONS_OF_KIND, "0" * 16)
    return build_plan(LayoutSettings(**layout), mark)


NEIGHBOURS = {"name": "chain", "default": "recompute", "save": ["all2all", "compute", "gmm", "combine.unsort"]}


def test_a_plan_that_needs_elision_is_refused_there():
    with pytest.raises(ConfigError, match=r"saves all2all.in and compute.resort one by one"):
        backend.refuse_plan("hyper_parallel", plan(**NEIGHBOURS))
    backend.refuse_plan("native", plan(**NEIGHBOURS))
    backend.refuse_plan("hyper_parallel", plan(**NEIGHBOURS, keep_outputs=True))
    backend.refuse_plan("hyper_parallel", plan(**NEIGHBOURS, as_one=[["all2all.in", "all2all.out"]]))
    backend.refuse_plan("hyper_parallel", plan(name="ops", default="recompute", save=["all2all", "gmm"]))
    backend.refuse_plan("hyper_parallel", plan(name="none", default="save"))
    with pytest.raises(ConfigError, match="whole Cells"):
        backend.refuse_plan("hyper_parallel", plan(name="moved", default="save", offload=["gmm"]))


def test_the_receipt_says_what_its_wrappers_cannot():
    assert backend.limits("native") == {}
    assert "keep every output" in backend.limits("hyper_parallel")["elision"]
