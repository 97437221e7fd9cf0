"""Imports MindFormers without the packages that only its data sets and metrics use: they take two thirds of the time.

While ``left_out`` is active these packages are empty: every name in them is a class that can't be instantiated.
Nothing that builds or runs a model uses one. What is installed stays as it is for everybody who imports it afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PACKAGES = ("datasets", "jieba", "nltk", "pandas", "rouge_chinese")


class _LeftOut:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"{type(self).__name__} was left out: this process imported MindFormers for a dry run")


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        found = type(name, (_LeftOut,), {})
        setattr(self, name, found)
        return found


class _Finder(MetaPathFinder, Loader):
    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


@contextmanager
def left_out() -> Iterator[None]:
    """While inside, packages of ``PACKAGES`` that aren't imported yet are empty."""
    finder = _Finder(tuple(name for name in PACKAGES if name not in sys.modules))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n, module in sys.modules.items() if isinstance(module, _Empty)]:
            del sys.modules[name]
