"""The page about a new family: its example runs, and its sizes come back from a model that was built with them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

from hp_memory.mindformers import families

PAGE = Path(__file__).parents[3] / "docs" / "extending.md"


def test_the_example_runs(monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.setattr(families, "FAMILIES", dict(families.FAMILIES))
    found = {}
    exec(compile(code, str(PAGE), "exec"), found)
    family, section = families.FAMILIES["mine"], found["section"]
    built = {size.built: section[name] for size in families.SIZES if (name := family.name_of(size)) in section}
    read = families.settings_of(SimpleNamespace(**built, hidden_act=section["hidden_act"]), "mine")
    assert read == found["model"]
