"""MindSpore's private names are imported in one place, each with a probe; this MindSpore has them all."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hp_memory
from hp_memory.mindspore.probes import PROBES, Probe, missing

ROOT = Path(hp_memory.__file__).parent
PRIVATE_MODULES = {probe.module for probe in PROBES} - {"mindspore.ops.auto_generate", "mindspore.train.amp"}


def _private_imports(file: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mindspore":
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("mindspore")]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            found += [str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return [name for name in found if name.startswith("mindspore.") and _is_private(name)]


def _is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split(".")) or any(
        name == module or name.startswith(f"{module}.") for module in PRIVATE_MODULES
    )


def test_private_names_are_imported_in_one_place():
    files = [
        f for f in ROOT.rglob("*.py") if not {"_configs", "_launch"} & set(f.parts) and f.parent.name != "mindspore"
    ]
    assert {str(f.relative_to(ROOT)): names for f in files if (names := _private_imports(f))} == {}


def test_each_private_name_has_a_probe():
    probed = {f"{probe.module}.{name}" for probe in PROBES for name in (*probe.attributes, "")}
    imported = _private_imports(ROOT / "mindspore" / "private.py")
    assert [name for name in imported if name not in probed and f"{name}." not in probed] == []


def test_this_mindspore_has_them():
    pytest.importorskip("mindspore")
    assert missing() == {}


def test_a_missing_name_says_what_breaks():
    probe = Probe("mindspore.common.recompute", ("_gone",), "replays", "x.py")
    assert probe.missing() == ("_gone",)
    assert Probe("mindspore.no_such_module", ("a", "b"), "all", "x.py").missing() == ("a", "b")
