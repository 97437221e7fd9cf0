"""The floors of ``pyproject.toml`` hold for lazy imports and ``import_module`` too, and no files import each other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib

import hp_memory

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings it there
    import tomli as tomllib

ROOT = Path(hp_memory.__file__).parent


def _modules() -> dict[str, Path]:
    found = {}
    for file in ROOT.rglob("*.py"):
        if not {"_configs", "_launch"} & set(file.parts):
            name = ".".join(("hp_memory", *file.relative_to(ROOT).with_suffix("").parts))
            found[name.removesuffix(".__init__")] = file
    return found


MODULES = _modules()


def _imported(tree: ast.AST, types: bool = True) -> Iterator[str]:
    """Every module of ours that a file names: in imports, however deep, and in ``import_module``.

    Args:
        types: whether imports that only a type checker makes count.
    """
    for node in _nodes(tree, types):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from _named(node.args[0])


def _nodes(tree: ast.AST, types: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if types or not (isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"):
            yield node
            yield from _nodes(node, types)


def _named(argument: ast.expr) -> Iterator[str]:
    """The modules that ``import_module``'s argument can name; of an f-string, all beside the one it names."""
    if isinstance(argument, ast.Constant):
        yield str(argument.value)
    elif isinstance(argument, ast.JoinedStr) and isinstance(argument.values[0], ast.Constant):
        package = str(argument.values[0].value)
        yield from (m for m in MODULES if m.startswith(package) and "." not in m.removeprefix(package))


def _arrows(types: bool) -> dict[str, set[str]]:
    trees = {name: ast.parse(file.read_text()) for name, file in MODULES.items()}
    return {name: {t for t in _imported(tree, types) if t in MODULES and t != name} for name, tree in trees.items()}


ARROWS = _arrows(types=True)
AT_RUN_TIME = _arrows(types=False)


def _floors() -> list[tuple[str, dict[str, int]]]:
    tool = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["tool"]
    contracts = [c for c in tool["importlinter"]["contracts"] if c["type"] == "layers"]
    return [
        (
            contract["containers"][0],
            {room.strip(): -i for i, floor in enumerate(contract["layers"]) for room in floor.split("|")},
        )
        for contract in contracts
    ]


@pytest.mark.parametrize(("container", "floors"), _floors())
def test_every_arrow_points_down(container: str, floors: dict[str, int]):
    lowest = min(floors.values()) - 1  # modules that no floor names are shared by all of them

    def floor(module: str) -> int | None:
        inside = module.startswith(f"{container}.")
        return floors.get(_room(module, container), lowest) if inside else None

    upward = [
        f"{source} -> {target}"
        for source, targets in ARROWS.items()
        for target in targets
        if (here := floor(source)) is not None
        and (there := floor(target)) is not None
        and _room(source, container) != _room(target, container)
        and there >= here
        and not there == here == lowest
    ]
    assert upward == []


def _room(module: str, container: str) -> str:
    return module.removeprefix(f"{container}.").partition(".")[0]


def test_no_files_import_each_other():
    assert _cycle() is None


def _cycle() -> list[str] | None:
    """A circle of imports, or None. Packages stand for their ``__init__`` only."""
    done: set[str] = set()

    def search(module: str, path: list[str]) -> list[str] | None:
        if module in path:
            return path[path.index(module) :]
        if module in done:
            return None
        for target in sorted(AT_RUN_TIME[module]):
            if found := search(target, [*path, module]):
                return found
        done.add(module)
        return None

    return next((found for module in sorted(MODULES) if (found := search(module, []))), None)
