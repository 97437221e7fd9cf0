"""The stand-in serves imports only where the real package is missing. In processes of their own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType


def load_packages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("packages", Path(__file__).with_name("packages.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(code: str, *path: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "import sys\n" + "".join(f"sys.path.insert(0, {p!r})\n" for p in path) + code],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_name_is_served_and_marked():
    out = python(
        "import importlib\n"
        "from hp_memory.mindformers import standin\n"
        "from hp_memory.mindformers.standin.names import MODULES, ROOT\n"
        "print(standin.activate())\n"
        "for name, names in MODULES.items():\n"
        "    module = importlib.import_module(ROOT + name)\n"
        "    assert module.__stub__ and all(hasattr(module, n) for n in names)\n"
        "import hyper_parallel\n"
        "try: hyper_parallel.init_device_mesh('cpu', (2,))\n"
        "except RuntimeError as error: print(error)\n"
    )
    assert "stand-in" in out
    assert "init_device_mesh((2,)) needs the real hyper_parallel" in out


def test_a_name_it_does_not_know_is_an_import_error():
    out = python(
        "from hp_memory.mindformers import standin\nstandin.activate()\n"
        "try: import hyper_parallel.core.something\n"
        "except ModuleNotFoundError as error: print(error.name)\n"
    )
    assert out.strip() == "hyper_parallel.core.something"


def test_the_real_package_is_never_hidden(tmp_path):
    load_packages().write(tmp_path, text="real = True")
    code = (
        "from hp_memory.mindformers import standin\nprint(standin.activate(), standin.is_active())\n"
        "import hyper_parallel\nprint(hyper_parallel.real)\n"
    )
    assert python(code, str(tmp_path)).splitlines() == ["hyper_parallel: the installed package False", "True"]


def test_nothing_happens_unasked():
    out = python(
        "import hp_memory.mindformers.standin, importlib.util\nprint(importlib.util.find_spec('hyper_parallel'))"
    )
    assert out.strip() == "None"
